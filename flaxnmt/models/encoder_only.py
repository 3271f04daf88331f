"""Models that are an encoder alone: BERT (Devlin et al. 2019), with any encoder of this library."""

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.gates.budget import full_budget
from flaxnmt.layers.active import picked
from flaxnmt.layers.block import layer_norm
from flaxnmt.layers.context import Aux, Context, Gating, packed_positions
from flaxnmt.layers.embedding import Embedding, TokenTable
from flaxnmt.models import build
from flaxnmt.models.config import EncoderOnlyConfig
from flaxnmt.models.heads import Classes, Labels, MaskedTokens, first_row, mean_row
from flaxnmt.symbols import PAD
from flaxnmt.typing import Array, Bool, Float, Int

SPAN_ENDS = 2


class EncoderOnly(nn.Module):
    """A bidirectional encoder of token sequences [B, L], and a head that says something of its output.

    A model with gates is told the budget of each example as a `Seq2Seq` is.

    Attributes:
      config: what it is made of; `config.head` says which head there is.
      vocab_size: symbols of the vocabulary.
    """

    config: EncoderOnlyConfig
    vocab_size: int

    def setup(self):
        config = self.config
        sizes = {"d_model": config.d_model, "dtype": config.dtype}
        self.table = TokenTable(self.vocab_size, scaled=False, **sizes)
        if config.segments:
            self.segment_table = TokenTable(config.segments, scaled=False, axis=None, **sizes)
        if config.budgets:
            self.budget_table = TokenTable(len(config.budgets), scaled=False, zeros=True, axis=None, **sizes)
        norm = layer_norm(config.dtype) if config.embedding_norm else None
        self.embedding = Embedding(self.table, build.source_positions(config), config.dropout, norm)
        self.encoder = build.encoders(config)
        rate, pool = config.dropout, first_row if config.sees_all else mean_row
        self.head = {
            "masked": lambda: MaskedTokens(self.table, **sizes),
            "classes": lambda: Classes(config.classes, pool=pool, dropout=rate, **sizes),
            "labels": lambda: Labels(config.classes, config.d_model, dropout=rate),
            "spans": lambda: Labels(SPAN_ENDS, config.d_model, dropout=rate),
        }[config.head]()

    def encode(
        self,
        tokens: Int[Array, "*B L"],
        segments: Int[Array, "*B L"] | None = None,
        *,
        deterministic: bool = True,
        capture: bool = False,
        packed: Int[Array, "B L"] | None = None,
        paragraphs: Int[Array, "B N"] | None = None,
        budget: Int[Array, " B"] | None = None,
        gating: Gating | None = None,
        skip: bool = False,
        places: Int[Array, "*B P"] | None = None,
    ) -> tuple[Float[Array, "*B R D"], Aux]:
        """Contextual embeddings of padded token ids, and what the layers report.

        Args:
          tokens: ids, 0 at padding; documents are [B, N, M].
          segments: which of the texts of a sequence a token belongs to, from 0; the first if None.
          deterministic, capture, gating, skip: see `Context`.
          packed: number of the document that each token is of, where several are packed into a sequence; attention sees
            that of a token alone, other encoders the whole sequence (see `packs` of the configuration).
          paragraphs: of each sentence of a document, from 0.
          budget: of each example, as its place in `config.budgets`; the largest if None.
          places: of the tokens of each sequence whose embeddings are wanted; all if None. Where `config.ends_in_rows`
            says so, the last layer computes no others.
        """
        mask = tokens != PAD
        context = self._context(
            mask,
            visible=None if packed is None else packed[:, :, None] == packed[:, None, :],
            gating=gating,
            deterministic=deterministic,
            skip=skip,
            capture=capture,
        )
        ids = self._positions(mask, packed, paragraphs)
        x = self._embed(tokens, segments, ids, budget, deterministic)
        if places is None:
            return self.encoder(x, context)
        if self.config.ends_in_rows:
            return self.encoder(x, context, places)
        hidden, aux = self.encoder(x, context)
        return picked(hidden, places), aux

    def _context(self, mask: Bool[Array, "*B L"], **options) -> Context:
        """Of tokens that look at each other."""
        words = build.attention_ids(self.config, mask)
        return Context(
            query_mask=mask,
            key_mask=mask,
            query_positions=words,
            key_positions=words,
            consecutive=not self.config.is_document,
            **options,
        )

    def _embed(
        self, tokens, segments, ids, budget=None, deterministic: bool = True
    ) -> Float[Array, "*B L D"]:
        marks = others = None
        if self.config.budgets:
            full = jnp.full(tokens.shape[0], full_budget(self.config.budgets), jnp.int32)
            marks = self.budget_table.embed(full if budget is None else budget)
        if self.config.segments:
            others = self.segment_table.embed(jnp.zeros_like(tokens) if segments is None else segments)
        return self.embedding(tokens, ids, deterministic, marks, others)

    def _positions(self, mask: Bool[Array, "*B L"], packed, paragraphs) -> Int[Array, "..."]:
        """Position ids: those of `build.source_ids`, or counted from the beginning of each packed document."""
        if packed is None:
            return build.source_ids(self.config, mask, paragraphs)
        return packed_positions(packed)

    def layers(
        self,
        tokens: Int[Array, "*B L"],
        segments: Int[Array, "*B L"] | None = None,
        *,
        budget: Int[Array, " B"] | None = None,
        skip: bool = False,
    ) -> Float[Array, "layers *B L D"]:
        """Embeddings of every token before the first layer and after each (of a single encoder)."""
        mask = tokens != PAD
        x = self._embed(tokens, segments, self._positions(mask, None, None), budget)
        return self.encoder.outputs(x, self._context(mask, skip=skip))

    def logits(
        self,
        hidden: Float[Array, "..."],
        deterministic: bool = True,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "..."]:
        """What the head says of encoder output [*B, L, D], float32: [*B, C] of classes; else [*B, L, V or C or 2].

        The mask [*B, L] is False at padding, which is then no part of what a class is read off.
        """
        return self.head(hidden, deterministic, mask).astype(jnp.float32)

    def read_off(
        self,
        tokens: Int[Array, "*B L"],
        segments: Int[Array, "*B L"] | None = None,
        *,
        deterministic: bool = True,
        **options,
    ) -> tuple[Float[Array, "..."], Aux]:
        """Logits of the head, as `logits`, and what the layers report; options are those of `encode`."""
        mask, options = tokens != PAD, options | {"deterministic": deterministic}
        if self.config.head == "classes" and self.config.sees_all:
            # Of the first token, which has no padding.
            options["places"], mask = jnp.zeros((*tokens.shape[:-1], 1), jnp.int32), None
        hidden, aux = self.encode(tokens, segments, **options)
        return self.logits(hidden, deterministic, mask), aux

    def __call__(
        self,
        tokens: Int[Array, "*B L"],
        segments: Int[Array, "*B L"] | None = None,
        *,
        deterministic: bool = True,
        paragraphs: Int[Array, "B N"] | None = None,
        budget: Int[Array, " B"] | None = None,
        skip: bool = False,
    ) -> Float[Array, "..."]:
        """Logits of the head, as `logits`."""
        given = {"paragraphs": paragraphs, "budget": budget, "skip": skip}
        return self.read_off(tokens, segments, deterministic=deterministic, **given)[0]
