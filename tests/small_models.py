"""Translation models of a size for tests, and parameters that cost no compilation."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.models.config import (
    DecoderConfig,
    DecoderOnlyConfig,
    EncoderConfig,
    EncoderOnlyConfig,
    MultiHead,
    Seq2SeqConfig,
)
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.sharding import unbox

CONFIG = Seq2SeqConfig(
    d_model=16,
    encoder=EncoderConfig(layers=1, attention=MultiHead(2), feed_forward=24),
    decoder=DecoderConfig(layers=2, attention=MultiHead(2), feed_forward=24),
    max_positions=32,
)
VOCAB = 20


def small_model(source_vocab: int = VOCAB, target_vocab: int = VOCAB, **changes) -> Seq2Seq:
    return Seq2Seq(dataclasses.replace(CONFIG, **changes), source_vocab, target_vocab)


def small_decoder(**changes) -> DecoderOnly:
    config = DecoderOnlyConfig(d_model=CONFIG.d_model, decoder=CONFIG.decoder, max_positions=32)
    return DecoderOnly(dataclasses.replace(config, **changes), VOCAB)


def small_encoder(**changes) -> EncoderOnly:
    config = EncoderOnlyConfig(
        d_model=CONFIG.d_model,
        encoder=EncoderConfig(layers=2, attention=MultiHead(2), feed_forward=24),
        norm="post",
        positions="learned",
        activation="gelu",
        biases=True,
        max_positions=32,
    )
    return EncoderOnly(dataclasses.replace(config, **changes), VOCAB)


@cache
def parameter_shapes(model: Seq2Seq | DecoderOnly | EncoderOnly):
    """Shapes of the parameters with their logical axes."""
    shape = (1, 2, 4) if model.config.is_document else (1, 4)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    inputs = (ids,) if isinstance(model, EncoderOnly) else (ids, ids)
    return jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]


def random_params(model: Seq2Seq | DecoderOnly | EncoderOnly, seed: int = 0):
    """Float64 parameters away from every special value: norms unlike one, biases unlike zero."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = path[-1].key
        fan = {"scale": 100, "b_in": 10, "b_out": 10}.get(name, model.config.d_model)
        fan = 10 if name.endswith("bias") else fan
        return rng.normal(size=leaf.shape) / np.sqrt(fan) + (name == "scale")

    return jax.tree_util.tree_map_with_path(draw, unbox(parameter_shapes(model)))


def float32(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def random_ids(lengths: list[int], width: int, seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    """Rows of these lengths that end with eos (3), padded with 0 to one width; length 0 is an empty row."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), width), np.int32)
    for row, length in zip(ids, lengths):
        row[:length] = rng.integers(4, vocab, length)
        row[max(length - 1, 0) : length] = 3
    return ids
