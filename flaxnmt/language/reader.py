"""What an encoder alone says of texts: masked words, embeddings of texts and of their tokens in every layer."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from flaxnmt.data.tokenizers import CLS, MASK, SEP, Offsets, Tokenizer
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.language.contextual import Contextual, contextual, over_batches, told
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.symbols import EOS
from flaxnmt.translation.lines import refuse_one
from flaxnmt.translation.shapes import longest_of
from flaxnmt.typing import Float, Int, Params

BEGINNINGS = "axqz"
"""Letters that a word may begin with in place of a mask, so that its rest is cut as within a word."""


class Guess(NamedTuple):
    """A piece for a mask, how likely it is, and the text with it."""

    piece: str
    probability: float
    text: str


class Reader:
    """An encoder alone with its parameters and vocabulary; texts longer than `longest` are cut, with a warning.

    A `budget` is one of those of the model, the largest if None; what its gates decide against is not computed, or, without
    `skip`, multiplied by zero.

    Attributes:
      model: the module.
      params: its parameters.
      tokenizer: of texts.
      longest: tokens of a text that the model reads.
      last: the symbol behind a text.
    """

    def __init__(self, model: EncoderOnly, params: Params, tokenizer: Tokenizer, skip: bool = True):
        self.model, self.params, self.tokenizer = model, params, tokenizer
        self.longest, self.last, variables = longest_of(model.config), tokenizer.id(SEP), {"params": params}
        self._logits, self._encode, self._layers = (
            partial(
                jax.jit(partial(model.apply, skip=skip and bool(model.config.budgets), method=method)),
                variables,
            )
            for method in (None, "encode", "layers")
        )

    def _closed(self, tokens: Int[np.ndarray, "B L"]) -> Int[np.ndarray, "B L"]:
        return np.where(tokens == EOS, np.int32(self.last), tokens)

    def read(self, text: str) -> Offsets:
        """[CLS] and the tokens of a text, in which [MASK] is the mask, and the characters that each stands for."""
        ids, spans, start = [self.tokenizer.id(CLS)], [(0, 0)], 0
        for place, part in enumerate(text.split(MASK)):
            if place:
                ids.append(self.tokenizer.id(MASK))
                spans.append((start - len(MASK), start))
            found = self._cut(part, behind_mask=place > 0)
            ids += found.ids
            spans += [(start + first, start + last) for first, last in found.spans]
            start += len(part) + len(MASK)
        return Offsets(ids, spans)

    def _cut(self, part: str, behind_mask: bool) -> Offsets:
        """The tokens of a part of a text; no space is made up before what stands right behind a mask."""
        for letter in BEGINNINGS if behind_mask and part and not part[0].isspace() else ():
            ids, spans = self.tokenizer.encode_with_offsets(letter + part)
            # A token may be of both, as in a vocabulary of words.
            own = next((i for i, (first, _) in enumerate(spans) if first == 1), None)
            if own is not None and max((last for _, last in spans[:own]), default=0) <= 1:
                return Offsets(ids[own:], [(first - 1, last - 1) for first, last in spans[own:]])
        return self.tokenizer.encode_with_offsets(part)

    def fill_mask(
        self, texts: Sequence[str], top: int = 5, budget: float | None = None
    ) -> list[list[list[Guess]]]:
        """For each text, and each [MASK] in it, the likeliest pieces, best first; other masks stay as they are.

        Raises:
          ConfigError: for a model with another head, or a budget for which it was not trained.
          DataError: for a text without a mask.
        """
        if self.model.config.head != "masked":
            raise ConfigError(
                f"this model has the head {self.model.config.head!r}: masked tokens are said by a run with "
                "--model.head masked"
            )
        refuse_one(texts)
        missing = next((text for text in texts if MASK not in text), None)
        if missing is not None:
            raise DataError(f"no {MASK} in {missing!r}: write it in place of a word")
        at = told(self.model.config, budget)
        rows, mask = [self.read(text).ids for text in texts], self.tokenizer.id(MASK)
        for text, ids in zip(texts, rows):
            if mask in ids[self.longest - 1 :]:
                raise DataError(
                    f"a {MASK} behind token {self.longest} of {text[:40]!r}...: cut the text into shorter ones"
                )

        def guesses(logits, _, number):
            text, ids = texts[number], rows[number]
            return [
                self._guesses(text, ids, place, logits[place], top)
                for place, i in enumerate(ids)
                if i == mask
            ]

        def logits(tokens):
            return self._logits(self._closed(tokens), budget=at(len(tokens)))

        return over_batches(logits, rows, self.longest, guesses)

    def _guesses(self, text: str, ids: list[int], place: int, logits: np.ndarray, top: int) -> list[Guess]:
        # Nothing but pieces of text is a guess.
        logits = logits.astype(np.float64)
        logits[list(self.tokenizer.controls)] = -np.inf
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        best = np.argsort(-probabilities, kind="stable")[:top].tolist()
        return [
            Guess(
                self.tokenizer.pieces[i],
                float(probabilities[i]),
                self._text(text, ids, place, i),
            )
            for i in best
            if i not in self.tokenizer.controls
        ]

    def _text(self, text: str, ids: list[int], place: int, guess: int) -> str:
        """The text as it is written, with a guess in the place of one mask; a piece within a word goes on with it."""
        mask = self.tokenizer.id(MASK)
        own = sum(token == mask for token in ids[:place])
        written = text.split(MASK)
        before, after = MASK.join(written[: own + 1]), MASK.join(written[own + 1 :])
        last = ids[place - 1]
        if last in self.tokenizer.controls:
            return before + self.tokenizer.decode([[guess]])[0] + after
        alone, both = self.tokenizer.decode([[last], [last, guess]])
        piece = both.removeprefix(alone)
        if piece.startswith(" "):
            return before + " " * (not before[-1:].isspace()) + piece[1:] + after
        return before.rstrip() + piece + after

    def embed(
        self, texts: Sequence[str], pool: str = "mean", budget: float | None = None
    ) -> Float[np.ndarray, "texts D"]:
        """A vector a text: the mean over its tokens, [CLS] and [SEP] among them (`mean`), or that of [CLS] (`first`).

        Raises:
          ConfigError: for another `pool`, for `first` where [CLS] knows nothing of the text behind it, and for a budget
            for which the model was not trained.
        """
        refuse_one(texts)
        if pool not in ("mean", "first"):
            raise ConfigError(f"pool {pool!r}: mean or first")
        if pool == "first" and not self.model.config.sees_all:
            raise ConfigError(
                "pool 'first': no layer of this model looks at the whole text, so that the first token says the same "
                "of all texts: give mean"
            )
        ids, at = [self.read(text).ids for text in texts], told(self.model.config, budget)

        def vector(row, length, _):
            return row[:length].mean(0) if pool == "mean" else row[0].copy()

        def encoded(tokens):
            return self._encode(self._closed(tokens), budget=at(len(tokens)))[0]

        found = over_batches(encoded, ids, self.longest, vector)
        return np.stack(found) if found else np.zeros((0, self.model.config.d_model), np.float32)

    def contextual(self, texts: Sequence[str], budget: float | None = None) -> list[Contextual]:
        """Embeddings of every token of each text, [CLS] first and [SEP] last, in every layer.

        Raises:
          ConfigError: for encoders side by side, whose layers are in no order, and for a budget for which the model was
            not trained.
        """
        refuse_one(texts)
        if len(self.model.config.encoder_branches) > 1:
            raise ConfigError(
                "this model has encoders side by side: embeddings by layer are those of a single encoder"
            )
        read, at = list(map(self.read, texts)), told(self.model.config, budget)

        def layers(tokens):
            return self._layers(self._closed(tokens), budget=at(len(tokens)))

        return contextual(read, layers, self.tokenizer.pieces, self.longest, self.last)
