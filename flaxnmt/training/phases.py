"""Where the wall time of a run goes, by phase.

Every second belongs to one phase, over all starts of a run up to their last checkpoint: what was done after it is lost,
and counts nowhere. Updates run ahead of the device, so `step` is what the loop has left.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

import jax

from flaxnmt.training.meters import COMPILATION_EVENT

PHASES = ("init", "compile", "restore", "data", "step", "save", "evaluate")


class Phases:
    """Seconds by phase. Exactly one phase is on at any time, so that they add up to the wall time.

    init      start, joining the other processes, reading and tokenising data; what no other phase has
    compile   XLA, wherever it happens (tracing counts where it happens)
    restore   reading a checkpoint
    data      waiting for batches; what is loaded while the device computes costs nothing
    step      updates: what is left of the time in the loop, in which the device is waited for before a checkpoint alone, and
              else two updates late
    save      what a checkpoint keeps the loop from going on; the rest of it is written meanwhile
    evaluate  development and test sets
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since = PHASES[0], clock()
        self._lap = 0.0

    def __enter__(self) -> "Phases":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Time inside belongs to this phase, but for what an inner one takes."""
        outer = self._phase
        self._change(phase)
        try:
            yield
        finally:
            self._change(outer)

    def resume(self, earlier: dict[str, float]) -> None:
        """Adds what earlier processes of the run have spent."""
        for phase, seconds in earlier.items():
            self._spent[phase] += seconds

    def seconds(self) -> dict[str, float]:
        """Wall seconds of each phase so far."""
        self._change(self._phase)
        return dict(self._spent)

    def total(self) -> float:
        """Wall seconds of the run so far."""
        return sum(self.seconds().values())

    def lap(self) -> float:
        """Seconds of training, batches included, since the last lap."""
        spent = self.seconds()
        before, self._lap = self._lap, spent["data"] + spent["step"]
        return self._lap - before

    def _change(self, phase: str) -> None:
        now = self._clock()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def _listen(self, event: str, duration: float, **_: str | int) -> None:
        if event == COMPILATION_EVENT:
            self._spent["compile"] += duration
            self._spent[self._phase] -= duration


def goodput(seconds: dict[str, float]) -> float:
    """The share of the wall time that went into updates."""
    return seconds["step"] / max(sum(seconds.values()), 1e-9)
