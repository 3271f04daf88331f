"""The parts of a model as its configuration describes them: each a module without a parent, to be handed on."""

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.context import ContextAttention, ContextHeads
from flaxnmt.attention.document import DocumentAttention
from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.errors import ConfigError
from flaxnmt.gates.block import GatedBlock
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import positions_of
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.positions import (
    LearnedPositions,
    MultiLevelPositions,
    SinusoidalPositions,
    document_positions,
)
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.models.config import EncoderKind, SentenceEncoder, Seq2SeqConfig
from flaxnmt.models.decoder import DecoderLayer
from flaxnmt.models.encoder import EncoderLayer
from flaxnmt.typing import Array, Bool, Int

LEVELS = ("word", "sentence", "paragraph")


def block(config: Seq2SeqConfig, levels: tuple[float, ...], *sublayers: SubLayer) -> Block | GatedBlock:
    """A sub-layer with the model's norm, dropout and skip connection; behind gates where there are levels."""
    common = {"dropout": config.dropout, "dtype": config.dtype, "parent": None}
    if not levels:
        (sublayer,) = sublayers
        return Block(sublayer, norm=config.norm, **common)
    if config.norm != "pre":
        raise ConfigError(f"--model.norm {config.norm} with budgets: gates need --model.norm pre")
    hidden = config.budget.control_hidden or max(config.d_model // 8, 1)
    return GatedBlock(config.d_model, sublayers, hidden, **common)


def feed_forward(config: Seq2SeqConfig, levels: tuple[float, ...], hidden: int) -> Block | GatedBlock:
    """A feed-forward network, cut into parts of equal size where it is gated."""
    parts = config.budget.blocks if levels else 1
    if parts < 1 or hidden % parts:
        raise ConfigError(f"--model.budget.blocks {parts} does not divide the feed-forward size {hidden}")
    rate = config.dropout if config.hidden_dropout is None else config.hidden_dropout
    return block(
        config,
        levels,
        *(
            FeedForward(config.d_model, hidden // parts, dropout=rate, dtype=config.dtype, parent=None)
            for _ in range(parts)
        ),
    )


def sentence_encoder(config: Seq2SeqConfig, kind: SentenceEncoder) -> nn.Module:
    """A module from the words of sentences [*B, M, D], and their mask, to vectors [*B, D]."""
    kinds = {
        "source2token": Source2Token,
        "multi_dimensional": MultiDimensionalSource2Token,
        "mean": MeanPooling,
    }
    return kinds[kind](config.d_model, dtype=config.dtype, parent=None)


def attention(config: Seq2SeqConfig, kind: EncoderKind | str, heads: int) -> SubLayer:
    """An attention of one of the kinds of `DocumentConfig`; `context` is the block over encodings alone."""
    document = config.document
    sizes = (config.d_model, heads)
    plain = {
        "dropout": config.dropout if config.attention_dropout is None else config.attention_dropout,
        "dtype": config.dtype,
        "parent": None,
    }
    if kind in ("sentence", "document"):
        kinds = {"sentence": MultiHeadAttention, "document": DocumentAttention}
        return kinds[kind](*sizes, **plain)
    common = plain | {"sentence_encoder": sentence_encoder(config, document.sentence_encoder)}

    selecting = common | {
        "t": document.t,
        "always_keep_own": document.always_keep_own,
        "dispatched": document.dispatched,
    }

    def context(heads: int) -> SubLayer:
        return ContextAttention(config.d_model, heads, **common)

    makers = {
        "context": lambda: context(heads),
        "heads": lambda: ContextHeads(*sizes, context=context(document.context_heads), **plain),
        "conditional": lambda: ConditionalAttention(
            *sizes,
            **selecting,
        ),
        "hierarchical": lambda: HierarchicalAttention(
            *sizes,
            merge=sentence_encoder(config, document.merge),
            by=document.select_by,
            count_copies=document.count_copies,
            **selecting,
        ),
    }
    return makers[kind]()


def encoder_layer(config: Seq2SeqConfig, kind: EncoderKind) -> EncoderLayer:
    """A layer with this kind of attention; `context` adds a block to attention within the sentence."""
    heads, levels = config.encoder.attention.heads, config.budget.encoder
    context = block(config, levels, attention(config, "context", heads)) if kind == "context" else None
    return EncoderLayer(
        block(config, levels, attention(config, "sentence" if kind == "context" else kind, heads)),
        feed_forward(config, levels, config.encoder.feed_forward),
        context=context,
        parent=None,
    )


def decoder_layer(config: Seq2SeqConfig) -> DecoderLayer:
    heads, document, levels = config.decoder.attention.heads, config.document, config.budget.decoder
    cross = document.cross if config.is_document else "sentence"
    context = config.is_document and document.decoder_context
    return DecoderLayer(
        block(config, levels, attention(config, "sentence", heads)),
        block(config, levels, attention(config, cross, heads)),
        feed_forward(config, levels, config.decoder.feed_forward),
        context=block(config, levels, attention(config, "context", heads)) if context else None,
        parent=None,
    )


def positions(config: Seq2SeqConfig, roll: int = 0) -> nn.Module | None:
    """Encodings of one counter."""
    kinds = {
        "sinusoidal": lambda: SinusoidalPositions(config.d_model, roll=roll, parent=None),
        "learned": lambda: LearnedPositions(
            config.d_model, config.max_positions, dtype=config.dtype, parent=None
        ),
        "none": lambda: None,
    }
    return kinds[config.positions]()


def source_positions(config: Seq2SeqConfig) -> nn.Module | None:
    """Encodings of what `source_ids` counts."""
    if not config.is_document or config.positions == "none":
        return positions(config)
    step = config.d_model // len(LEVELS) * config.document.roll_levels
    levels = [positions(config, roll=step * LEVELS.index(level)) for level in config.document.levels]
    return MultiLevelPositions(tuple(levels), parent=None)


def marking_levels(config: Seq2SeqConfig) -> tuple[int, ...]:
    """Places of the levels whose encodings tell a decoder that sees all words which sentence it is to write."""
    if not config.is_document or config.document.cross == "sentence":
        return ()
    return tuple(i for i, level in enumerate(config.document.levels) if level != "word")


def source_ids(
    config: Seq2SeqConfig, mask: Bool[Array, "*B M"], paragraphs: Int[Array, "B N"] | None
) -> Int[Array, "..."]:
    """Position ids of the source: one counter for sentences, one on each level for documents."""
    if not config.is_document:
        return positions_of(mask.shape)
    if paragraphs is None:
        paragraphs = jnp.zeros(mask.shape[:2], jnp.int32)
    ids = document_positions(mask, paragraphs, config.document.count)
    return ids[..., [LEVELS.index(level) for level in config.document.levels]]
