"""The record of a run, its meters and its progress line."""

import io
import json
import logging
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.errors import RunError
from flaxnmt.training.meters import CompilationCounter, measure_matmul_peak, rates
from flaxnmt.training.metrics import FILE, MetricsWriter, read_metrics
from flaxnmt.training.progress import Progress, seconds_left


def steps_of(directory, kind):
    return [row["step"] for row in read_metrics(directory) if row["kind"] == kind]


def test_rows_come_back_in_order_with_their_values(tmp_path):
    assert read_metrics(tmp_path) == []
    with MetricsWriter(tmp_path / "run") as writer:
        writer.write(10, "dev", {"loss": 1.5, "bleu": {"score": 30.5}})
        writer.event(10, "saved", size=3)
    first, second = read_metrics(tmp_path / "run")
    assert first["time"] <= second["time"]
    assert first | {"time": 0} == {
        "step": 10, "time": 0, "kind": "dev", "loss": 1.5, "bleu": {"score": 30.5}
    }  # fmt: skip
    assert second | {"time": 0} == {"step": 10, "time": 0, "kind": "event", "event": "saved", "size": 3}


def test_numbers_that_are_not_finite_are_null(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        row = writer.write(1, "dev", {"loss": float("nan"), "by": [{"x": float("-inf")}, 2.5], "ok": True})
    assert math.isnan(row["loss"])

    def refuse(name):
        raise ValueError(name)

    (found,) = (
        json.loads(line, parse_constant=refuse) for line in (tmp_path / FILE).read_text().splitlines()
    )
    assert (found["loss"], found["by"], found["ok"]) == (None, [{"x": None}, 2.5], True)


def test_later_rows_wait_for_the_next_one(tmp_path):
    sums = jax.jit(lambda n: {"loss": n * 6.0, "tokens": n * 4})
    ratio = {"derive": lambda host: {"loss": host["loss"] / host["tokens"]}}
    with MetricsWriter(tmp_path) as writer:
        assert writer.write_later(1, sums(jnp.int32(1)), **ratio) == []
        assert read_metrics(tmp_path) == []
        (row,) = writer.write_later(2, sums(jnp.int32(2)) | {"seconds": 0.5})
        assert (row["step"], row["loss"]) == (1, 1.5)
        assert steps_of(tmp_path, "train") == [1]
        writer.write(2, "dev", {"loss": 2.0})
    assert [(row["step"], row["kind"]) for row in read_metrics(tmp_path)] == [
        (1, "train"),
        (2, "train"),
        (2, "dev"),
    ]
    assert read_metrics(tmp_path)[1]["tokens"] == 8 and read_metrics(tmp_path)[1]["seconds"] == 0.5


def test_handing_over_does_not_wait_for_the_device(tmp_path):
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 60, lambda _, y: y @ y / 1000, x).sum()

    x = jnp.ones((700, 700))
    slow(x).block_until_ready()
    with MetricsWriter(tmp_path) as writer:
        result = slow(x)
        writer.write_later(1, {"value": result})
        assert not result.is_ready(), "the hand-over waited (or the product is too quick for this test)"
    assert np.isfinite(read_metrics(tmp_path)[0]["value"])


