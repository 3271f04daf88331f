"""A trace of some updates, for TensorBoard's profiler or Perfetto."""

import os
from collections.abc import Callable
from typing import Any

import jax


class ProfiledStep:
    """An update that is traced while its number lies in a window; the trace is written where the window ends.

    Only there the device is waited for.
    """

    def __init__(self, step: Callable, window: tuple[int, int], directory: str | os.PathLike, done: int):
        """`done` updates are behind the run; `window` is the first and last number of those to trace."""
        self.step, self.window, self.directory = step, window, directory
        self._done, self._tracing = done, False

    def __enter__(self) -> "ProfiledStep":
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def __call__(self, *arguments: Any) -> Any:
        self._done += 1
        first, last = self.window
        if not self._tracing and first <= self._done <= last:
            jax.profiler.start_trace(os.fspath(self.directory))
            self._tracing = True
        results = self.step(*arguments)
        if self._tracing and self._done == last:
            jax.block_until_ready(results)
            self._stop()
        return results

    def _stop(self) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
