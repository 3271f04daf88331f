"""Where a training starts that does not start from nothing."""

import json
import logging
from pathlib import Path

import jax
import numpy as np

from experiments.continuing import has_checkpoint
from flaxnmt.errors import RunError
from flaxnmt.models.config import ModelConfig
from flaxnmt.run_directory import PARAMETERS, RECORD, TOKENIZER
from flaxnmt.training.export import read_parameters
from flaxnmt.training.freezing import INITIALISED, frozen_names
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.state import TrainState
from flaxnmt.typing import Params

log = logging.getLogger(__name__)


def exported(run: Path) -> Params:
    """What a run exported.

    Raises:
      RunError: if there is nothing, or no tokenizer with it.
    """
    params = read_parameters(run / PARAMETERS)
    if not (run / TOKENIZER).is_dir():
        raise RunError(
            f"--init-from {run}: no {TOKENIZER} in it, and its parameters belong to that vocabulary"
        )
    return params


def at_word_level(params: Params, model: ModelConfig) -> Params:
    """Parameters with learned positions of sentences where a model of documents has those of its words."""
    places = params.get("source_embedding", {}).get("positions", {})
    if not model.is_document or "word" not in model.document.levels or "table" not in places:
        return params
    level = f"levels_{model.document.levels.index('word')}"
    return params | {"source_embedding": params["source_embedding"] | {"positions": {level: places}}}


def with_segments(params: Params, pretraining: ModelConfig) -> Params:
    """Parameters of a masked language model, which reads first segments alone, with all others like the first.

    What a pair is told apart by is then learned from there, and no second text begins with a vector that pre-training
    has never seen.
    """
    if getattr(pretraining, "head", None) != "masked" or "segment_table" not in params:
        return params
    table = params["segment_table"]["table"]
    return params | {"segment_table": {"table": np.repeat(table[:1], len(table), axis=0)}}


def check_initial(params: Params, shapes: Params, run: str) -> None:
    """Refuses parameters of another run of which none agrees with the model, or one has another shape.

    Raises:
      RunError: with the names and shapes.
    """
    found, fresh = named_leaves(params), named_leaves(shapes)
    shared = [name for name in fresh if name in found]
    differ = [
        f"{name} {found[name].shape} -> {fresh[name].shape}"
        for name in shared
        if found[name].shape != fresh[name].shape
    ]
    if differ or not shared:
        what = "; ".join(differ[:10]) if differ else "no parameter has the same name"
        raise RunError(
            f"--init-from {run}: {what} ({len(differ)} differ); start from a run of the same sizes"
        )
    new = sorted(set(fresh) - set(shared))
    log.info(
        "%d of %d parameters come from %s; fresh: %s", len(shared), len(fresh), run, ", ".join(new) or "none"
    )


def initial_params(state: TrainState, params: Params, shardings: TrainState) -> TrainState:
    """The state with the given parameters where names agree; the others keep their fresh values."""
    found, fresh, places = named_leaves(params), named_leaves(state.params), named_leaves(shardings.params)
    leaves = [
        jax.device_put(found[name], places[name]) if name in found else leaf for name, leaf in fresh.items()
    ]
    params = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
    ema = None if state.ema is None else jax.tree.map(lambda x: x.copy(), params)
    return state.replace(params=params, ema=ema)


def frozen_parameters(
    freeze: tuple[str, ...], shapes: Params, initial: Params | None, directory: Path
) -> list[str]:
    """Names of the parameters that a run leaves as they are; a run that is continued knows those it began with.

    Raises:
      ConfigError: as `frozen_names`.
      RunError: where that is not known any more.
    """
    names = list(named_leaves(shapes))
    if INITIALISED in freeze and has_checkpoint(directory):
        try:
            frozen = json.loads((directory / RECORD).read_text(encoding="utf-8"))["frozen"]
        except (OSError, ValueError, KeyError):
            raise RunError(
                f"{directory / RECORD} does not say what is frozen: bring it back, as this run cannot go on without"
            ) from None
    else:
        found = {} if initial is None else named_leaves(initial)
        frozen = frozen_names(names, freeze, [name for name in names if name in found])
    log.info("%d of %d parameters are frozen", len(frozen), len(names))
    return frozen
