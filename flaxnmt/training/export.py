"""Parameters for inference and notebooks: one `.npz` that plain NumPy reads, names joined by '/'."""

import os
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.errors import RunError
from flaxnmt.training.integrity import named_leaves
from flaxnmt.typing import Params

SEPARATOR = "/"


def write_parameters(path: str | os.PathLike, params: Params) -> None:
    """Write the arrays in float32 (integers as they are); an earlier file is replaced only by a whole one.

    Arrays must be addressable from this process. Raises RunError if the file cannot be written.
    """
    path = Path(path)
    arrays = {name: _portable(leaf) for name, leaf in named_leaves(params).items()}
    temporary = path.with_name(path.name + f".tmp{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        what = error.strerror or error
        raise RunError(
            f"{path}: parameters could not be written ({what}); make room and start the same command again"
        ) from error


def read_parameters(path: str | os.PathLike) -> dict:
    """The nested dictionary of NumPy arrays in a file of `write_parameters`.

    Raises RunError if the file is absent, half written or something else.
    """
    try:
        # The file is opened here, since np.load leaves it open when it finds no archive in it.
        with Path(path).open("rb") as file, zipfile.ZipFile(file):
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{foreign[0]} is not an array")
        return nested(arrays)
    except FileNotFoundError:
        raise RunError(
            f"{path}: no exported parameters; train the run first, to an evaluation at least"
        ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{path}: not a whole parameter file ({error}); bring back a copy, or train on: the next best evaluation "
            "writes it anew"
        ) from None


def nested(arrays: dict[str, np.ndarray]) -> dict:
    """{'a/b': x} as {'a': {'b': x}}. Raises ValueError if a name is both an array and a group."""
    tree: dict = {}
    for name, array in arrays.items():
        *groups, last = name.split(SEPARATOR)
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
            if not isinstance(node, dict):
                raise ValueError(f"{name} lies inside an array")
        if last in node:
            raise ValueError(f"{name} is there twice")
        node[last] = array
    return tree


def _portable(leaf: jax.Array | np.ndarray) -> np.ndarray:
    # NumPy has no bfloat16 of its own: a file with it would need ml_dtypes to be read.
    array = np.asarray(jax.device_get(leaf))
    return array.astype(np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array
