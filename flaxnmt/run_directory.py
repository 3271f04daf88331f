"""A run directory, which describes itself: what a training leaves behind and what inference starts from.

config.json       the resolved configuration
run.json          command, versions, devices, mesh, parameter count, tokenizer hash, data
tokenizer/        the vocabularies
data/             the tokenised corpora
metrics.jsonl     losses, speeds, scores
checkpoints/      what training continues from
parameters.npz    what inference uses
labels.json       names of classes, of a model that classifies
dev.txt, test.txt translations of the last evaluation and of the test set
report.md, curves.png
profile/          traces, where they were asked for

A directory belongs to its configuration from the first checkpoint on, and to one training at a time, as far as a machine
can see. Checkpoints have checksums that do not depend on the mesh: a damaged one is reported, and the one before it used.
They are saved before an evaluation, whose score is added to their record. On a bucket checkpoints alone are written in
place (`experiments.bucket`), and readers copy what they are asked for (`flaxnmt.remote`). Opening a run touches no device.
"""

import json
import os
from pathlib import Path
from typing import Any

from flaxnmt.config import Config
from flaxnmt.config_io import from_dict, to_dict
from flaxnmt.data.concatenation import Breaks
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import RunError
from flaxnmt.remote import bring, is_address

CONFIG, RECORD, TOKENIZER, PARAMETERS = "config.json", "run.json", "tokenizer", "parameters.npz"
CHECKPOINTS, PROFILE = "checkpoints", "profile"
LABELS = "labels.json"
BUCKET = "bucket.txt"
"""In a local copy of a run directory that lies on a bucket: its address. The checkpoints are there alone."""


def write_json(path: Path, content: Any) -> None:
    """Writes a file that is whole or not there at all."""
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def local_run(directory: str | os.PathLike, *names: str) -> Path:
    """A run directory on this machine, with the files of these names where it has them.

    Of one at an address, such as gs://bucket/directory, its configuration and what is named is copied: only what is new.

    Raises:
      RunError: if there is no run at the address, or it cannot be read.
    """
    if not is_address(directory):
        return Path(directory)
    local = bring(str(directory), (CONFIG, *names), RunError)
    if not (local / CONFIG).exists():
        raise RunError(f"{directory}: no {CONFIG} there, so it is no run directory, or you may not see it")
    return local


def read_config(directory: Path) -> Config:
    """The configuration of a run.

    Raises:
      RunError: if the directory is missing, is no run, or its configuration cannot be read.
    """
    path = Path(directory) / CONFIG
    if not Path(directory).is_dir():
        raise RunError(f"{directory}: no such run directory; train one with python -m experiments.train")
    if not path.exists():
        raise RunError(
            f"{directory}: no {CONFIG} in it, so it is no run directory or training never started there"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no object in it")
        return from_dict(Config, content, f"{path}: config")
    except (ValueError, TypeError) as error:
        raise RunError(f"{path}: not a whole configuration ({error}); restore it or train again") from None


def save_config(directory: Path, config: Config) -> None:
    """Writes the configuration of a run."""
    write_json(directory / CONFIG, to_dict(config))


def load_vocabularies(directory: Path, config: Config) -> Vocabularies:
    """The vocabularies of a run, as its texts need them.

    Raises:
      RunError: where they are missing.
    """
    found = Vocabularies.load(directory / TOKENIZER)
    return Vocabularies(Breaks(found.source), Breaks(found.target)) if config.data.previous else found
