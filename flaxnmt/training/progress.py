"""One line about a run under way: loss, speed and time left."""

import sys
import time
from typing import TextIO

from tqdm import tqdm


def seconds_left(elapsed: float, done: int, total: int | None, budget: float | None) -> float | None:
    """Seconds until `total` steps or a `budget` of seconds, whichever is sooner; None if neither is known.

    `done` steps took `elapsed` seconds.
    """
    by_steps = [elapsed / done * (total - done)] if total is not None and done else []
    by_time = [budget - elapsed] if budget is not None else []
    return max(min(by_steps + by_time), 0.0) if by_steps or by_time else None


class Progress:
    """A tqdm bar on a terminal (or if `bar` is True); elsewhere one plain line per update.

    `total` counts steps from the run's start, of which `initial` were done earlier; `budget` is the seconds
    that are left to this run. Only the first process should show it (`show`).
    """

    def __init__(
        self,
        total: int | None,
        initial: int = 0,
        budget: float | None = None,
        bar: bool | None = None,
        show: bool = True,
        stream: TextIO | None = None,
    ):
        self._stream = stream or sys.stderr
        self._total, self._initial, self._budget, self._show = total, initial, budget, show
        self._start = time.monotonic()
        wanted = self._stream.isatty() if bar is None else bar
        form = "{percentage:3.0f}% |{bar}| {desc}" if total else "{desc}"
        self._bar = tqdm(
            total=total,
            initial=initial,
            file=self._stream,
            disable=not (wanted and show),
            bar_format=form,
            dynamic_ncols=True,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show the state after `step`: loss per target token, target tokens/s."""
        elapsed = time.monotonic() - self._start
        total = None if self._total is None else self._total - self._initial
        left = seconds_left(elapsed, step - self._initial, total, self._budget)
        parts = [
            f"step {step}" + (f"/{self._total}" if self._total else ""),
            f"loss {loss:.3f}",
            f"{tokens_per_second:,.0f} tokens/s",
            *([f"{tqdm.format_interval(left)} left"] if left is not None else []),
        ]
        line = " · ".join(parts)
        if not self._bar.disable:
            self._bar.set_description_str(line, refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._show:
            print(line, file=self._stream, flush=True)

    def say(self, line: str) -> None:
        """A line of its own, such as an evaluation's scores, that leaves the bar whole."""
        if self._show:
            tqdm.write(line, file=self._stream)
