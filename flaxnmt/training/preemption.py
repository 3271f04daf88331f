"""Stopping in time: a signal asks for a save, and every host stops after the same update."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

PREEMPTED = 42
"""Exit code of a run that saved and left because it was asked to: start it again."""


class Preemption:
    """Context in which SIGTERM (and a first SIGINT) is a request to save and leave.

    With one process a handler sets a flag; a second SIGINT interrupts as usual, and the earlier handlers come
    back at the end. Under `jax.distributed` JAX owns SIGTERM: it tells all hosts, which agree on one step to
    stop after, so `requested` must be polled at every step, in the same order on every host.
    """

    def __init__(self):
        self._asked = threading.Event()
        self._earlier: dict[int, object] = {}

    def __enter__(self) -> "Preemption":
        # Python only lets the main thread set handlers; elsewhere (a notebook's worker) nothing is caught.
        if not jax.distributed.is_initialized() and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._earlier[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_) -> None:
        for number in list(self._earlier):
            self._give_back(number)

    @property
    def asked(self) -> bool:
        """Whether this process alone was asked; of several none knows, JAX does."""
        return self._asked.is_set()

    def requested(self, step: int) -> bool:
        """Whether to save and leave now, after update `step`; the same answer on every host."""
        if jax.distributed.is_initialized():
            return multihost_utils.reached_preemption_sync_point(step)
        return self.asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()
        if number == signal.SIGINT:
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        # A handler that was not set from Python reads as None and can only be replaced by the default.
        handler = self._earlier.pop(number)
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """While there is nothing to save, SIGTERM leaves with the exit code that asks to be started again.

    `Preemption` replaces this by a save. With several processes JAX owns the signal.
    """
    if jax.distributed.is_initialized() or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_):
        raise SystemExit(PREEMPTED)

    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
