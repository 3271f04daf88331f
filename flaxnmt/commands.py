"""What all commands share: one clear line for a user's mistake, and silence from libraries."""

import contextlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from flaxnmt.errors import ConfigError, UserError

MISTAKE = UserError.exit_code
"""Exit code of a mistake that the user can correct."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

T = TypeVar("T")


def guarded(command: Callable[[], int], debug: bool) -> int:
    """Runs a command; a `UserError`, or what the system refuses, becomes one line on standard error, and an exit code.

    With `debug` they are raised as they are.
    """
    code = MISTAKE
    try:
        return command()
    except BrokenPipeError:
        # The reader of our output has left (`| head`): not an error, but nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        if debug:
            raise
        message, code = str(error), error.exit_code
    except OSError as error:
        # A full disk or a missing permission; a write to an open file does not know its name.
        if debug or error.strerror is None:
            raise
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    except RuntimeError as error:
        # JAX's own class of it, known by its word, so that JAX need not be loaded here.
        if debug or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        message = (
            f"the device has no memory for this ({str(error).splitlines()[0]}): make batches smaller, by --batch-size, "
            "in training by --data.batch-tokens"
        )
    print(f"error: {message}", file=sys.stderr)
    return code


def parsed(read: Callable[[], T], argv: Sequence[str]) -> T:
    """What `read` makes of a command line with tyro, whose boxed complaints become one line.

    Raises:
      ConfigError: for a command line that cannot be read, with the nearest option where there is one.
    """
    if {"-h", "--help"} & set(argv):
        return read()
    said = io.StringIO()
    with _columns(10_000), contextlib.redirect_stderr(said):
        try:
            return read()
        except SystemExit as end:
            if not end.code:
                raise
    raise ConfigError(in_one_line(said.getvalue()))


def in_one_line(box: str) -> str:
    """The text of one of tyro's boxes: no title, no rules, no references to the help."""
    _, *lines = re.sub(r"\x1b\[[0-9;]*m", "", box).strip("\n").splitlines() or [""]
    sections: list[list[str]] = [[]]
    for line in lines:
        # Where the terminal has no Unicode the frame is blank and rules are hyphens.
        text = line.strip("│╰╯ ")
        if text.startswith(("───", "---")):
            sections.append([])
        else:
            sections[-1].append(text)
    texts = [" ".join(" ".join(lines).split()).rstrip(".") for lines in sections]
    kept = [
        text for text in texts if text and not text.startswith(("For full helptext", "Argument helptext"))
    ]
    nearest = [re.sub(r"^Perhaps you meant.*?(--[^ ]+).*", r"did you mean \1?", text) for text in kept]
    return "; ".join([*nearest, "--help lists all options"])


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


@contextlib.contextmanager
def _columns(count: int):
    """A terminal so wide that nothing is wrapped."""
    earlier = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if earlier is not None:
            os.environ["COLUMNS"] = earlier
