"""The encoder-decoder translation model."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.decoding.cache import DecodeCache, extend_ancestors, init_ancestors, visible_slots
from flaxnmt.layers.context import Aux, Context, KeyValues, positions_of
from flaxnmt.layers.embedding import Embedding, TokenTable
from flaxnmt.layers.stack import Stack
from flaxnmt.models import build
from flaxnmt.models.config import Seq2SeqConfig
from flaxnmt.models.decoder import Decoder
from flaxnmt.models.encoder import Encoder
from flaxnmt.typing import Array, Bool, Float, Int

PAD, BOS, EOS = 0, 2, 3


@struct.dataclass
class Encoded:
    """Encoder output and its mask."""

    memory: Float[Array, "*B S D"]
    mask: Bool[Array, "*B S"]


def shift_right(target: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Decoder inputs: bos, then the target without its last symbol."""
    first = jnp.full_like(target[..., :1], BOS)
    return jnp.concatenate([first, target[..., :-1]], axis=-1)


class Seq2Seq(nn.Module):
    """p(target | source): Transformer encoder and decoder (Vaswani et al. 2017).

    A source is sentences [B, S], or documents of N sentences of M words, [B, N, M], of which all sentences are
    decoded in parallel: targets [B, T] or [B, N, T].

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
        self.source_embedding = Embedding(self.source_table, build.source_positions(config), config.dropout)
        self.target_embedding = Embedding(self.target_table, build.positions(config), config.dropout)
        pre_norm = config.norm == "pre"
        encoder = self._stack([partial(build.encoder_layer, config, kind) for kind in config.encoder_kinds])
        self.encoder = Encoder(encoder, pre_norm, dtype=config.dtype)
        decoder = self._stack([partial(build.decoder_layer, config)] * config.decoder.layers)
        self.decoder = Decoder(decoder, pre_norm, dtype=config.dtype)

    def _table(self, size: int) -> TokenTable:
        return TokenTable(size, self.config.d_model, dtype=self.config.dtype)

    def _stack(self, makers) -> Stack:
        made = makers[:1] if self.config.scan else makers
        layers = tuple(make() for make in made)
        return Stack(layers, repeats=len(makers), scan=self.config.scan, remat=self.config.remat, parent=None)

    def encode(
        self,
        source: Int[Array, "*B S"],
        deterministic: bool = True,
        capture: bool = False,
        paragraphs: Int[Array, "B N"] | None = None,
    ) -> tuple[Encoded, Aux]:
        """Encodes padded source ids; `paragraphs` numbers the paragraph of each sentence of a document from 0."""
        mask = source != PAD
        if not self.config.document.sentence_ends:
            mask &= source != EOS
        context = Context(query_mask=mask, key_mask=mask, deterministic=deterministic, capture=capture)
        x = self.source_embedding(source, build.source_ids(self.config, mask, paragraphs), deterministic)
        memory, aux = self.encoder(x, context)
        return Encoded(memory, mask), aux

    def decode(
        self, encoded: Encoded, target: Int[Array, "*B T"], deterministic: bool = True, capture: bool = False
    ):
        """Decoder output [*B, T, D] at all positions of the target, each given the symbols before it."""
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

    def __call__(
        self,
        source: Int[Array, "*B S"],
        target: Int[Array, "*B T"],
        deterministic: bool = True,
        paragraphs: Int[Array, "B N"] | None = None,
    ):
        """Logits [*B, T, V] of every target symbol given the source and the symbols before it."""
        encoded, _ = self.encode(source, deterministic, paragraphs=paragraphs)
        hidden, _ = self.decode(encoded, target, deterministic)
        return self.logits(hidden)

    def output_weights(self) -> Float[Array, "V D"]:
        """The table whose products with decoder outputs are the logits."""
        return self.output_table.table

    def start(
        self,
        source: Int[Array, "*B S"],
        beams: int,
        max_length: int,
        paragraphs: Int[Array, "B N"] | None = None,
    ) -> DecodeCache:
        """The cache before the first symbol: source keys and values, room for `max_length` target positions.

        Each sentence of a document is a row of the search of its own.
        """
        encoded, _ = self.encode(source, paragraphs=paragraphs)
        shared = self.decoder.source_keys(encoded.memory, Context(key_mask=encoded.mask))
        layers, heads = self.config.decoder.layers, self.config.decoder.attention.heads
        shape = *source.shape[:-1], heads, max_length * beams, self.config.d_model // heads
        if self.config.scan:
            empty = jnp.zeros((layers, *shape), self.config.dtype)
            own = KeyValues(empty, empty)
        else:
            empty = jnp.zeros(shape, self.config.dtype)
            own = (KeyValues(empty, empty),) * layers
        rows = math.prod(source.shape[:-1])
        return DecodeCache(init_ancestors(rows, beams, max_length), (own, shared, encoded.mask))

    def step(self, cache: DecodeCache, tokens: Int[Array, "R K"], position: Int[Array, ""]):
        """Logits [R, K, V] of the symbol after `tokens`, which stand at `position` (bos at 0), and the cache.

        The keys and values that hypothesis k writes at position t stay in slot t K + k; which slots are the past
        of a hypothesis follows from its ancestors, so that no beam is ever copied.
        """
        rows, beams = tokens.shape
        own, shared, mask = cache.shared
        batch = mask.shape[:-1]
        ancestors = extend_ancestors(cache.per_beam, position)
        visible = visible_slots(ancestors, position)
        target = Context(visible=visible.reshape(*batch, *visible.shape[1:]))

        def write(cached: KeyValues, new: KeyValues) -> KeyValues:
            put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=position * beams, axis=-2)
            return jax.tree.map(put, cached, new)

        x = self.target_embedding(tokens.reshape(*batch, beams), jnp.full((1, 1), position), True)
        hidden, own = self.decoder.step(x, own, shared, target, Context(key_mask=mask), write)
        logits = self.logits(hidden.reshape(rows, beams, -1))
        return logits, DecodeCache(ancestors, (own, shared, mask))
