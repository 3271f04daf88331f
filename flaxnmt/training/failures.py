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
def _no_hooks() -> Iterator[None]:
    """What asyncio, tensorstore's threads and the interpreter would print on their own is left out."""
    hooks = sys.excepthook, sys.unraisablehook
    asyncio_log = logging.getLogger("asyncio")
    silence = logging.Filter("nothing")
    sys.excepthook = sys.unraisablehook = lambda *_: None
    asyncio_log.addFilter(silence)
    try:
        yield
    finally:
        sys.excepthook, sys.unraisablehook = hooks
        asyncio_log.removeFilter(silence)


def try_read(read: Callable[[], dict]) -> tuple[dict | None, str | None]:
    """(value, None), or (None, the first error in short) of a read that runs in parallel inside.

    The reads that the first error leaves behind end in a closed event loop and would each print a traceback;
    they are given a moment to end, and collected, before the hooks are back.
    """
    with _no_hooks():
        try:
            return read(), None
        except Exception as caught:  # Orbax and tensorstore raise anything from KeyError to ValueError
            error = in_short(caught)
        time.sleep(0.1)
        gc.collect()
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
