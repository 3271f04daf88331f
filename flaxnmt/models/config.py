"""What a translation model is made of. Each part is an object that names itself and makes its module."""

from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.layers.block import Block
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.positions import LearnedPositions, SinusoidalPositions
from flaxnmt.layers.sublayer import SubLayer


@dataclass(frozen=True)
class MultiHead:
    """Multi-head dot-product attention."""

    heads: int = 8


@dataclass(frozen=True)
class EncoderConfig:
    layers: int = 6
    attention: MultiHead = field(default_factory=MultiHead)
    feed_forward: int = 2048
    """F, the inner dimension of the feed-forward networks."""


@dataclass(frozen=True)
class DecoderConfig:
    layers: int = 6
    attention: MultiHead = field(default_factory=MultiHead)
    """Of the target over itself and over the source."""
    feed_forward: int = 2048


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Transformer encoder-decoder."""

    d_model: int = 512
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_positions: int = 512
    """Rows of learned position tables."""
    tie: Literal["all", "target", "none"] = "all"
    """Embeddings that are one table: source, target and output; target and output; none."""
    dropout: float = 0.1
    """Rate on embeddings and on the output of every sub-layer."""
    attention_dropout: float | None = None
    """Rate on attention weights; `dropout` if None."""
    hidden_dropout: float | None = None
    """Rate inside feed-forward networks; `dropout` if None."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameters, softmax, logits and loss are float32 in either case."""
    scan: bool = False
    """Run layers as a scan over stacked parameters: compiles faster, holds more memory."""
    remat: bool = False
    """Compute activations again in the backward pass."""

    @property
    def dtype(self):
        return jnp.dtype(self.compute_dtype)

    def make_attention(self, attention: MultiHead) -> SubLayer:
        rate = self.dropout if self.attention_dropout is None else self.attention_dropout
        return MultiHeadAttention(self.d_model, attention.heads, dropout=rate, dtype=self.dtype, parent=None)

    def make_feed_forward(self, hidden: int) -> SubLayer:
        rate = self.dropout if self.hidden_dropout is None else self.hidden_dropout
        return FeedForward(self.d_model, hidden, dropout=rate, dtype=self.dtype, parent=None)

    def make_block(self, sublayer: SubLayer) -> Block:
        return Block(sublayer, norm=self.norm, dropout=self.dropout, dtype=self.dtype, parent=None)

    def make_positions(self) -> nn.Module | None:
        kinds = {
            "sinusoidal": lambda: SinusoidalPositions(self.d_model, parent=None),
            "learned": lambda: LearnedPositions(
                self.d_model, self.max_positions, dtype=self.dtype, parent=None
            ),
            "none": lambda: None,
        }
        return kinds[self.positions]()


def _size(d_model: int, layers: int, heads: int, feed_forward: int) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        d_model=d_model,
        encoder=EncoderConfig(layers, MultiHead(heads), feed_forward),
        decoder=DecoderConfig(layers, MultiHead(heads), feed_forward),
    )


PRESETS = {
    "tiny": _size(128, 4, 4, 256),
    "small": _size(256, 3, 4, 1024),
    "base": _size(512, 6, 8, 2048),
    "big": _size(1024, 6, 16, 4096),
}
"""The sizes that papers and toolkits compare at; base and big are those of Vaswani et al. 2017, table 3."""
