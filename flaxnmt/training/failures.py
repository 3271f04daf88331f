"""Failures of Orbax and tensorstore, as one short line each and without their tracebacks."""

import contextlib
import errno
import gc
import logging
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def leftovers_unsaid() -> Iterator[None]:
    """Say nothing of parallel reads and writes that the first error of a checkpoint leaves behind.

    They end in a closed event loop, and each would print a traceback. Anything else is reported as before.
    """
    earlier = sys.unraisablehook
    asyncio_log = logging.getLogger("asyncio")
    sys.unraisablehook = lambda unraisable: None if _is_leftover(unraisable) else earlier(unraisable)
    asyncio_log.addFilter(_is_no_leftover_record)
    try:
        yield
    finally:
        sys.unraisablehook = earlier
        asyncio_log.removeFilter(_is_no_leftover_record)


def _is_leftover(unraisable) -> bool:
    code = getattr(unraisable.object, "cr_code", None)
    of_orbax = code is not None and f"{os.sep}orbax{os.sep}" in code.co_filename
    return of_orbax or str(unraisable.exc_value) == "Event loop is closed"


def _is_no_leftover_record(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()


def let_leftovers_end() -> None:
    """Give them a moment, and collect them."""
    time.sleep(0.1)
    gc.collect()


def try_read(read: Callable[[], dict]) -> tuple[dict | None, str | None]:
    """(value, None), or (None, the first error in short) of a read that runs in parallel inside."""
    with leftovers_unsaid():
        try:
            return read(), None
        except Exception as caught:  # Orbax and tensorstore raise anything from KeyError to ValueError
            error = in_short(caught)
        let_leftovers_end()
        return None, error


def save_failure(error: BaseException) -> str:
    """Why a save failed, in a few words."""
    for number, what in {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}.items():
        if getattr(error, "errno", None) == number or os.strerror(number) in str(error):
            return f"{what}: free some space and start the same command again"
    return in_short(error)


def in_short(error: BaseException) -> str:
    """The start of an error, in one line, without tensorstore's dump of its settings."""
    text = re.split(r" \[tensorstore_spec|See full TensorStore", " ".join(str(error).split()))[0]
    return f"{type(error).__name__}: {textwrap.shorten(text, 160, placeholder=' ...')}"
