"""A run that was trained without interruption by the command itself, once for all tests that ask for it."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_runs import TINY, finish, start, write_corpus

from flaxnmt import open_run

WHOLE_RUN = (
    "--max-epochs 20 --training.evaluate-every 40 --training.checkpoint-every 10 --training.log-every 1 "
    "--training.metric loss"
).split()


@dataclass(frozen=True)
class Trained:
    """Attributes:
    directory: of the run.
    arguments: of the command, without the run directory.
    out, err: what the command wrote.
    """

    directory: Path
    arguments: list[str]
    out: str
    err: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.getbasetemp()
    # The workers of pytest-xdist share what the first of them trains.
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "endtoend"
    folder.mkdir(exist_ok=True)
    streams = folder / "out", folder / "err"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arguments = [*TINY, *write_corpus(folder / "data"), *WHOLE_RUN]
        if not streams[1].exists():
            written = finish(start("experiments.train", *arguments, "--run", str(folder / "run")))
            for path, text in zip(streams, written, strict=True):
                path.write_text(text, encoding="utf-8")
    return Trained(folder / "run", arguments, *(path.read_text(encoding="utf-8") for path in streams))


@pytest.fixture(scope="session")
def opened(trained):
    return open_run(trained.directory)
