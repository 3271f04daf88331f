"""What an encoder alone says of texts: masked words, embeddings of texts and of their tokens in every layer."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from flaxnmt.data.batches import SortedBatches
from flaxnmt.data.labelled.examples import TextExample
from flaxnmt.data.labelled.layout import text_inputs
from flaxnmt.data.labelled.rows import LabelledRows
from flaxnmt.data.tokenizers import CLS, ENCODER_SYMBOLS, MASK, SPECIALS, Offsets, Tokenizer
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.language.contextual import Contextual, contextual, over_batches, plan_of, told
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.translation.shapes import longest_of
from flaxnmt.typing import Float, Params


class Guess(NamedTuple):
    """A piece for a mask, how likely it is, and the text with it."""

    piece: str
    probability: float
    text: str


class Reader:
    """An encoder alone with its parameters and vocabulary; texts longer than `longest` are cut, with a warning.

    A `budget` is one of those of the model, the largest if None; what its gates decide against is not computed.

    Attributes:
      model: the module.
      params: its parameters.
      tokenizer: of texts.
      labels: names of the classes, of a model that classifies.
      longest: tokens of a text that the model reads.
    """

    def __init__(
        self, model: EncoderOnly, params: Params, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
    ):
        self.model, self.params, self.tokenizer, self.labels = model, params, tokenizer, labels
        self.longest, variables = longest_of(model.config), {"params": params}
        self._logits, self._encode, self._layers = (
            partial(jax.jit(partial(model.apply, skip=bool(model.config.budgets), method=method)), variables)
            for method in (None, "encode", "layers")
        )

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
        """The tokens of a part of a text; no space is made up before punctuation that stands behind a mask."""
        if behind_mask and part and not part[0].isspace() and not part[0].isalnum():
            ids, spans = self.tokenizer.encode_with_offsets(f"a{part}")
            # A vocabulary of words has one token for both.
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
            return self._logits(tokens, budget=at(len(tokens)))

        return over_batches(logits, rows, self.longest, guesses)

    def _guesses(self, text: str, ids: list[int], place: int, logits: np.ndarray, top: int) -> list[Guess]:
        # Nothing but pieces of text is a guess.
        logits = logits.astype(np.float64)
        logits[: len(SPECIALS) + len(ENCODER_SYMBOLS)] = -np.inf
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
        ]

    def _text(self, text: str, ids: list[int], place: int, guess: int) -> str:
        """The text with a guess in the place of one mask, and the other masks as they are written."""
        mask, parts = self.tokenizer.id(MASK), [[]]
        for index, token in enumerate(ids[1:], 1):
            if token == mask and index != place:
                parts.append([])
            else:
                parts[-1].append(guess if index == place else token)
        written = text.split(MASK)
        own = sum(token == mask for token in ids[:place])
        masks = [
            " " * before[-1:].isspace() + MASK + " " * after[:1].isspace()
            for number, (before, after) in enumerate(zip(written, written[1:]))
            if number != own
        ]
        first, *others = self.tokenizer.decode(parts)
        return first + "".join(map("".join, zip(masks, others, strict=True)))

    def classify(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, budget: float | None = None
    ) -> list[tuple[str, float]]:
        """The likeliest class of each text, or of each pair of texts, and its probability.

        Args:
          texts: one after the other.
          seconds: of pairs.
          budget: see above.

        Raises:
          ConfigError: for a model with another head, or a budget for which it was not trained.
        """
        if self.model.config.head != "classes":
            raise ConfigError(
                f"this model has the head {self.model.config.head!r}: texts are classified by a run with "
                "--model.head classes"
            )
        others = [None] * len(texts) if seconds is None else seconds
        pairs = [TextExample(text, second) for text, second in zip(texts, others, strict=True)]
        at = told(self.model.config, budget)
        ids, segments = zip(*text_inputs(pairs, self.tokenizer, self.longest)) if pairs else ((), ())
        plan = plan_of(len(ids), self.longest)
        batches = SortedBatches(LabelledRows(ids, segments, [0] * len(ids), "classes"), plan)
        found = []
        for i in range(len(batches)):
            batch = batches.batch(i)
            places = at(len(batch["tokens"]))
            logits = self._logits(batch["tokens"], batch["segments"], budget=places)
            found.append(np.asarray(jax.nn.softmax(logits)))
        return [(self.labels[row.argmax()], float(row.max())) for row in batches.restore(found)]

    def embed(
        self, texts: Sequence[str], pool: str = "mean", budget: float | None = None
    ) -> Float[np.ndarray, "texts D"]:
        """A vector a text: the mean over its tokens, [CLS] and eos among them (`mean`), or that of [CLS] (`first`).

        Raises:
          ConfigError: for another `pool`, for `first` where [CLS] knows nothing of the text behind it, and for a budget
            for which the model was not trained.
        """
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
            return self._encode(tokens, budget=at(len(tokens)))[0]

        found = over_batches(encoded, ids, self.longest, vector)
        return np.stack(found) if found else np.zeros((0, self.model.config.d_model), np.float32)

    def contextual(self, texts: Sequence[str], budget: float | None = None) -> list[Contextual]:
        """Embeddings of every token of each text, [CLS] first and eos last, in every layer.

        Raises:
          ConfigError: for encoders side by side, whose layers are in no order, and for a budget for which the model was
            not trained.
        """
        if len(self.model.config.encoder_branches) > 1:
            raise ConfigError(
                "this model has encoders side by side: embeddings by layer are those of a single encoder"
            )
        read, at = list(map(self.read, texts)), told(self.model.config, budget)

        def layers(tokens):
            return self._layers(tokens, budget=at(len(tokens)))

        return contextual(read, layers, self.tokenizer.pieces, self.longest)
