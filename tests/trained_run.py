"""Runs that the command itself trains without interruption, each once for all tests that ask for it."""

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_runs import TINY, TINY_DISCOURSE, TINY_DOCUMENTS, finish, start, write_corpus, write_documents

from flaxnmt import open_run

WHOLE_RUN = (
    "--max-epochs 20 --training.evaluate-every 40 --training.checkpoint-every 10 --training.log-every 1 "
    "--training.metric loss"
).split()
WHOLE_DOCUMENT_RUN = (
    "--max-steps 80 --training.evaluate-every 40 --training.checkpoint-every 10 --training.log-every 1 "
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


def train_once(factory: pytest.TempPathFactory, name: str, arguments: Callable[[Path], list[str]]) -> Trained:
    """A run with what these arguments say, given a directory for its corpus."""
    folder = factory.getbasetemp()
    # The workers of pytest-xdist share what the first of them trains.
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    folder.mkdir(exist_ok=True)
    streams = folder / "out", folder / "err"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given = arguments(folder / "data")
        if not streams[1].exists():
            written = finish(start("experiments.train", *given, "--run", str(folder / "run")))
            for path, text in zip(streams, written, strict=True):
                path.write_text(text, encoding="utf-8")
    return Trained(folder / "run", given, *(path.read_text(encoding="utf-8") for path in streams))


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    return train_once(tmp_path_factory, "endtoend", lambda data: [*TINY, *write_corpus(data), *WHOLE_RUN])


@pytest.fixture(scope="session")
def opened(trained):
    return open_run(trained.directory)


@pytest.fixture(scope="session")
def trained_documents(trained, tmp_path_factory) -> Trained:
    """A model of documents, from the parameters of the model of sentences."""
    start = ["--init-from", str(trained.directory)]
    return train_once(
        tmp_path_factory,
        "documents",
        lambda data: [*TINY_DOCUMENTS, *write_documents(data), *WHOLE_DOCUMENT_RUN, *start],
    )


@pytest.fixture(scope="session")
def opened_documents(trained_documents):
    return open_run(trained_documents.directory)


@pytest.fixture(scope="session")
def trained_discourse(tmp_path_factory) -> Trained:
    """A model of documents of the embedded corpus."""
    return train_once(tmp_path_factory, "discourse", lambda data: TINY_DISCOURSE)
