"""What tests of the launcher share: a command line that is complete, and what the stand-ins know."""

import json
from dataclasses import dataclass
from pathlib import Path

from tpu.job import Job, Place
from tpu.slices import parse_slice

IMAGE = "us-docker.pkg.dev/my-project/images/flaxnmt:1"
MACHINES = ["--slice", "v5e-16", "--bucket", "gs://my-bucket", "--image", IMAGE]
FILES = ["--train", "gs://my-bucket/train.jsonl", "--dev", "gs://my-bucket/dev.jsonl"]
DATA = [*FILES, "--data.rows-multiple", "64"]
CREATE = ["create", "text_small", "--name", "wmt", *MACHINES]
CLUSTER = ["--cluster", "pods"]
NAME = ["text_small", "--name", "wmt", *CLUSTER]


def job(slice_: str = "v5p-16", **changes) -> Job:
    """A workload of a cluster."""
    fields = dict(
        name="wmt",
        place=Place(cluster="pods"),
        slice=parse_slice(slice_),
        slices=1,
        bucket="gs://my-bucket",
        run="gs://my-bucket/runs/wmt",
        image=IMAGE,
        command=("bash", "hello"),
        environment={},
    )
    return Job(**{**fields, **changes})


@dataclass
class Cloud:
    """What the stand-ins know and have heard."""

    folder: Path

    def plan(self, **what) -> None:
        """What becomes of resources: states in turn, commands that fail."""
        (self.folder / "plan.json").write_text(json.dumps(what))

    def read(self, name: str) -> dict:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def resources(self) -> dict:
        return self.read("resources.json")

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def verbs(self) -> list[str]:
        """Calls without their arguments; looks, and what is kept for the next one, are left out."""
        found = []
        for call in self.calls:
            verb = call[4] if call[1] == "compute" else call[2]
            found += [verb] if verb not in ("describe", "cat", "ls", "cp") else []
        return found

    def put(self, name: str, text: str) -> None:
        """An object of a bucket."""
        path = self.folder / "objects" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
