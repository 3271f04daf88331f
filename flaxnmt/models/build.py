"""The parts of a model as its configuration describes them: each a module without a parent, to be handed on."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import get_args

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.context import ContextAttention, ContextHeads
from flaxnmt.attention.document import DocumentAttention
from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import AttentionPositions, ShawPositions, TransformerXLPositions
from flaxnmt.attention.rotary import RotaryPositions
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.attention.splash import splash_attention
from flaxnmt.attention.weights import Weights, argmax_weights, softmax_weights, threshold_weights
from flaxnmt.encoders.combine import GatedSum, Sum, WeightedSum
from flaxnmt.encoders.convs2s import GatedConvolution
from flaxnmt.encoders.fnet import FourierMixing
from flaxnmt.encoders.lstm import LSTM
from flaxnmt.encoders.static_expansion import StaticExpansion
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
    word_positions,
)
from flaxnmt.layers.stack import Stack
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.models.config import (
    AttentionKind,
    DecoderOnlyConfig,
    EncoderKind,
    EncoderOnlyConfig,
    EncodingConfig,
    MixingKind,
    ModelConfig,
    SentenceEncoder,
    Seq2SeqConfig,
    parse_branch,
)
from flaxnmt.models.decoder import Decoder, DecoderLayer
from flaxnmt.models.encoder import Branches, Encoder, EncoderLayer
from flaxnmt.typing import Array, Bool, Int

LEVELS = ("word", "sentence", "paragraph")
# The exact GELU, that of BERT.
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}


def block(
    config: ModelConfig, levels: tuple[float, ...], *sublayers: SubLayer, **changes
) -> Block | GatedBlock:
    """A sub-layer with the model's norm, dropout and skip connection, or what `changes` names in place of them.

    Where there are levels it stands behind gates, with a norm and a skip connection whatever its kind, since a closed
    gate is the identity; its dropout is that of its kind.
    """
    common = {"dropout": config.dropout, "dtype": config.dtype, "parent": None}
    if not levels:
        (sublayer,) = sublayers
        return Block(sublayer, **{"norm": config.norm, **common, **changes})
    if config.norm != "pre":
        raise ConfigError(f"--model.norm {config.norm} with budgets: gates need --model.norm pre")
    hidden = config.budget.control_hidden or max(config.d_model // 8, 1)
    kept = {name: value for name, value in changes.items() if name == "dropout"}
    kept |= {name: getattr(config.budget, name) for name in ("control_scale", "normed_outputs")}
    return GatedBlock(config.d_model, sublayers, hidden, **common | kept)


def feed_forward(config: ModelConfig, levels: tuple[float, ...], hidden: int) -> Block | GatedBlock:
    """A feed-forward network, cut into parts of equal size where it is gated."""
    parts = config.budget.blocks if levels else 1
    if parts < 1 or hidden % parts:
        raise ConfigError(f"--model.budget.blocks {parts} does not divide the feed-forward size {hidden}")
    rate = config.dropout if config.hidden_dropout is None else config.hidden_dropout
    common = {
        "dropout": rate,
        "activation": ACTIVATIONS[config.activation],
        "dtype": config.dtype,
        "parts": parts,
    }
    networks = (FeedForward(config.d_model, hidden // parts, **common, parent=None) for _ in range(parts))
    return block(config, levels, *networks)


def sentence_encoder(config: ModelConfig, kind: SentenceEncoder) -> nn.Module:
    """A module from the words of sentences [*B, M, D], and their mask, to vectors [*B, D]."""
    kinds = {
        "source2token": Source2Token,
        "multi_dimensional": MultiDimensionalSource2Token,
        "mean": MeanPooling,
    }
    return kinds[kind](config.d_model, dtype=config.dtype, parent=None)


def attention_positions(config: ModelConfig, heads: int) -> AttentionPositions | None:
    """What distances change in the attention of rows over themselves."""
    common = {"dtype": config.dtype, "parent": None}
    kinds = {
        "shaw": lambda: ShawPositions(
            config.d_model // heads, config.relative_clip, config.relative_values, **common
        ),
        "transformer_xl": lambda: TransformerXLPositions(config.d_model, heads, **common),
        "rotary": lambda: RotaryPositions(parent=None),
    }
    return kinds[config.positions]() if config.positions in kinds else None


def attention_weights(config: ModelConfig) -> Weights:
    """How attention makes weights of scores."""
    return {
        "soft": softmax_weights,
        "threshold": partial(threshold_weights, threshold=config.attention_threshold),
        "argmax": argmax_weights,
    }[config.attention_weights]


def attention(
    config: ModelConfig,
    kind: AttentionKind,
    heads: int,
    levels: tuple[float, ...] = (),
    *,
    self_attention: bool = True,
) -> SubLayer:
    """An attention of one of the kinds of `DocumentConfig`; `context` is the block over encodings alone.

    Args:
      config: of the model.
      kind: of its attention.
      heads: of it.
      levels: of the budget of its stack, in which keys that have gates may be normed.
      self_attention: whether it is of rows over themselves, between which there are distances.
    """
    sizes = (config.d_model, heads)
    plain = {
        "dropout": config.dropout if config.attention_dropout is None else config.attention_dropout,
        "biases": config.biases,
        "dtype": config.dtype,
        "weights": attention_weights(config),
        "normed_keys": bool(levels) and config.budget.normed_keys,
        "parent": None,
    }
    placed = plain | {"positions": attention_positions(config, heads) if self_attention else None}
    if kind == "sentence":
        return MultiHeadAttention(*sizes, **placed)
    document = config.document
    if kind == "document":
        kernel = {"xla": None, "splash": splash_attention}[document.kernel]
        return DocumentAttention(*sizes, kernel=kernel, **placed)
    encoding = {"sentence_encoder": sentence_encoder(config, document.sentence_encoder)}

    selecting = {
        "t": document.t,
        "always_keep_own": document.always_keep_own,
        "dispatched": document.dispatched,
        **placed,
        **encoding,
    }

    def context(heads: int) -> SubLayer:
        # Its keys are sentences, which have no gates.
        return ContextAttention(config.d_model, heads, **plain | {"normed_keys": False}, **encoding)

    makers = {
        "context": lambda: context(heads),
        "heads": lambda: ContextHeads(*sizes, context=context(document.context_heads), **placed),
        "conditional": lambda: ConditionalAttention(*sizes, **selecting),
        "hierarchical": lambda: HierarchicalAttention(
            *sizes,
            merge=sentence_encoder(config, document.merge),
            by=document.select_by,
            count_copies=document.count_copies,
            **selecting,
        ),
    }
    return makers[kind]()


def mixing(
    config: EncodingConfig, kind: MixingKind, levels: tuple[float, ...], vectors: int
) -> Block | GatedBlock:
    """What stands in the place of self-attention, with the norms and skips of Hu et al. 2023 (section 3).

    The LSTM has no skip connection, the convolution no norm and its dropout before it.
    """
    common = {"dtype": config.dtype, "parent": None}

    def rate(of_kind: float | None) -> float:
        return config.dropout if of_kind is None else of_kind

    def lstm() -> Block | GatedBlock:
        sublayer = LSTM(config.d_model, config.encoder.forget_bias, **common)
        return block(config, levels, sublayer, skip=False, dropout=rate(config.encoder.recurrence_dropout))

    def convs2s() -> Block | GatedBlock:
        sublayer = GatedConvolution(
            config.d_model, config.encoder.convolution, dropout=config.dropout, **common
        )
        as_published = {"norm": "none", "skip_scale": config.encoder.convolution_skip_scale, "dropout": 0.0}
        return block(config, levels, sublayer, **as_published)

    def fnet() -> Block | GatedBlock:
        sublayer = FourierMixing(parent=None)
        return block(config, levels, sublayer, dropout=rate(config.encoder.transform_dropout))

    def static_expansion() -> Block | GatedBlock:
        expansion = config.encoder.expansion
        sublayer = StaticExpansion(
            config.d_model,
            vectors,
            enrichment=expansion.enrichment,
            by_length=expansion.by_length,
            dropout=rate(config.attention_dropout),
            **common,
        )
        return block(config, levels, sublayer)

    makers = {"lstm": lstm, "convs2s": convs2s, "fnet": fnet, "static_expansion": static_expansion}
    return makers[kind]()


def encoder_layer(config: EncodingConfig, kind: EncoderKind, vectors: int = 0) -> EncoderLayer:
    """A layer of this kind; `context` adds a block to attention within the sentence.

    Args:
      config: of the model.
      kind: of its attention, or what it has in its place.
      vectors: of a Static Expansion.
    """
    heads, levels = config.encoder.attention.heads, config.budget.encoder
    parts = {}
    if kind in get_args(AttentionKind):
        within = "sentence" if kind == "context" else kind
        parts["attention"] = block(config, levels, attention(config, within, heads, levels))
    else:
        parts["mixing"] = mixing(config, kind, levels, vectors)
    if kind == "context":
        parts["context"] = block(config, levels, attention(config, "context", heads, levels))
    if kind not in ("lstm", "convs2s", "static_expansion"):
        parts["feed_forward"] = feed_forward(config, levels, config.encoder.feed_forward)
    return EncoderLayer(**parts, parent=None)


def decoder_layer(config: Seq2SeqConfig) -> DecoderLayer:
    heads, document, levels = config.decoder.attention.heads, config.document, config.budget.decoder
    cross = document.cross if config.is_document else "sentence"
    if config.is_document and document.decoder_heads:
        cross = "heads"
    context = config.is_document and document.decoder_context
    return DecoderLayer(
        block(config, levels, attention(config, "sentence", heads, levels)),
        block(config, levels, attention(config, cross, heads, levels, self_attention=False)),
        feed_forward(config, levels, config.decoder.feed_forward),
        context=block(config, levels, attention(config, "context", heads, levels)) if context else None,
        parent=None,
    )


def stack(config: ModelConfig, makers: Sequence[Callable[[], nn.Module]], alike: bool) -> Stack:
    """Layers in turn, scanned where the model asks for it and they are alike."""
    scan = config.scan and alike
    layers = tuple(make() for make in (makers[:1] if scan else makers))
    repeats = len(makers) if scan else 1
    return Stack(layers, repeats=repeats, scan=scan, remat=config.remat, parent=None)


def encoder(config: EncodingConfig, kinds: str | Sequence[str]) -> Encoder:
    """An encoder with layers of these kinds (`EncoderKind`), or of a text such as `lstm:1+attention:5` (`parse_branch`).

    Where the model is pre-norm it ends in a norm, that of convolutions, too, which have none in front of them; Hu et al.
    leave open whether theirs do. `encoders` may leave it out for one behind the sum of several.

    As a module by itself, `encoder(Seq2SeqConfig(d_model=256), "lstm:6")(x, Context(query_mask=mask,
    key_mask=mask))` is (output [*B, S, D], what it reports).

    Raises:
      ConfigError: for a text that names no encoder.
      ValueError: for a kind that there is not, or no layers at all.
    """
    kinds = parse_branch(kinds) if isinstance(kinds, str) else kinds
    if not kinds:
        raise ValueError("an encoder has at least one layer: name its kind")
    known = *get_args(AttentionKind), *get_args(MixingKind)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise ValueError(f"no layer is of kind {unknown[0]!r}; there are {', '.join(known)}")
    sizes = cycle(config.encoder.expansion.vectors)
    layers = [(kind, next(sizes) if kind == "static_expansion" else 0) for kind in kinds]
    makers = [partial(encoder_layer, config, *layer) for layer in layers]
    layers_in_turn = stack(config, makers, alike=len(set(layers)) == 1)
    return Encoder(layers_in_turn, config.norm == "pre", dtype=config.dtype, parent=None)


def encoders(config: EncodingConfig) -> Encoder | Branches:
    """All encoders of a model."""
    made = tuple(encoder(config.of_branch(i), kinds) for i, kinds in enumerate(config.encoder_branches))
    if len(made) == 1:
        return made[0]
    combination = {"sum": Sum, "weighted": WeightedSum, "gated": GatedSum}[config.encoder.combine]
    of_sum = config.encoder.final_norm == "sum"
    if of_sum:
        made = tuple(one.clone(final_norm=False) for one in made)
    return Branches(
        made, combination(parent=None), of_sum and config.norm == "pre", dtype=config.dtype, parent=None
    )


def decoder(config: Seq2SeqConfig) -> Decoder:
    """The decoder of a model."""
    layers = stack(config, [partial(decoder_layer, config)] * config.decoder.layers, alike=True)
    return Decoder(layers, config.norm == "pre", dtype=config.dtype, parent=None)


def causal_decoder(config: DecoderOnlyConfig) -> Encoder:
    """The stack of a model without an encoder: layers of self-attention and feed-forward."""
    heads, levels = config.decoder.attention.heads, config.budget.decoder

    def layer() -> EncoderLayer:
        return EncoderLayer(
            attention=block(config, levels, attention(config, "sentence", heads, levels)),
            feed_forward=feed_forward(config, levels, config.decoder.feed_forward),
            parent=None,
        )

    layers = stack(config, [layer] * config.decoder.layers, alike=True)
    return Encoder(layers, config.norm == "pre", "decoder", dtype=config.dtype, parent=None)


def positions(config: ModelConfig, roll: int = 0) -> nn.Module | None:
    """Encodings of one counter, to be added to embeddings."""
    scaled = not isinstance(config, EncoderOnlyConfig)
    kinds = {
        "sinusoidal": lambda: SinusoidalPositions(config.d_model, roll=roll, parent=None),
        "learned": lambda: LearnedPositions(
            config.d_model, config.max_positions, scaled, dtype=config.dtype, parent=None
        ),
    }
    return kinds[config.positions]() if config.positions in kinds else None


def source_positions(config: EncodingConfig) -> nn.Module | None:
    """Encodings of what `source_ids` counts."""
    if not config.is_document or positions(config) is None:
        return positions(config)
    step = config.d_model // len(LEVELS) * config.document.roll_levels
    levels = [positions(config, roll=step * LEVELS.index(level)) for level in config.document.levels]
    return MultiLevelPositions(tuple(levels), parent=None)


def marking_levels(config: EncodingConfig) -> tuple[int, ...]:
    """Places of the levels whose encodings tell a decoder that sees all words which sentence it is to write."""
    if not config.is_document or config.document.cross == "sentence":
        return ()
    return tuple(i for i, level in enumerate(config.document.levels) if level != "word")


def attention_ids(config: EncodingConfig, mask: Bool[Array, "*B M"]) -> Int[Array, "..."]:
    """Position ids of the words of the source where attention asks for them, counted over the whole document."""
    return word_positions(mask) if config.is_document else positions_of(mask.shape)


def source_ids(
    config: EncodingConfig, mask: Bool[Array, "*B M"], paragraphs: Int[Array, "B N"] | None
) -> Int[Array, "..."]:
    """Position ids of the source: one counter for sentences, one on each level for documents."""
    if not config.is_document:
        return positions_of(mask.shape)
    if paragraphs is None:
        paragraphs = jnp.zeros(mask.shape[:2], jnp.int32)
    ids = document_positions(mask, paragraphs, config.document.count)
    return ids[..., [LEVELS.index(level) for level in config.document.levels]]
