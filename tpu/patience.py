"""How long what fails now and then is tried again: ever more slowly, and not for ever."""

import time
from collections.abc import Callable
from dataclasses import dataclass

HOUR = 3600.0
LONGEST_DELAY = 600.0

UNREACHED = 75
"""Exit code where nobody could be asked for an hour: that of sysexits.h for what may be tried again later."""


def pause(delay: float, failures: int) -> float:
    """Seconds until the next look: `delay`, doubled with every failure in a row, up to ten minutes."""
    return min(delay * 2 ** min(failures, 10), max(delay, LONGEST_DELAY))


@dataclass
class Outage:
    """Failures in a row of programs that are asked.

    Attributes:
      clock: seconds.
      failures: so far.
    """

    clock: Callable[[], float] = time.time
    failures: int = 0
    _since: float | None = None

    def over(self) -> None:
        """Forgets them: an answer has come."""
        self.failures, self._since = 0, None

    def lasts(self, limited: bool = True) -> bool:
        """Counts a failure; whether those in a row have gone on for an hour.

        Args:
          limited: whether it counts for that hour; what is waited for without end does not, and ends it.
        """
        self.failures += 1
        if not limited:
            self._since = None
            return False
        if self._since is None:
            self._since = self.clock()
        return self.clock() - self._since >= HOUR
