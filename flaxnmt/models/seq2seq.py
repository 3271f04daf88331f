"""The encoder-decoder translation model."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.decoding.cache import DecodeCache, extend_ancestors, init_ancestors, visible_slots
from flaxnmt.layers.context import Aux, Context, KeyValues, positions_of
from flaxnmt.layers.embedding import Embedding, TokenTable
from flaxnmt.layers.stack import Stack
from flaxnmt.models.config import Seq2SeqConfig
from flaxnmt.models.decoder import Decoder, DecoderLayer
from flaxnmt.models.encoder import Encoder, EncoderLayer
from flaxnmt.typing import Array, Bool, Float, Int

PAD, BOS = 0, 2


@struct.dataclass
class Encoded:
    """Encoder output and its mask."""

    memory: Float[Array, "B S D"]
    mask: Bool[Array, "B S"]


def shift_right(target: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Decoder inputs: bos, then the target without its last symbol."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)


class Seq2Seq(nn.Module):
    """p(target | source): Transformer encoder and decoder (Vaswani et al. 2017).

    Attributes:
      config: what it is made of.
      source_vocab: symbols of the source vocabulary.
      target_vocab: symbols of the target vocabulary; the source's where all embeddings are tied.
    """

    config: Seq2SeqConfig
    source_vocab: int
    target_vocab: int

    def setup(self):
        config = self.config
        if config.tie == "all" and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"tied embeddings need one vocabulary, got {self.source_vocab} and {self.target_vocab}"
            )
        self.target_table = self._table(self.target_vocab)
        self.source_table = self.target_table if config.tie == "all" else self._table(self.source_vocab)
        self.output_table = self._table(self.target_vocab) if config.tie == "none" else self.target_table
        self.source_embedding = Embedding(self.source_table, config.make_positions(), config.dropout)
        self.target_embedding = Embedding(self.target_table, config.make_positions(), config.dropout)
        pre_norm = config.norm == "pre"
        self.encoder = Encoder(
            self._stack(config.encoder.layers, self._encoder_layer), pre_norm, dtype=config.dtype
        )
        self.decoder = Decoder(
            self._stack(config.decoder.layers, self._decoder_layer), pre_norm, dtype=config.dtype
        )

    def _table(self, size: int) -> TokenTable:
        return TokenTable(size, self.config.d_model, dtype=self.config.dtype)

    def _stack(self, count, make_layer) -> Stack:
        made = 1 if self.config.scan else count
        layers = tuple(make_layer() for _ in range(made))
        return Stack(layers, repeats=count, scan=self.config.scan, remat=self.config.remat, parent=None)

    def _encoder_layer(self) -> EncoderLayer:
        config = self.config
        blocks = (
            config.make_attention(config.encoder.attention),
            config.make_feed_forward(config.encoder.feed_forward),
        )
        return EncoderLayer(*map(config.make_block, blocks), parent=None)

    def _decoder_layer(self) -> DecoderLayer:
        config = self.config
        over_target, over_source = (config.make_attention(config.decoder.attention) for _ in range(2))
        blocks = over_target, over_source, config.make_feed_forward(config.decoder.feed_forward)
        return DecoderLayer(*map(config.make_block, blocks), parent=None)

    def encode(
        self, source: Int[Array, "B S"], deterministic: bool = True, capture: bool = False
    ) -> tuple[Encoded, Aux]:
        """Encodes padded source ids."""
        mask = source != PAD
        context = Context(query_mask=mask, key_mask=mask, deterministic=deterministic, capture=capture)
        x = self.source_embedding(source, positions_of(source.shape), deterministic)
        memory, aux = self.encoder(x, context)
        return Encoded(memory, mask), aux

    def decode(
        self, encoded: Encoded, target: Int[Array, "B T"], deterministic: bool = True, capture: bool = False
    ):
        """Decoder output [B, T, D] at all positions of the target, each given the symbols before it."""
        positions = positions_of(target.shape)
        own = Context(
            query_positions=positions,
            key_positions=positions,
            causal=True,
            deterministic=deterministic,
            capture=capture,
        )
        other = Context(key_mask=encoded.mask, deterministic=deterministic, capture=capture)
        x = self.target_embedding(shift_right(target), positions, deterministic)
        return self.decoder(x, encoded.memory, own, other)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Scores of the next symbol, float32."""
        return self.output_table.logits(hidden)

    def __call__(self, source: Int[Array, "B S"], target: Int[Array, "B T"], deterministic: bool = True):
        """Logits [B, T, V] of every target symbol given the source and the symbols before it."""
        encoded, _ = self.encode(source, deterministic)
        hidden, _ = self.decode(encoded, target, deterministic)
        return self.logits(hidden)

    def output_weights(self) -> Float[Array, "V D"]:
        """The table whose products with decoder outputs are the logits."""
        return self.output_table.table

    def start(self, source: Int[Array, "B S"], beams: int, max_length: int) -> DecodeCache:
        """The cache before the first symbol: source keys and values, room for `max_length` target positions."""
        encoded, _ = self.encode(source)
        cross = self.decoder.source_keys(encoded.memory, Context(key_mask=encoded.mask))
        layers, heads = self.config.decoder.layers, self.config.decoder.attention.heads
        rows, d_head = source.shape[0], self.config.d_model // heads
        if self.config.scan:
            empty = jnp.zeros((layers, rows, heads, max_length * beams, d_head), self.config.dtype)
            own = KeyValues(empty, empty)
        else:
            empty = jnp.zeros((rows, heads, max_length * beams, d_head), self.config.dtype)
            own = (KeyValues(empty, empty),) * layers
        return DecodeCache(init_ancestors(rows, beams, max_length), (own, cross, encoded.mask))

    def step(self, cache: DecodeCache, tokens: Int[Array, "B K"], position: Int[Array, ""]):
        """Logits [B, K, V] of the symbol after `tokens`, which stand at `position` (bos at 0), and the cache.

        The keys and values that hypothesis k writes at position t stay in slot t K + k; which slots are the past
        of a hypothesis follows from its ancestors, so that no beam is ever copied.
        """
        beams = tokens.shape[1]
        own, cross, mask = cache.shared
        ancestors = extend_ancestors(cache.per_beam, position)
        target = Context(visible=visible_slots(ancestors, position))

        def write(cached: KeyValues, new: KeyValues) -> KeyValues:
            put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=position * beams, axis=2)
            return jax.tree.map(put, cached, new)

        x = self.target_embedding(tokens, jnp.full((1, 1), position), True)
        hidden, own = self.decoder.step(x, own, cross, target, Context(key_mask=mask), write)
        return self.logits(hidden), DecodeCache(ancestors, (own, cross, mask))
