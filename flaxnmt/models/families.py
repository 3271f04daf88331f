"""The families of models: a module for a configuration, and arguments with which it is initialised."""

import jax
import jax.numpy as jnp

from flaxnmt.models.config import Architecture, DecoderOnlyConfig, EncoderOnlyConfig
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.seq2seq import Seq2Seq

Model = Seq2Seq | EncoderOnly | DecoderOnly


def module(config: Architecture, source_vocab: int, target_vocab: int) -> Model:
    """The module that a configuration describes; one of a single stack has the source vocabulary alone."""
    if isinstance(config, EncoderOnlyConfig):
        return EncoderOnly(config, source_vocab)
    if isinstance(config, DecoderOnlyConfig):
        return DecoderOnly(config, source_vocab)
    return Seq2Seq(config, source_vocab, target_vocab)


def example_inputs(config: Architecture, rows: int) -> tuple[jax.Array, ...]:
    """What `init` takes behind its key: arrays of the smallest shape, with this many rows."""
    shape = (rows, 2, 8) if config.is_document else (rows, 8)
    ids = jnp.ones(shape, jnp.int32)
    return (ids,) if isinstance(config, EncoderOnlyConfig) else (ids, ids)


def batch_shapes(
    config: Architecture, source: tuple[int, ...], target: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Arrays of a batch of training, by name, for sources and targets of these shapes; texts have those of sources."""
    match config:
        case EncoderOnlyConfig(head="masked"):
            return {"tokens": source, "packed": source}
        case DecoderOnlyConfig(task="language"):
            return {"tokens": source, "target": source, "packed": source}
        case EncoderOnlyConfig(head=head):
            said = {"classes": source[:1], "labels": source, "spans": (source[0], 2)}[head]
            return {"tokens": source, "segments": source, head: said}
    shapes = {"source": source, "target": target}
    return shapes | {"paragraph": source[:2]} if config.is_document else shapes
