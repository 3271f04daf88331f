"""flaxnmt: neural machine translation in JAX and Flax (Linen), from modules to pods."""

from typing import TYPE_CHECKING

import flax
import jax
import optax

if TYPE_CHECKING:
    from flaxnmt.ledger import Ledger
    from flaxnmt.run import Run

__all__ = ["flax", "jax", "open_run", "open_sweep", "optax"]
__version__ = "0.1.0"


def open_run(directory: str) -> "Run":
    """Opens a run directory: `.translate(lines)`, `.score(source, target)`, `.metrics`, `.config`, `.params`.

    An address such as gs://bucket/directory will do: what is asked for is copied to this machine. Nothing runs on an
    accelerator until something is asked for that needs one.
    """
    from flaxnmt.run import Run

    return Run(directory)


def open_sweep(path: str) -> "Ledger":
    """Opens the ledger of a sweep: `.table` is a data frame with a row for each finished trial, `.rows()` plain.

    The path is that of the ledger, or the directory in which a sweep has its runs, its ledger or its translations.

    Raises:
      RunError: if there is none, or if there are several.
    """
    from flaxnmt.ledger import Ledger, find_ledger

    return Ledger(find_ledger(path))
