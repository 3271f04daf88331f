"""Models that are a decoder alone: a text, or a source, a delimiter and a target, as one sequence (Liu et al. 2018)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.decoding.cache import DecodeCache, extend_ancestors, init_ancestors, visible_slots
from flaxnmt.gates.budget import full_budget
from flaxnmt.layers.context import Aux, Context, Gating, KeyValues, packed_positions, positions_of
from flaxnmt.layers.embedding import Embedding, TokenTable
from flaxnmt.layers.segments import Segments, divided
from flaxnmt.models import build
from flaxnmt.models.config import DecoderOnlyConfig
from flaxnmt.models.seq2seq import Encoded, shift_right
from flaxnmt.symbols import EOS, PAD
from flaxnmt.typing import Array, Bool, Float, Int


def one_sequence(
    source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> tuple[Int[Array, "B L"], Bool[Array, "B L"], Int[Array, "B L"]]:
    """(m_1 .. m_n, delimiter, y_1 .. y_h): inputs of a decoder, which of them there are, and their places from 0.

    The delimiter, bos, takes the place of the eos that ends the source, so that a pair of n and h symbols has
    n + h + 1; what the last T inputs predict is the target with its eos. Padding keeps its columns and is not counted.
    """
    tokens = jnp.concatenate([source, shift_right(target)], axis=-1)
    present = jnp.concatenate([_words(source), target != PAD], axis=-1)
    return tokens, present, _counted(present)


def _words(source: Int[Array, "B S"]) -> Bool[Array, "B S"]:
    return (source != PAD) & (source != EOS)


def _counted(present: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    return jnp.maximum(jnp.cumsum(present, axis=-1, dtype=jnp.int32) - 1, 0)


def _context(
    present: Bool[Array, "B L"], places: Int[Array, "#B L"] | None, visible: Bool[Array, "#B L L"], **options
) -> Context:
    """Of symbols that look at each other, at these places or in their columns."""
    return Context(
        query_mask=present,
        key_mask=present,
        query_positions=places,
        key_positions=places,
        visible=visible,
        **options,
    )


class DecoderOnly(nn.Module):
    """p(y_t | what stands before y_t) by a causal stack of self-attention and feed-forward layers.

    It serves wherever a `Seq2Seq` does, as a model of p(target | source): `encode` only embeds the source, and `decode`
    runs over both. As a model of texts it has `language`.

    Attributes:
      config: what it is made of.
      vocab_size: symbols of its one vocabulary.
    """

    config: DecoderOnlyConfig
    vocab_size: int

    def setup(self):
        config = self.config
        self.table = TokenTable(self.vocab_size, config.d_model, dtype=config.dtype)
        if config.budgets:
            self.budget_table = TokenTable(
                len(config.budgets), config.d_model, zeros=True, axis=None, dtype=config.dtype
            )
        self.embedding = Embedding(self.table, build.positions(config), config.dropout)
        self.decoder = build.causal_decoder(config)

    def _marks(self, budget: Int[Array, " B"] | None, rows: int) -> Float[Array, "B D"] | None:
        if not self.config.budgets:
            return None
        full = jnp.full(rows, full_budget(self.config.budgets), jnp.int32)
        return self.budget_table.embed(full if budget is None else budget)

    def _visible(
        self, places: Int[Array, "#B Q"], keys: Int[Array, "#B L"], source: int = 0
    ) -> Bool[Array, "B Q L"]:
        """What a symbol at a place sees: itself, those before it within the window, and perhaps a whole source.

        `source` is the number of columns, from the first, whose symbols may see what is behind them, too.
        """
        behind = places[..., :, None] - keys[..., None, :]
        visible = behind >= 0
        if self.config.prefix == "bidirectional" and source:
            columns = jnp.arange(keys.shape[-1]) < source
            visible |= columns[: places.shape[-1], None] & columns
        if self.config.window is not None:
            visible &= jnp.abs(behind) < self.config.window
        return visible

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        deterministic: bool = True,
        capture: bool = False,
        paragraphs: None = None,
        budget: Int[Array, " B"] | None = None,
        gating: Gating | None = None,
        skip: bool = False,
        places: None = None,
    ) -> tuple[Encoded, Aux]:
        """The source as it is, for `decode`, which reads it; arguments are those of `Seq2Seq.encode`."""
        return Encoded(source, _words(source), self._marks(budget, len(source))), Aux()

    def decode(
        self,
        encoded: Encoded,
        target: Int[Array, "B T"],
        *,
        deterministic: bool = True,
        capture: bool = False,
        gating: Gating | None = None,
        skip: bool = False,
    ) -> tuple[Float[Array, "B T D"], Aux]:
        """Output [B, T, D] at all positions of the target, each given the source and the symbols before it."""
        source = encoded.memory
        tokens, present, places = one_sequence(source, target)
        visible = self._visible(places, places, source.shape[-1])
        options = {
            "gating": gating,
            "deterministic": deterministic,
            "skip": skip,
            "capture": capture,
        }
        context = _context(present, places, visible, **options)
        x = self.embedding(tokens, places, deterministic, encoded.marks)
        hidden, aux = self.decoder(x, context)
        return hidden[:, source.shape[-1] :], aux

    def language(
        self,
        tokens: Int[Array, "B L"],
        *,
        deterministic: bool = True,
        packed: Int[Array, "B L"] | None = None,
        budget: Int[Array, " B"] | None = None,
        gating: Gating | None = None,
        capture: bool = False,
    ) -> tuple[Float[Array, "B L D"], Aux]:
        """Output of each symbol of texts, given it and those before it.

        Args:
          packed: number of the document that each token is of, where several are packed into a sequence.
        """
        mask = tokens != PAD
        packed = jnp.zeros_like(tokens) if packed is None else packed
        places = packed_positions(packed)
        visible = self._visible(places, places) & (packed[:, :, None] == packed[:, None, :])
        options = {
            "gating": gating,
            "deterministic": deterministic,
            "capture": capture,
        }
        x = self.embedding(tokens, places, deterministic, self._marks(budget, len(tokens)))
        # Distances between symbols of one document are those of their columns.
        return self.decoder(x, _context(mask, None, visible, **options))

    def layers(
        self,
        tokens: Int[Array, "B T"],
        source: Int[Array, "B S"] | None = None,
        *,
        budget: Int[Array, " B"] | None = None,
        skip: bool = False,
    ) -> Float[Array, "layers B L D"]:
        """Embeddings of every symbol before the first layer and after each: of texts, or of sources and targets.

        With a source the symbols are those of `one_sequence`, L = S + T in their columns; without one L = T.
        """
        if source is None:
            present, places, columns = tokens != PAD, positions_of(tokens.shape), 0
        else:
            tokens, present, places = one_sequence(source, tokens)
            columns = source.shape[-1]
        x = self.embedding(tokens, places, True, self._marks(budget, len(tokens)))
        visible = self._visible(places, places, columns)
        return self.decoder.outputs(x, _context(present, places, visible, skip=skip))

    def logits(
        self, hidden: Float[Array, "... D"], active: Bool[Array, "..."] | None = None
    ) -> Float[Array, "... V"]:
        """Scores of the next symbol, float32; zeros where a row is not `active`."""
        return self.table.logits(hidden, active)

    def output_weights(self) -> Float[Array, "V D"]:
        """The table whose products with outputs are the logits."""
        return self.table.table

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        deterministic: bool = True,
        budget: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Logits of every target symbol given the source and the symbols before it."""
        encoded, _ = self.encode(source, deterministic=deterministic, budget=budget)
        return self.logits(self.decode(encoded, target, deterministic=deterministic)[0])

    def logits_and_use(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        paragraphs: None = None,
        budget: Int[Array, " B"] | None = None,
        places: None = None,
        skip: bool = False,
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B _"]]:
        """Logits, and which share of its full computation was used, [B, 1]; [B, 0] without gates."""
        hidden, aux = self.decode(self.encode(source, budget=budget)[0], target, skip=skip)
        use = aux.use(len(source))[:, None] if self.config.budgets else jnp.zeros((len(source), 0))
        return self.logits(hidden), use

    def start(
        self,
        source: Int[Array, "B S"],
        beams: int,
        max_length: int,
        paragraphs: None = None,
        budget: Int[Array, " B"] | None = None,
        skip: bool = True,
        segments: int = 1,
    ) -> DecodeCache:
        """The cache before the first symbol: keys and values of the source, then room for `max_length` positions.

        The room is divided into `segments`, of which steps read those that hold something.
        """
        encoded, _ = self.encode(source, budget=budget)
        places = _counted(encoded.mask)
        visible = self._visible(places, places, source.shape[-1])
        context = _context(encoded.mask, places, visible, skip=skip)
        x = self.embedding(source, places, True, encoded.marks)
        _, caches = self.decoder.fill(x, context)
        lengths = [beams * positions for positions in divided(max_length, segments)]
        if self.config.scan:
            caches = Segments.behind(caches, lengths, scanned=True)
        else:
            caches = tuple(Segments.behind(keys, lengths) for keys in caches)
        ancestors = init_ancestors(len(source), beams, max_length)
        return DecodeCache(ancestors, (caches, encoded.mask, encoded.marks))

    def step(
        self, cache: DecodeCache, tokens: Int[Array, "B K"], position: Int[Array, ""], skip: bool = True
    ):
        """Logits [B, K, V] of the symbol after `tokens`, as `Seq2Seq.step`; slots of targets stand behind the source."""
        caches, source, marks = cache.shared
        beams, width = tokens.shape[-1], source.shape[-1]
        ancestors = extend_ancestors(cache.per_beam, position)
        slots = visible_slots(ancestors, position)
        length = source.sum(-1, dtype=jnp.int32)[:, None]
        keys = jnp.concatenate([_counted(source), length + jnp.arange(slots.shape[-1]) // beams], axis=-1)
        own = length + position
        past = jnp.broadcast_to(source[:, None], (*tokens.shape, width))
        visible = jnp.concatenate([past, slots], axis=-1) & self._visible(own, keys)
        context = Context(
            query_mask=tokens != PAD,
            query_positions=jnp.broadcast_to(own, tokens.shape),
            key_positions=keys,
            span=width + slots.shape[-1] // beams,
            visible=visible,
            skip=skip,
        )

        def write(cached: Segments, new: KeyValues) -> Segments:
            return cached.written(new, width + position * beams)

        x = self.embedding(tokens, own, True, marks)
        hidden, caches = self.decoder.step(x, caches, context, write)
        alive = tokens != PAD if skip and self.config.budgets else None
        return self.logits(hidden, alive), DecodeCache(ancestors, (caches, source, marks))
