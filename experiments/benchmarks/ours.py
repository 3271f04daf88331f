"""flaxnmt's side of the benchmarks: one training step and one beam search, as its commands run them."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from experiments.benchmarks.peers.sizes import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DROPOUT,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    PAD,
    Size,
)
from flaxnmt.decoding.beam import beam_search
from flaxnmt.models.config import DecoderConfig, EncoderConfig, MultiHead, Seq2SeqConfig
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.training.loss import label_smoothed_cross_entropy


def make_model(size: Size) -> Seq2Seq:
    """Post-norm, as Marian has it, with one table for source, target and output."""
    stack = (size.layers, MultiHead(size.heads), size.feed_forward)
    config = Seq2SeqConfig(
        d_model=size.d_model,
        encoder=EncoderConfig(*stack),
        decoder=DecoderConfig(*stack),
        norm="post",
        dropout=DROPOUT,
    )
    return Seq2Seq(config, size.vocabulary, size.vocabulary)


def init_params(model: Seq2Seq, seed: int = 1):
    shapes = jnp.zeros((1, 2), jnp.int32)
    return nn.unbox(jax.jit(model.init)(jax.random.key(seed), shapes, shapes)["params"])


def parameter_count(params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def make_step(size: Size, batches: Sequence[dict]) -> tuple[int, Callable[[int], float]]:
    """The number of parameters, and a function that trains on batch number i and returns its loss per token."""
    model = make_model(size)
    params = init_params(model)
    optimizer = optax.adam(LEARNING_RATE, *ADAM_BETAS, eps=ADAM_EPSILON)

    @partial(jax.jit, donate_argnums=0)
    def update(state, batch):
        params, opt_state, number = state

        def loss_of(params):
            rngs = {"dropout": jax.random.fold_in(jax.random.key(0), number)}
            logits = model.apply({"params": params}, batch["source"], batch["target"], False, rngs=rngs)
            target = batch["target"]
            loss, _, count = label_smoothed_cross_entropy(logits, target, target != PAD, LABEL_SMOOTHING)
            return loss / count

        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, number + 1), loss

    state = (params, optimizer.init(params), jnp.int32(0))

    def step(index: int) -> float:
        nonlocal state
        state, loss = update(state, batches[index])
        return float(loss)

    return parameter_count(params), step


def make_translate(
    size: Size, source: np.ndarray, target_length: int, beam: int
) -> tuple[int, Callable[[], list[int]]]:
    """The number of parameters, and a function that translates all sentences and returns their lengths."""
    model = make_model(size)
    params = init_params(model)

    @jax.jit
    def search(params, source):
        bound = model.bind({"params": params})
        cache = bound.start(source, beam, target_length)
        step = partial(model.apply, {"params": params}, method="step")
        lengths = jnp.full(len(source), target_length)
        return beam_search(
            step, cache, lengths, max_length=target_length, beam_size=beam, min_lengths=lengths
        )

    def translate() -> list[int]:
        return np.asarray(search(params, source).lengths)[:, 0].tolist()

    return parameter_count(params), translate
