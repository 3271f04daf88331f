"""flaxnmt's side of the benchmarks: one training step and one beam search, as its commands run them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.peers.sizes import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DROPOUT,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    Size,
)
from flaxnmt.config import OptimizerConfig, TrainingConfig
from flaxnmt.decoding.beam import beam_search
from flaxnmt.layers.segments import segments_here
from flaxnmt.models.config import DecoderConfig, EncoderConfig, MultiHead, Seq2SeqConfig
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.sharding import make_mesh, unbox, use_mesh
from flaxnmt.training.objective import translation_objective
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.state import init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep


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


def init_params(model: Seq2Seq):
    """Parameters without their logical axes."""
    return unbox(jax.jit(partial(_init, model))(jax.random.key(1))["params"])


def _init(model: Seq2Seq, key):
    ids = jnp.zeros((1, 2), jnp.int32)
    return model.init(key, ids, ids)


def parameter_count(params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@dataclass(frozen=True)
class Training:
    """A model in training.

    Attributes:
      parameters: how many there are.
      step: trains on batch number i and returns its loss per token.
      program: what XLA made of the step on batch number i.
    """

    parameters: int
    step: Callable[[int], float]
    program: Callable[[int], str]


def make_training(size: Size, batches: Sequence[dict]) -> Training:
    """The update of `experiments.train`, on these batches."""
    model = make_model(size)
    config = OptimizerConfig(b1=ADAM_BETAS[0], b2=ADAM_BETAS[1], eps=ADAM_EPSILON)
    schedule = optax.constant_schedule(LEARNING_RATE)
    optimizer = make_optimizer(config, schedule)
    mesh = make_mesh(devices=jax.devices()[:1])
    with use_mesh(mesh):
        init = partial(_init, model)
        _, shardings = state_shardings(init, optimizer, False, mesh)
        state = init_state(init, optimizer, False, shardings, seed=1)
    objective = translation_objective(model, LABEL_SMOOTHING, TrainingConfig().loss_chunk)
    update = CompiledStep(TrainStep(objective, optimizer, schedule), shardings, seed=1)

    def step(index: int) -> float:
        nonlocal state
        with use_mesh(mesh):
            state, metrics = update(state, [batches[index]])
        return float(metrics["loss"])

    def program(index: int) -> str:
        with use_mesh(mesh):
            ((function, arguments, _),) = update.calls(state, batches[index])
            return function.lower(*arguments).compile().as_text()

    return Training(parameter_count(state.params), step, program)


def make_translate(
    size: Size,
    source: np.ndarray,
    target_length: int,
    beam: int,
    room: int | None = None,
    segments: int | None = None,
) -> tuple[int, Callable[[], list[int]]]:
    """Number of parameters, and a function that translates all sentences and returns their lengths.

    `room` is what the cache has for an output, `target_length` if None; it lies in `segments`, as in commands if None.
    """
    model = make_model(size)
    params = init_params(model)
    room = target_length if room is None else room
    segments = segments_here() if segments is None else segments

    @jax.jit
    def search(params, source):
        bound = model.bind({"params": params})
        cache = bound.start(source, beam, room, segments=segments)
        step = partial(model.apply, {"params": params}, method="step")
        lengths = jnp.full(len(source), target_length)
        return beam_search(step, cache, lengths, max_length=room, beam_size=beam, min_lengths=lengths)

    def translate() -> list[int]:
        return np.asarray(search(params, source).lengths)[:, 0].tolist()

    return parameter_count(params), translate
