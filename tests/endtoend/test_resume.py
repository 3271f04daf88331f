"""The same command again continues, and ends where an unbroken run ends, bit for bit."""

import random
import signal

import jax
import numpy as np
import pytest
from interruptions import (
    after_the_start,
    assert_same_run,
    before_the_first_checkpoint,
    completed,
    end_live,
    kill,
    progress,
    while_saving,
)
from tiny_runs import TINY, finish, start, write_corpus

from experiments.loop import Loop
from experiments.train import main
from flaxnmt.errors import RunError
from flaxnmt.training.export import read_parameters
from flaxnmt.training.metrics import read_metrics
from flaxnmt.training.preemption import Preemption, leaving_at_once


def test_a_stop_leaves_no_trace(trained, tmp_path):
    run = tmp_path / "run"
    code, err = end_live(trained.arguments, run, lambda: completed(run) != [], signal.SIGTERM)
    assert code == 42 and "Traceback" not in err
    stopped = completed(run)[-1]
    assert stopped < 200 and f"asked to stop: saved at step {stopped}; the same command continues" in err
    _, err = finish(start("experiments.train", *trained.arguments, "--run", str(run)))
    assert f"continues {run} from step {stopped}" in err
    assert_same_run(run, trained.directory)
    events = [row["event"] for row in read_metrics(run) if row["kind"] == "event"]
    assert events == ["started", "preempted", "started", "finished"]


@pytest.mark.slow
def test_kills_and_stops_leave_no_trace(trained, tmp_path):
    run = tmp_path / "run"
    kill(trained.arguments, run, while_saving(run, later=10, delay=0.002))
    half = completed(run)[-1]
    code, err = end_live(trained.arguments, run, lambda: completed(run)[-1] > half, signal.SIGTERM)
    assert code == 42
    stopped = completed(run)[-1]
    assert (
        half < stopped < 200 and f"asked to stop: saved at step {stopped}; the same command continues" in err
    )
    assert f"continues {run} from step {half}" in err and "Traceback" not in err
    finish(start("experiments.train", *trained.arguments, "--run", str(run)))
    assert_same_run(run, trained.directory)
    events = [row["event"] for row in read_metrics(run) if row["kind"] == "event"]
    assert events == ["started", "started", "preempted", "started", "finished"]


def test_a_stop_before_the_first_update_asks_for_another_start():
    earlier = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, leaving_at_once():
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 42 and signal.getsignal(signal.SIGTERM) is earlier


@pytest.mark.slow
def test_who_asks_to_stop_does_not_wait_for_an_evaluation(tmp_path, monkeypatch):
    options = (
        "--max-steps 4 --training.evaluate-every 2 --training.log-every 1 --training.metric loss".split()
    )
    arguments = [*TINY, *write_corpus(tmp_path / "data"), *options]
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    assert main([*arguments, "--run", str(unbroken)]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Preemption, "requested", lambda self, step: step == 2)
        assert main([*arguments, "--run", str(run)]) == 42
    assert completed(run) == [2] and "dev" not in {row["kind"] for row in read_metrics(run)}
    assert main([*arguments, "--run", str(run)]) == 0
    assert_same_run(run, unbroken)


@pytest.mark.slow
def test_who_asks_in_the_last_evaluation_does_not_wait_for_the_end(tmp_path, monkeypatch):
    options = "--max-steps 1 --training.evaluate-every 1 --training.metric loss".split()
    arguments = [*TINY, *write_corpus(tmp_path / "data"), *options, "--run", str(tmp_path / "run")]
    evaluate = Loop._evaluate

    def evaluated(loop, *rest):
        signal.raise_signal(signal.SIGTERM)
        evaluate(loop, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_evaluate", evaluated)
        assert main(arguments) == 42
    assert completed(tmp_path / "run") == [1]
    events = [row.get("event") for row in read_metrics(tmp_path / "run")]
    assert "preempted" in events and "finished" not in events
    assert main(arguments) == 0
    assert [row["step"] for row in read_metrics(tmp_path / "run") if row["kind"] == "dev"] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_who_ends_in_an_evaluation_has_its_updates(tmp_path, monkeypatch, moment):
    options = (
        "--max-steps 4 --training.evaluate-every 2 --training.log-every 1 --training.metric loss".split()
    )
    arguments = [*TINY, *write_corpus(tmp_path / "data"), *options]
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    assert main([*arguments, "--run", str(unbroken)]) == 0
    evaluate = Loop._evaluate

    def ends(self, state, step, history):
        if moment == "after":
            evaluate(self, state, step, history)
        raise RunError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_evaluate", ends)
        assert main([*arguments, "--run", str(run)]) == 2
    assert completed(run) == [2]
    assert main([*arguments, "--run", str(run)]) == 0
    assert_same_run(run, unbroken)
    assert [row["step"] for row in read_metrics(run) if row["kind"] == "dev"] == [2, 4]


@pytest.mark.slow
def test_the_mean_of_the_last_checkpoints_knows_nothing_of_a_stop(tmp_path, monkeypatch):
    options = (
        "--max-steps 6 --training.evaluate-every 6 --training.checkpoint-every 2 --training.metric loss "
        "--training.average last --training.average-count 3"
    ).split()
    arguments = [*TINY, *write_corpus(tmp_path / "data"), *options]
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    assert main([*arguments, "--run", str(unbroken)]) == 0
    for stop in (3, 5, 6):
        with monkeypatch.context() as patch:
            patch.setattr(Preemption, "requested", lambda self, step, stop=stop: step == stop)
            assert main([*arguments, "--run", str(run)]) == 42
    assert main([*arguments, "--run", str(run)]) == 0
    one, other = (read_parameters(place / "parameters.npz") for place in (run, unbroken))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    for place in (run, unbroken):
        (said,) = [row["set"] for row in read_metrics(place) if "set" in row]
        assert said == "dev, mean of steps 2 4 6"


@pytest.mark.slow
def test_ten_kills_and_a_limit_leave_no_trace(trained, tmp_path):
    arguments = [*trained.arguments, "--max-epochs", "120"]
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    finish(start("experiments.train", *arguments, "--run", str(unbroken)))
    kill(arguments, run, before_the_first_checkpoint(run))
    draw = random.Random()
    for _ in range(3):
        kill(arguments, run, while_saving(run, later=10, delay=draw.random() * 0.005))
    limit = 40 * (completed(run)[-1] // 40) + 80
    finish(start("experiments.train", *arguments, "--run", str(run), "--max-steps", str(limit)))
    assert completed(run)[-1] == limit and progress(run, limit)["step"] == limit
    for _ in range(6):
        kill(arguments, run, after_the_start(run, delay=draw.random() * 1.5))
    finish(start("experiments.train", *arguments, "--run", str(run)))
    assert_same_run(run, unbroken)