@pytest.mark.parametrize("torn", [b'{"step": 3, "ti', b'{"step": 3}', b"\x00\x00\x00", b"\n"])
def test_a_torn_last_line_is_repaired(tmp_path, torn):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, "train", {})
        writer.write(2, "train", {})
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    assert steps_of(tmp_path, "train") == [1, 2]
    with MetricsWriter(tmp_path) as writer:
        writer.write(3, "train", {})
    assert steps_of(tmp_path, "train") == [1, 2, 3]
    assert [json.loads(line)["step"] for line in (tmp_path / FILE).read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("line", ["", "{", "3"])
def test_a_bad_line_among_others_is_named_and_loses_none_of_them(tmp_path, line):
    path = tmp_path / FILE
    path.write_text(f'{{"step": 1, "kind": "train"}}\n{line}\n{{"step": 2, "kind": "train"}}\n')
    before = path.read_bytes()
    for action in (read_metrics, MetricsWriter):
        with pytest.raises(RunError, match=f"{FILE}:2: not a row of a record; take the line out"):
            action(tmp_path)
    assert path.read_bytes() == before


def test_resuming_drops_later_rows_but_not_events(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in range(1, 6):
            writer.write(step, "train", {})
        writer.event(5, "preempted")
    with MetricsWriter(tmp_path, resume_step=3) as writer:
        writer.write(4, "train", {})
    assert steps_of(tmp_path, "train") == [1, 2, 3, 4]
    assert steps_of(tmp_path, "event") == [5]
    with MetricsWriter(tmp_path, resume_step=4) as writer:
        writer.write(4, "dev", {})
    with MetricsWriter(tmp_path, resume_step=4):
        assert steps_of(tmp_path, "dev") == [4]
    with MetricsWriter(tmp_path, resume_step=4, again=("dev", "test")):
        assert steps_of(tmp_path, "dev") == [] and steps_of(tmp_path, "train")[-1] == 4
    with MetricsWriter(tmp_path, resume_step=0):
        pass
    assert steps_of(tmp_path, "train") == []
    assert os.listdir(tmp_path) == [FILE]


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    with MetricsWriter(tmp_path, tensorboard=True) as writer:
        writer.write(
            1, "train", {"loss": 2.5, "note": "text", "bleu": {"score": 31.5, "signature": "nrefs:1"}}
        )
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert b"train/loss" in content and np.float32(2.5).tobytes() in content
    assert b"train/bleu" in content and np.float32(31.5).tobytes() in content
    assert b"train/note" not in content


def test_rates_are_quotients_of_sums():
    found = rates(seconds=2.0, steps=4, target_tokens=300, tokens=600, slots=800, flops=1e9, peak=2e9)
    assert found == {"step_seconds": 0.5, "target_tokens_per_second": 150, "padding": 0.25, "mfu": 0.25}
    assert "mfu" not in rates(seconds=2.0, steps=4, target_tokens=300, tokens=600, slots=800)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_matmul_peak_is_at_least_that_of_a_product(dtype):
    peak = measure_matmul_peak(dtype, budget=0.05)
    assert 1e9 < peak < 1e16


def test_compilations_are_counted_and_named_after_warm_up(caplog):
    def doubled(x):
        return x * 2

    def trebled(x):
        return x * 3

    x, y = np.ones(3, np.float32), np.ones(4, np.float32)
    with CompilationCounter() as counter, caplog.at_level(logging.WARNING):
        first, second = jax.jit(doubled), jax.jit(trebled)
        first(x)
        first(x)
        assert (counter.total, counter.late) == (1, [])
        counter.warm()
        first(x)
        assert counter.late == []
        first(y)
        second(x)
    assert counter.total == 3
    assert ["doubled" in counter.late[0], "trebled" in counter.late[1]] == [True, True]
    assert "trebled" in caplog.records[-1].getMessage()
    jax.jit(lambda x: x * 4)(x)
    assert counter.total == 3


def test_time_left_is_the_sooner_of_steps_and_budget():
    assert seconds_left(pace=2, steps=15, budget=None) == 30
    assert seconds_left(pace=2, steps=15, budget=25) == 25
    assert seconds_left(pace=2, steps=None, budget=-5) == 0
    assert seconds_left(pace=2, steps=None, budget=None) is None
    assert seconds_left(pace=None, steps=15, budget=None) is None


def test_time_left_is_judged_by_the_last_updates(monkeypatch):
    clock = iter([0.0, 600.0, *(600.0 + 10 * n for n in range(1, 31))])
    monkeypatch.setattr("flaxnmt.training.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress(1000, stream=stream) as progress:
        for step in range(10, 311, 10):
            progress.update(step, 1.0, 1.0)
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith(" 16:30:00 left") and lines[-1].endswith(" 11:30 left")


def test_without_a_terminal_the_line_is_plain():
    stream = io.StringIO()
    with Progress(100, initial=40, stream=stream) as progress:
        progress.update(50, 3.14159, 12345.6)
        progress.say("dev: BLEU 30.1")
    line, said = stream.getvalue().splitlines()
    assert line.startswith("step 50/100 · loss 3.142 · 12,346 tokens/s · ") and line.endswith(" left")
    assert said == "dev: BLEU 30.1"


def test_a_bar_on_demand_shows_the_same():
    stream = io.StringIO()
    with Progress(100, initial=40, bar=True, stream=stream) as progress:
        progress._bar.mininterval = 0
        progress.update(50, 3.14159, 12345.6)
    assert " 50% |" in stream.getvalue() and "loss 3.142 · 12,346 tokens/s" in stream.getvalue()


def test_only_the_first_process_shows_anything():
    stream = io.StringIO()
    with Progress(100, bar=True, show=False, stream=stream) as progress:
        progress.update(50, 3.1, 1.0)
        progress.say("nothing")
    assert stream.getvalue() == ""
