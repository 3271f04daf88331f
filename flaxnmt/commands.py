"""What all commands share: one clear line for a user's mistake, and silence from libraries."""

import logging
import os
import sys
import warnings
from collections.abc import Callable

from flaxnmt.errors import UserError

MISTAKE = 2
"""Exit code of a mistake that the user can correct."""


def guarded(command: Callable[[], int], debug: bool) -> int:
    """Runs a command; a `UserError` becomes one line on standard error and exit code 2."""
    try:
        return command()
    except UserError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    except BrokenPipeError:
        # The reader of our output has left (`| head`): not an error, but nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def quiet() -> None:
    """Keeps the libraries' own notes from the user's terminal; ours are plain lines."""
    logging.basicConfig()
    # Importing Orbax makes a root handler with a form of its own, after which basicConfig changes nothing.
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))
    for name in ("flaxnmt", "experiments"):
        logging.getLogger(name).setLevel(logging.INFO)
    for name in ("absl", "jax", "orbax", "grain", "etils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module="orbax")
