"""flaxnmt: neural machine translation in JAX and Flax (Linen), from modules to pods."""

from typing import TYPE_CHECKING

import flax
import jax
import optax

if TYPE_CHECKING:
    from flaxnmt.run import Run

__all__ = ["flax", "jax", "open_run", "optax"]
__version__ = "0.1.0"


def open_run(directory: str) -> "Run":
    """Opens a run directory: `.translate(lines)`, `.score(source, target)`, `.metrics`, `.config`, `.params`.

    Nothing runs on an accelerator until something is asked for that needs one.
    """
    from flaxnmt.run import Run

    return Run(directory)
