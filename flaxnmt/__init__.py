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

    Raises:
      RunError: if there is none.
    """
    from pathlib import Path

    from flaxnmt.errors import RunError
    from flaxnmt.ledger import Ledger

    if not Path(path).is_file():
        raise RunError(f"{path}: no ledger of a sweep there; python -m experiments.sweep writes one")
    return Ledger(path)
