"""The encoder-decoder translation model."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.attention.context import WordsAndSentences
from flaxnmt.decoding.cache import DecodeCache, extend_ancestors, init_ancestors, visible_slots
from flaxnmt.gates.budget import full_budget
from flaxnmt.layers.context import Aux, Context, Gating, KeyValues, positions_of
from flaxnmt.layers.embedding import Embedding, TokenTable
from flaxnmt.layers.segments import Segments, divided
from flaxnmt.models import build
from flaxnmt.models.config import Seq2SeqConfig
from flaxnmt.symbols import BOS, EOS, PAD
from flaxnmt.typing import Array, Bool, Float, Int


@struct.dataclass
class Encoded:
    """Encoder output and its mask.

    `marks` are added to every target token of an example [B, D], or of a sentence of it [B, N, D]: the embedding of
    its budget, and the position of the sentence where nothing else says which one is to be written.
    """

    memory: Float[Array, "*B S D"]
    mask: Bool[Array, "*B S"]
    marks: Float[Array, "*A D"] | None = None

    def of(self, wanted: Int[Array, "B W"]) -> "Encoded":
        """What a decoder reads that looks at no other sentence than its own, of some sentences of each document."""

        def take(leaf):
            return jax.vmap(lambda values, index: values[index])(leaf, wanted)

        by_sentence = self.marks is not None and self.marks.ndim == 3
        return Encoded(take(self.memory), take(self.mask), take(self.marks) if by_sentence else self.marks)


def shift_right(target: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Decoder inputs: bos, then the target without its last symbol."""
    first = jnp.full_like(target[..., :1], BOS)
    return jnp.concatenate([first, target[..., :-1]], axis=-1)


