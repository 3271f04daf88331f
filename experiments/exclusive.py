"""A directory that belongs to one process at a time, as far as this machine knows."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flaxnmt.errors import RunError

PATIENCE = 10.0
"""Seconds in which a training that was killed may still be on its way out of its directory."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def alone(directory: Path, name: str) -> Iterator[None]:
    """Keeps others out of a directory; the system lets go of that of a process that is killed.

    Raises:
      RunError: if another training is in it, whose run is called by this name.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise RunError(
                    f"{name}: another training is at work there: wait for its end, or give another --run"
                )
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some file systems of networks have no locks.
        log.debug("the run directory cannot be locked: %s", error)
    return True
