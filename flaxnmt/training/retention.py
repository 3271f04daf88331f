"""Which checkpoints stay: the newest, and the best by the metric."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["max", "min"]
Metrics = dict[int, float | None]


def retained(
    metrics: Metrics, keep_last: int, keep_best: int, mode: Mode, passing: Collection[int] = ()
) -> set[int]:
    """Steps to keep of step -> metric: the last ones, and the best of those that have a metric.

    Those that were saved in passing are not counted, and only the newest of all is kept even if it is one of them.
    """
    lasting = sorted(step for step in metrics if step not in passing)
    return {*lasting[-keep_last:], *ranked(metrics, mode)[:keep_best], *sorted(metrics)[-1:]}


def ranked(metrics: Metrics, mode: Mode) -> list[int]:
    """Steps that have a metric, best first; of equals the earlier."""
    sign = -1 if mode == "max" else 1
    scored = [(sign * x, step) for step, x in metrics.items() if x is not None and not math.isnan(x)]
    return [step for _, step in sorted(scored)]


@dataclass
class LastAndBest:
    """Orbax preservation policy over `retained`; what was found damaged is not kept.

    Orbax's own BestN keeps everything while there are few checkpoints, and only knows metrics that it stored.
    """

    keep_last: int
    keep_best: int
    mode: Mode
    metrics: Metrics = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    passing: set[int] = field(default_factory=set)

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        sound = {step: self.metrics.get(step) for step in steps if step not in self.damaged}
        keep = retained(sound, self.keep_last, self.keep_best, self.mode, self.passing)
        return [step in keep for step in steps]
