"""A run of two processes, each with its own device, that find each other by an address."""

import signal
import socket
import time

import pytest
from tiny_runs import finish, start

from flaxnmt.training.metrics import read_metrics


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def train_by_two(run, arguments) -> list:
    cluster = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    return [
        start("experiments.train", *arguments, "--run", str(run), *cluster, process) for process in ("0", "1")
    ]


def newest(run) -> int:
    return max((int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def losses(run, kind) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_metrics(run) if row["kind"] == kind}


def test_two_train_as_one_stop_together_and_leave_to_one(trained, tmp_path):
    run = tmp_path / "run"
    processes = train_by_two(run, trained.arguments)
    try:
        deadline = time.monotonic() + 240
        while newest(run) < 10:
            assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
            time.sleep(0.005)
        processes[1].send_signal(signal.SIGTERM)
        (_, first), (_, second) = (finish(process, code=42) for process in processes)
    finally:
        for process in processes:
            process.kill()
    stopped = newest(run)
    assert stopped < 200 and f"asked to stop: saved at step {stopped}; the same command continues" in first
    assert "devices: 2 x cpu as data 2" in first
    # The second says nothing; that a signal came is said by JAX.
    assert [line for line in second.splitlines() if "SIGTERM caught" not in line] == []
    end = 40 * (stopped // 40) + 40
    finish(start("experiments.train", *trained.arguments, "--run", str(run), "--max-steps", str(end)))
    for kind in ("train", "dev"):
        expected = {step: loss for step, loss in losses(trained.directory, kind).items() if step <= end}
        found = losses(run, kind)
        assert found.keys() == expected.keys() and max(found) == end
        assert list(found.values()) == pytest.approx(list(expected.values()), abs=1e-5)
