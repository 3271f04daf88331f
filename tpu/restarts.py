"""What is known of the restarts of a job: kept in its bucket, so that whoever looks next goes on counting."""

import dataclasses
import json
from dataclasses import dataclass

KEPT = "watch"
"""Name of the file, beside those in which the machines say how they ended."""


@dataclass(frozen=True)
class Restarts:
    """Restarts of a job since it was created, or run, by hand.

    Attributes:
      used: how many.
      losses: when it was started again after processes were lost, in seconds since 1970.
      doubted: whether one of them followed an exit code 1.
      silent_since: when all machines were there first and none had said anything, in seconds since 1970.
      begun: run or recreate while it is being done, of which whoever began it may have done a half.
    """

    used: int = 0
    losses: tuple[float, ...] = ()
    doubted: bool = False
    silent_since: float | None = None
    begun: str | None = None

    def line(self, name: str) -> str:
        """As the file of the job of this name has it, in three words."""
        return f"{name} {KEPT} {json.dumps(dataclasses.asdict(self), separators=(',', ':'))}\n"


def read_restarts(text: str) -> dict[str, Restarts]:
    """By name of the job, from lines among which there are others; jobs without such a line are left out."""
    rows = [line.split() for line in text.splitlines()]
    found = {row[0]: json.loads(row[2]) for row in rows if len(row) == 3 and row[1] == KEPT}
    return {name: Restarts(**{**one, "losses": tuple(one["losses"])}) for name, one in found.items()}
