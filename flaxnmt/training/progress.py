"""One line about a run under way: loss, speed and time left."""

import sys
import time
from collections import deque
from typing import TextIO

from tqdm import tqdm

RECENT = 20
"""Updates of the line by which the pace is judged: compilation at the start of a run says nothing about its rest."""


def seconds_left(pace: float | None, steps: int | None, budget: float | None) -> float | None:
    """Seconds until `steps` of `pace` seconds each are done or `budget` seconds are over; None if neither is known."""
    by_steps = [pace * steps] if pace is not None and steps is not None else []
    by_time = [budget] if budget is not None else []
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
        self._total, self._budget, self._show = total, budget, show
        self._start = time.monotonic()
        self._marks = deque([(initial, self._start)], maxlen=RECENT + 1)
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
        now = time.monotonic()
        self._marks.append((step, now))
        before, then = self._marks[0]
        left = seconds_left(
            (now - then) / (step - before) if step > before else None,
            None if self._total is None else self._total - step,
            None if self._budget is None else self._budget - (now - self._start),
        )
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
