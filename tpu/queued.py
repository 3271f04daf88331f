"""Queued resources of Cloud TPU: the commands of gcloud, and what to do in each of their states.

Commands: `gcloud compute tpus queued-resources` of the Google Cloud SDK, 528. States: QueuedResourceState of the Cloud
TPU API, v2. The training is the machines' startup script, so that one that is started again runs it again; a spot
resource that was taken away stays SUSPENDED until it is deleted, and is created again then.
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from experiments.supervise import LOST, MISTAKE, PREEMPTED
from tpu.command import CAPACITY, OTHER, kind_of
from tpu.job import Job, Place

GCLOUD = ("gcloud", "compute", "tpus", "queued-resources")
SCRIPT = "/var/lib/flaxnmt/startup.sh"
LOG = "/var/lib/flaxnmt/log"
"""On the machines, where startup.sh puts itself and what the training says."""

MISSING = "NOT_FOUND"
WAITING = (
    "CREATING",
    "ACCEPTED",
    "WAITING_FOR_RESOURCES",
    "PROVISIONING",
    "SUSPENDING",
    "DELETING",
)
PATIENCE = 120.0
"""Seconds to wait after processes were lost or killed: the state of a resource follows its machines late."""


def sent(job: Job, startup: Path, folder: Path) -> dict[str, tuple[Path, str]]:
    """What goes into the machines' metadata, each in a file since gcloud splits values at commas.

    Returns:
      by name of the metadata: path, text. The command is a word a line, the environment NAME=VALUE a line.
    """
    texts = {
        "startup-script": ("startup.sh", startup.read_text(encoding="utf-8")),
        "flaxnmt-command": ("command", "".join(f"{word}\n" for word in job.command)),
        "flaxnmt-environment": (
            "environment",
            "".join(f"{name}={value}\n" for name, value in job.environment.items()),
        ),
    }
    return {key: (folder / file, text) for key, (file, text) in texts.items()}


def create(job: Job, files: dict[str, Path]) -> list[str]:
    """Asks for the machines; `files` are those of `sent`."""
    nodes = [f"--node-id={job.name}"]
    if job.slices > 1:
        nodes = [f"--node-count={job.slices}", f"--node-prefix={job.name}"]
    optional = {
        "--spot": job.spot,
        "--reserved": job.reserved,
        "--internal-ips": job.internal,
        f"--service-account={job.service_account}": job.service_account,
        f"--valid-until-duration={job.valid_for}": job.valid_for,
    }
    metadata = {"flaxnmt-name": job.name, "flaxnmt-image": job.image, "flaxnmt-state": job.state}
    return [
        *GCLOUD,
        "create",
        job.name,
        *nodes,
        *job.place.flags,
        f"--accelerator-type={job.slice.accelerator_type}",
        f"--runtime-version={job.runtime or job.slice.generation.runtime}",
        *(flag for flag, given in optional.items() if given),
        "--scopes=cloud-platform",
        f"--metadata={_pairs(metadata)}",
        f"--metadata-from-file={_pairs(files)}",
        "--quiet",
    ]


def _pairs(values: dict) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def describe(name: str, place: Place) -> list[str]:
    return [*GCLOUD, "describe", name, *place.flags, "--format=json"]


def listing(place: Place) -> list[str]:
    return [*GCLOUD, "list", *place.flags, "--format=json"]


def delete(name: str, place: Place) -> list[str]:
    """Gives the machines back, and returns when the name is free again."""
    return [*GCLOUD, "delete", name, *place.flags, "--force", "--quiet"]


def ssh(name: str, place: Place, words: Iterable[str], node: str = "all", worker: str = "all") -> list[str]:
    """Runs a command on machines; what their shells get is quoted."""
    command = f"--command={shlex.join(words)}"
    return [*GCLOUD, "ssh", name, *place.flags, f"--node={node}", f"--worker={worker}", command, "--quiet"]


def again(job: Job) -> list[str]:
    """Starts the training on machines that are there, in the background."""
    words = ["sudo", "setsid", "--fork", "bash", SCRIPT, "again", *job.command]
    return ssh(job.name, job.place, words)


def follow(name: str, place: Place, node: int, worker: int, lines: int) -> list[str]:
    """Streams what the training says on one machine."""
    words = ["sudo", "tail", "-n", str(lines), "-F", LOG]
    return ssh(name, place, words, str(node), str(worker))


def codes(state: str) -> list[str]:
    """Reads how the machines ended; `state` may hold a pattern."""
    return ["gcloud", "storage", "cat", f"{state}/exit/*"]


def forget(state: str) -> list[str]:
    """Removes how they ended, before they are started again."""
    return ["gcloud", "storage", "rm", f"{state}/exit/*", "--quiet"]


def saved_log(state: str, node: int, worker: int) -> list[str]:
    """Prints what a machine left in the bucket when its training ended."""
    return ["gcloud", "storage", "cat", f"{state}/log/{node}-{worker}"]


@dataclass(frozen=True)
class Resource:
    """What is known of a queued resource.

    Attributes:
      state: of the API; NOT_FOUND where there is none.
      error: why it failed, in Google's words.
      accelerator: such as v5litepod-16.
      nodes: slices.
    """

    state: str = MISSING
    error: str = ""
    accelerator: str = ""
    nodes: int = 0


def read_resource(text: str) -> Resource:
    """From the JSON of `describe`; a text without any is that of no resource."""
    return resource_of(json.loads(text)) if text.strip() else Resource()


def read_resources(text: str) -> dict[str, Resource]:
    """From the JSON of `list`, by name."""
    found = json.loads(text) if text.strip() else []
    return {row["name"].rpartition("/")[2]: resource_of(row) for row in found}


def resource_of(found: dict) -> Resource:
    """From a QueuedResource of the API."""
    state = found.get("state", {})
    data = next((value for key, value in state.items() if key.endswith("Data") and "error" in value), {})
    specs = found.get("tpu", {}).get("nodeSpec", [])
    nodes = sum(
        int(spec.get("multiNodeParams", spec.get("multisliceParams", {})).get("nodeCount", 1))
        for spec in specs
    )
    accelerator = specs[0].get("node", {}).get("acceleratorType", "") if specs else ""
    error = data.get("error", {}).get("message", "")
    return Resource(state.get("state", "STATE_UNSPECIFIED"), error, accelerator, nodes)


class Outcome(Enum):
    """How the processes of all machines stand, together."""

    RUNNING = "running"
    FINISHED = "finished"
    PREEMPTED = "saved and left"
    MISTAKE = "a mistake to correct"
    LOST = "processes were lost"
    KILLED = "killed"
    DEFECT = "a defect"


@dataclass(frozen=True)
class Progress:
    """Outcome of a training on all its machines.

    Attributes:
      outcome: of all.
      code: the exit code that decides.
      worker: SLICE-WORKER that left with it.
      reported: machines that said anything.
    """

    outcome: Outcome
    code: int | None = None
    worker: str | None = None
    reported: int = 0


def read_progress(text: str, name: str, workers: int) -> Progress:
    """From lines of `NAME SLICE-WORKER CODE`, where the code of a process that runs is `running`.

    One mistake or defect decides, at once: others wait for a process that has left, and are killed in the end. Apart from
    that nothing is decided before every machine has said how it ended.
    """
    rows = (line.split() for line in text.splitlines())
    said = {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == name}
    ended = {worker: int(code) for worker, code in sorted(said.items()) if code.isdecimal()}

    def first(outcome: Outcome, fits) -> Progress | None:
        return next(
            (Progress(outcome, code, who, len(said)) for who, code in ended.items() if fits(code)), None
        )

    decided = (
        first(Outcome.MISTAKE, lambda code: code == MISTAKE)
        or first(Outcome.DEFECT, lambda code: code not in (0, PREEMPTED, LOST) and code < 128)
        or first(Outcome.KILLED, lambda code: code >= 128)
        or first(Outcome.LOST, lambda code: code == LOST)
    )
    if decided:
        return decided
    if len(ended) < workers:
        return Progress(Outcome.RUNNING, reported=len(said))
    again = first(Outcome.PREEMPTED, lambda code: code == PREEMPTED)
    return again or Progress(Outcome.FINISHED, 0, reported=len(said))


class Action(Enum):
    """What to do next."""

    WAIT = "wait"
    RUN = "run"
    RECREATE = "recreate"
    FINISH = "finish"
    STOP = "stop"


def decide(resource: Resource, spot: bool, progress: Progress, ended_for: float = 0.0) -> tuple[Action, str]:
    """The state machine: what to do, and why.

    Args:
      resource: as Cloud TPU says.
      spot: whether it may be taken away at any time, and is asked for again then.
      progress: as the machines said.
      ended_for: seconds for which it is known that processes were lost or killed.
    """
    state, outcome = resource.state, progress.outcome
    if outcome is Outcome.FINISHED:
        return Action.FINISH, "the training has finished"
    if outcome is Outcome.MISTAKE:
        return Action.STOP, "the training was refused: a mistake to correct"
    if outcome is Outcome.DEFECT:
        return Action.STOP, "the training failed: a defect, which starting it again would repeat"
    if state in WAITING:
        return Action.WAIT, ""
    if state == "ACTIVE":
        if outcome is Outcome.PREEMPTED:
            return Action.RUN, "the training saved and left"
        if outcome is Outcome.LOST and ended_for >= PATIENCE:
            return Action.RUN, "processes were lost, and the machines are still there"
        if outcome is Outcome.KILLED and ended_for >= PATIENCE:
            return Action.STOP, "processes were killed, and the machines are still there"
        return Action.WAIT, ""
    if state == MISSING:
        return Action.STOP, "the resource is gone: somebody has deleted it"
    if state in ("SUSPENDED", "FAILED"):
        why = f"the resource is {state}" + (f" ({resource.error})" if resource.error else "")
        # What Google Cloud could not do now it may do later; what it does not allow, it never does.
        hopeless = state == "FAILED" and resource.error and kind_of(resource.error) not in (CAPACITY, OTHER)
        return (Action.RECREATE if spot and not hopeless else Action.STOP), why
    return Action.WAIT, f"an unknown state, {state}"
