"""A run of two processes, each with its own device, that find each other by an address."""

import signal
import socket
import time

import pytest
from tiny_runs import TINY, finish, start, write_corpus

from flaxnmt.training.metrics import read_metrics

STEPS = 40
OPTIONS = "--training.evaluate-every 20 --training.checkpoint-every 10 --training.log-every 1 --training.metric loss".split()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def train(run, arguments, *options):
    return start("experiments.train", *TINY, *arguments, *OPTIONS, "--run", str(run), *map(str, options))


def train_by_two(run, arguments, *options):
    cluster = "--coordinator", f"127.0.0.1:{free_port()}", "--processes", 2
    return [train(run, arguments, *cluster, "--process", process, *options) for process in range(2)]


def newest(run) -> int:
    return max((int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def losses(run, kind) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_metrics(run) if row["kind"] == kind}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def test_two_train_as_one_stop_together_and_leave_to_one(corpus, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    finish(train(alone, corpus, "--max-steps", STEPS))
    # No end in sight: the signal has to end them.
    processes = train_by_two(together, corpus, "--max-steps", 100000)
    try:
        deadline = time.monotonic() + 240
        while newest(together) < 10:
            assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
            time.sleep(0.005)
        processes[1].send_signal(signal.SIGTERM)
        (_, err), (_, quiet) = (finish(process, code=42) for process in processes)
    finally:
        for process in processes:
            process.kill()
    stopped = newest(together)
    assert f"asked to stop: saved at step {stopped}; the same command continues" in err
    assert "devices: 2 x cpu as data 2" in err
    end = max(stopped + 5, STEPS)
    finish(train(together, corpus, "--max-steps", end))
    one, two = losses(alone, "train"), losses(together, "train")
    assert sorted(two) == list(range(1, end + 1))
    assert [two[step] for step in one] == pytest.approx(list(one.values()), abs=1e-5)
    for step, loss in losses(alone, "dev").items():
        assert losses(together, "dev")[step] == pytest.approx(loss, abs=1e-5)