class Seq2Seq(nn.Module):
    """p(target | source): Transformer encoder and decoder (Vaswani et al. 2017).

    A source is sentences [B, S], or documents of N sentences of M words, [B, N, M], of which all sentences are
    decoded in parallel: targets [B, T] or [B, N, T].

    A model with gates is told the budget of each example, a place in `config.budgets`; without one it uses its
    largest. `gating` says how its gates are in training; with `skip` what they decide against is not computed.

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
        if config.budgets:
            self.budget_table = self._table(len(config.budgets), zeros=True, axis=None)
        self.source_embedding = Embedding(self.source_table, build.source_positions(config), config.dropout)
        self.target_embedding = Embedding(self.target_table, build.positions(config), config.dropout)
        self.encoder = build.encoders(config)
        self.decoder = build.decoder(config)

    def _table(self, size: int, **options) -> TokenTable:
        return TokenTable(size, self.config.d_model, dtype=self.config.dtype, **options)

    def _control(
        self, budget: Int[Array, " B"] | None, source: Int[Array, "*B S"]
    ) -> Float[Array, "B D"] | None:
        """Embedding of the budget of each example."""
        if not self.config.budgets:
            return None
        if budget is None:
            budget = jnp.full(source.shape[0], full_budget(self.config.budgets), jnp.int32)
        return self.budget_table.embed(budget)

    def encode(
        self,
        source: Int[Array, "*B S"],
        *,
        deterministic: bool = True,
        capture: bool = False,
        paragraphs: Int[Array, "B N"] | None = None,
        budget: Int[Array, " B"] | None = None,
        gating: Gating | None = None,
        skip: bool = False,
        places: Int[Array, "B N M"] | None = None,
    ) -> tuple[Encoded, Aux]:
        """Encodes padded source ids; `paragraphs` numbers the paragraph of each sentence of a document from 0.

        `places` says, for each word that the decoder is to find, where among the N M words of its document the
        encoder read it (-1: nowhere), if that was somewhere else (`flaxnmt.data.boundaries`).
        """
        mask = source != PAD
        if not self.config.document.sentence_ends:
            mask &= source != EOS
        words = build.attention_ids(self.config, mask)
        context = Context(
            query_mask=mask,
            key_mask=mask,
            query_positions=words,
            key_positions=words,
            # Where ends of sentences are padding, and boundaries put them inside of a sentence, there are gaps.
            consecutive=self.config.document.sentence_ends or not self.config.is_document,
            gating=gating,
            deterministic=deterministic,
            skip=skip,
            capture=capture,
        )
        marks = self._control(budget, source)
        ids = build.source_ids(self.config, mask, paragraphs)
        x = self.source_embedding(source, ids, deterministic, marks)
        if levels := build.marking_levels(self.config):
            sentences = self.source_embedding.positions(ids[:, :, 0], levels).astype(x.dtype)
            marks = sentences if marks is None else sentences + marks[:, None]
        memory, aux = self.encoder(x, context)
        if places is not None:
            memory, seen = (
                jax.vmap(lambda read, place: read.reshape(-1, *read.shape[2:])[place])(read, places)
                for read in (memory, mask)
            )
            mask = seen & (places >= 0)
        return Encoded(memory, mask, marks), aux

    def decode(
        self,
        encoded: Encoded,
        target: Int[Array, "*B T"],
        *,
        deterministic: bool = True,
        capture: bool = False,
        gating: Gating | None = None,
        skip: bool = False,
    ):
        """Decoder output [*B, T, D] at all positions of the target, each given the symbols before it."""
        positions = positions_of(target.shape)
        both = Context(
            query_mask=target != PAD,
            gating=gating,
            deterministic=deterministic,
            skip=skip,
            capture=capture,
        )
        own = both.replace(query_positions=positions, key_positions=positions, causal=True, consecutive=True)
        x = self.target_embedding(shift_right(target), positions, deterministic, encoded.marks)
        return self.decoder(x, encoded.memory, own, both.replace(key_mask=encoded.mask))

    def logits(
        self, hidden: Float[Array, "... D"], active: Bool[Array, "..."] | None = None
    ) -> Float[Array, "... V"]:
        """Scores of the next symbol, float32; zeros where a row is not `active`."""
        return self.output_table.logits(hidden, active)

    def __call__(
        self,
        source: Int[Array, "*B S"],
        target: Int[Array, "*B T"],
        *,
        deterministic: bool = True,
        paragraphs: Int[Array, "B N"] | None = None,
        budget: Int[Array, " B"] | None = None,
    ):
        """Logits [*B, T, V] of every target symbol given the source and the symbols before it."""
        encoded, _ = self.encode(source, deterministic=deterministic, paragraphs=paragraphs, budget=budget)
        hidden, _ = self.decode(encoded, target, deterministic=deterministic)
        return self.logits(hidden)

    def logits_and_use(
        self,
        source: Int[Array, "*B S"],
        target: Int[Array, "*A T"],
        paragraphs: Int[Array, "B N"] | None = None,
        budget: Int[Array, " B"] | None = None,
        places: Int[Array, "B N M"] | None = None,
        skip: bool = False,
        wanted: Int[Array, "B W"] | None = None,
    ) -> tuple[Float[Array, "*A T V"], Float[Array, "B _"]]:
        """Logits, and which share of their full computation encoder and decoder used, [B, 2]; [B, 0] without gates.

        With `wanted` targets are those of some sentences of each document, [B, W, T], by their index.
        """
        encoded, encoder = self.encode(source, paragraphs=paragraphs, budget=budget, places=places, skip=skip)
        if wanted is not None:
            encoded = encoded.of(wanted)
        hidden, decoder = self.decode(encoded, target, skip=skip)
        if not self.config.budgets:
            return self.logits(hidden), jnp.zeros((len(source), 0))
        return self.logits(hidden), jnp.stack([encoder.use(len(source)), decoder.use(len(source))], axis=-1)

    def output_weights(self) -> Float[Array, "V D"]:
        """The table whose products with decoder outputs are the logits."""
        return self.output_table.table

    def start(
        self,
        source: Int[Array, "*B S"],
        beams: int,
        max_length: int,
        paragraphs: Int[Array, "B N"] | None = None,
        budget: Int[Array, " B"] | None = None,
        skip: bool = True,
        wanted: Int[Array, "B W"] | None = None,
        places: Int[Array, "B N M"] | None = None,
        segments: int = 1,
    ) -> DecodeCache:
        """The cache before the first symbol: source keys and values, room for `max_length` target positions.

        Each sentence of a document is a row of the search of its own, or each of those `wanted`, by their index. The
        room is divided into `segments`, of which steps read those that hold something.
        """
        encoded, _ = self.encode(source, paragraphs=paragraphs, budget=budget, skip=skip, places=places)
        shared = self.decoder.source_keys(encoded.memory, Context(key_mask=encoded.mask, skip=skip))
        mask, marks = encoded.mask, encoded.marks
        lead = source.shape[:-1] if wanted is None else wanted.shape
        if wanted is not None and marks is not None and marks.ndim == 3:
            marks = jnp.take_along_axis(marks, wanted[..., None], axis=1)
        if wanted is not None and self.config.document.cross == "sentence":
            shared, mask = self._of_sentences(shared, mask, wanted)
        layers, heads = self.config.decoder.layers, self.config.decoder.attention.heads
        shape = *lead, heads, 0, self.config.d_model // heads
        lengths = [beams * positions for positions in divided(max_length, segments)]
        if self.config.scan:
            nothing = jnp.zeros((layers, *shape), self.config.dtype)
            own = Segments.behind(KeyValues(nothing, nothing), lengths, scanned=True)
        else:
            nothing = jnp.zeros(shape, self.config.dtype)
            own = (Segments.behind(KeyValues(nothing, nothing), lengths),) * layers
        return DecodeCache(init_ancestors(math.prod(lead), beams, max_length), (own, shared, mask, marks))

    def _of_sentences(self, shared, mask: Bool[Array, "B N M"], wanted: Int[Array, "B W"]):
        """What the decoder needs of the words of its own sentence, for some sentences of each document."""

        def take(leaf):
            return jax.vmap(lambda values, index: values[index])(leaf, wanted)

        def of_cross(keys, take):
            # Additional heads look at all sentences, whichever is written.
            return jax.tree.map(
                lambda of: of.of_words(take) if isinstance(of, WordsAndSentences) else take(of),
                keys,
                is_leaf=lambda of: isinstance(of, WordsAndSentences),
            )

        if self.config.scan:
            return shared | {"cross": of_cross(shared["cross"], jax.vmap(take))}, take(mask)
        return tuple(layer | {"cross": of_cross(layer["cross"], take)} for layer in shared), take(mask)

    def step(
        self, cache: DecodeCache, tokens: Int[Array, "R K"], position: Int[Array, ""], skip: bool = True
    ):
        """Logits [R, K, V] of the symbol after `tokens`, which stand at `position` (bos at 0), and the cache.

        The keys and values that hypothesis k writes at position t stay in slot t K + k; which slots are the past
        of a hypothesis follows from its ancestors, so that no beam is ever copied.
        """
        rows, beams = tokens.shape
        own, shared, mask, marks = cache.shared
        batch = mask.shape[:1] if mask.ndim == 2 else (len(mask), rows // len(mask))
        ancestors = extend_ancestors(cache.per_beam, position)
        visible = visible_slots(ancestors, position)
        length = ancestors.shape[-1]
        ids = tokens.reshape(*batch, beams)
        target = Context(
            query_mask=ids != PAD,
            visible=visible.reshape(*batch, *visible.shape[1:]),
            query_positions=jnp.full((1, beams), position),
            key_positions=jnp.arange(length * beams)[None] // beams,
            span=length,
            skip=skip,
        )

        def write(cached: Segments, new: KeyValues) -> Segments:
            return cached.written(new, position * beams)

        x = self.target_embedding(ids, jnp.full((1, 1), position), True, marks)
        source = Context(query_mask=target.query_mask, key_mask=mask, skip=skip)
        hidden, own = self.decoder.step(x, own, shared, target, source, write)
        alive = tokens != PAD if skip and self.config.budgets else None
        logits = self.logits(hidden.reshape(rows, beams, -1), alive)
        return logits, DecodeCache(ancestors, (own, shared, mask, marks))
