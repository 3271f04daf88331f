"""Some updates as a row of metrics, without waiting for the device."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from flaxnmt.training.meters import rates

SIDES = ("source", "target", "tokens")
"""Arrays of a batch whose symbols are counted."""


@dataclass
class Interval:
    """Updates since the last row of metrics; device numbers are left where they are."""

    metrics: list[dict] = field(default_factory=list)
    tokens: int = 0
    slots: int = 0
    flops: int = 0

    def add(self, metrics: dict, batches: list[dict], flops: int) -> None:
        self.metrics.append(metrics)
        self.flops += flops
        sides = [batch[side] for batch in batches for side in SIDES if side in batch]
        self.tokens += sum(int(np.count_nonzero(ids)) for ids in sides)
        self.slots += sum(ids.size for ids in sides)

    def row(self, seconds: float, peak: float, known: dict) -> tuple[dict, str, Callable[[dict], dict]]:
        """Arguments of `MetricsWriter.write_later`: device numbers, kind, and what makes a row of them on the host.

        Args:
          seconds: that the updates took.
          peak: FLOP/s of all devices.
          known: what the row says beside.
        """

        def derive(values: dict) -> dict:
            steps = values["metrics"]
            tokens = sum(step["tokens"] for step in steps)
            # Updates that were dropped say nothing of the model, unless there are no others.
            counted = [step for step in steps if not step["bad_in_a_row"]] or steps
            weight = max(sum(step["tokens"] for step in counted), 1)
            means = {
                name: sum(step[name] * step["tokens"] for step in counted) / weight
                for name in steps[0] if name not in ("tokens", "learning_rate", "bad_steps", "bad_in_a_row")
            }  # fmt: skip
            last = {name: steps[-1][name] for name in ("learning_rate", "bad_steps")}
            speed = rates(seconds, len(steps), tokens, self.tokens, self.slots, self.flops, peak)
            return means | last | speed | known

        return {"metrics": self.metrics}, "train", derive
