"""Where a training starts that does not start from nothing."""

import logging
from pathlib import Path

import jax
import numpy as np

from flaxnmt.errors import RunError
from flaxnmt.run import PARAMETERS
from flaxnmt.training.export import read_parameters
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.state import TrainState
from flaxnmt.typing import Params

log = logging.getLogger(__name__)


def exported(run: Path) -> Params:
    """What a run exported. Raises RunError if there is nothing."""
    return read_parameters(run / PARAMETERS)


def initial_params(state: TrainState, params: Params, run: Path, shardings: TrainState) -> TrainState:
    """The state with the parameters of another run where names agree; the others keep their fresh values.

    Raises:
      RunError: if a shape differs or no name agrees.
    """
    found = named_leaves(params)
    fresh = named_leaves(state.params)
    shared = [name for name in fresh if name in found]
    differ = [
        f"{name} {found[name].shape} -> {fresh[name].shape}"
        for name in shared
        if found[name].shape != fresh[name].shape
    ]
    if differ or not shared:
        what = "; ".join(differ[:10]) if differ else "no parameter has the same name"
        raise RunError(
            f"--init-from {run}: {what} ({len(differ)} differ); start from a run of the same sizes and vocabulary"
        )
    new = sorted(set(fresh) - set(shared))
    log.info(
        "%d of %d parameters come from %s; fresh: %s", len(shared), len(fresh), run, ", ".join(new) or "none"
    )
    leaves, tree = jax.tree.flatten(state.params)
    values = [found.get(name, leaf) for name, leaf in zip(fresh, leaves, strict=True)]
    params = jax.tree.map(
        lambda value, to: jax.device_put(np.asarray(value), to), tree.unflatten(values), shardings.params
    )
    ema = None if state.ema is None else jax.tree.map(lambda x: x.copy(), params)
    return state.replace(params=params, ema=ema)
