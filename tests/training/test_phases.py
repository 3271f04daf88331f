"""Seconds by phase, and the trace of a window of updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.training.phases import PHASES, Phases, goodput
from flaxnmt.training.profiling import ProfiledStep


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_every_second_belongs_to_one_phase():
    clock = Clock()
    phases = Phases(clock)
    clock.passes(1)
    with phases.within("step"):
        clock.passes(2)
        with phases.within("evaluate"):
            clock.passes(4)
            with phases.within("save"):
                clock.passes(8)
            clock.passes(16)
        clock.passes(32)
    clock.passes(64)
    expected = dict.fromkeys(PHASES, 0.0) | {"init": 65, "step": 34, "evaluate": 20, "save": 8}
    assert phases.seconds() == expected and phases.total() == 127 == sum(expected.values())
    phases.resume({"init": 1, "step": 66})
    assert phases.seconds() == expected | {"init": 66, "step": 100}
    assert goodput(phases.seconds()) == pytest.approx(100 / 194)


def test_laps_are_of_updates_and_their_batches():
    clock = Clock()
    phases = Phases(clock)
    phases.resume({"step": 1000})
    phases.lap()
    for _ in range(2):
        with phases.within("step"):
            clock.passes(1)
            with phases.within("data"):
                clock.passes(2)
            with phases.within("evaluate"):
                clock.passes(4)
        assert phases.lap() == 3


def test_what_xla_takes_is_moved_to_its_phase():
    with Phases() as phases, phases.within("step"):
        jax.jit(lambda x: jnp.sin(x) @ x)(np.ones((3, 3), np.float32))
        found = phases.seconds()
        assert found["compile"] > 0
        assert sum(found.values()) == pytest.approx(phases.total(), abs=0.1)
    jax.jit(lambda x: jnp.cos(x) @ x)(np.ones((3, 3), np.float32))
    assert phases.seconds()["compile"] == found["compile"]


def test_the_window_is_traced_and_nothing_else(tmp_path):
    numbers = []

    def step(state, batches):
        numbers.append(any(tmp_path.rglob("*.xplane.pb")))
        return state + len(batches), {}

    # A run that continues within the window, and goes beyond.
    with ProfiledStep(step, (3, 6), tmp_path, done=4) as profiled:
        state = jnp.zeros(())
        for _ in range(4):
            state, _ = profiled(state, [1])
    assert state == 4 and numbers == [False, False, True, True]
    # A run that ends before the window does.
    with ProfiledStep(step, (2, 9), tmp_path / "other", done=0) as profiled:
        profiled(profiled(state, [1])[0], [1])
    assert len([*(tmp_path / "other").rglob("*.xplane.pb")]) == 1
