"""What is compiled for each shape of batches: from a model, its parameters and a batch to hypotheses or scores."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from flaxnmt.decoding.beam import beam_search
from flaxnmt.decoding.cache import DecodeCache, Step
from flaxnmt.decoding.hypotheses import Hypotheses
from flaxnmt.decoding.sampling import sample
from flaxnmt.decoding.scoring import token_log_probs
from flaxnmt.each_device import each_alone
from flaxnmt.layers.segments import segments_here
from flaxnmt.symbols import PAD
from flaxnmt.typing import Params

Batch = dict[str, jax.Array]

SEARCH_OPTIONS = ("max_length", "beam_size", "n_best", "length_penalty")
DRAW_OPTIONS = ("max_length", "samples", "temperature", "top_k", "top_p")


def search(
    model: Any,
    params: Params,
    batch: Batch,
    *,
    max_length: int,
    beam_size: int,
    n_best: int,
    length_penalty: float,
    skip: bool = True,
) -> Hypotheses:
    """The n_best hypotheses of beam search for each row, on each device those of its rows."""

    def own(params, batch):
        step, cache, rows = start(model, params, batch, beam_size, max_length, skip)
        return beam_search(
            step, cache, rows["max_lengths"], max_length=max_length, beam_size=beam_size, n_best=n_best,
            length_penalty=length_penalty, min_lengths=rows["min_lengths"], prefix=rows["prefix"],
        )  # fmt: skip

    return each_alone(own)(params, batch)


def draw(
    model: Any,
    params: Params,
    batch: Batch,
    seed: int,
    *,
    max_length: int,
    samples: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    skip: bool = True,
) -> Hypotheses:
    """Samples for each row, whose randomness is that of the row's number, on whatever device it is."""

    def own(params_and_seed, batch):
        params, seed = params_and_seed
        step, cache, rows = start(model, params, batch, samples, max_length, skip)
        return sample(
            step, cache, jax.random.key(seed), rows["rows"], rows["max_lengths"], max_length=max_length,
            samples=samples, temperature=temperature, top_k=top_k, top_p=top_p,
            min_lengths=rows["min_lengths"], prefix=rows["prefix"],
        )  # fmt: skip

    return each_alone(own)((params, seed), batch)


def start(
    model: Any, params: Params, batch: Batch, beams: int, max_length: int, skip: bool = True
) -> tuple[Step, DecodeCache, Batch]:
    """Step, cache, and what is known of each row of the search, of which a document has many."""
    variables, leading = {"params": params}, batch["max_lengths"].shape
    some = {name: batch[name] for name in ("wanted", "places", "budget") if name in batch}
    cache = model.apply(
        variables,
        batch["source"],
        beams,
        max_length,
        batch.get("paragraph"),
        **some,
        skip=skip,
        segments=segments_here(),
        method="start",
    )
    rows = {
        name: batch[name].reshape(math.prod(leading), *batch[name].shape[len(leading) :])
        for name in ("max_lengths", "min_lengths", "rows", "prefix")
    }
    return partial(model.apply, variables, skip=skip, method="step"), cache, rows


def target_log_probs(
    model: Any, params: Params, batch: Batch, skip: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities [R, T], and the share of the full computation of each, [R, 2] or [R, 0] without gates.

    Each device computes those of its own rows.
    """

    def own(params, batch):
        target, some = batch["target"], {"wanted": batch["wanted"]} if "wanted" in batch else {}
        logits, use = model.apply(
            {"params": params},
            batch["source"],
            target,
            paragraphs=batch.get("paragraph"),
            budget=batch.get("budget"),
            places=batch.get("places"),
            skip=skip,
            **some,
            method="logits_and_use",
        )
        log_probs = token_log_probs(logits, target, target != PAD).reshape(-1, target.shape[-1])
        return log_probs, jnp.repeat(use, len(log_probs) // len(use), axis=0)

    return each_alone(own)(params, batch)
