"""What an encoder alone says of texts: masked words, embeddings of texts and of their tokens in every layer."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from flaxnmt.data.batches import EvaluationBatches, SortedBatches
from flaxnmt.data.labelled.examples import TextExample
from flaxnmt.data.labelled.layout import text_inputs
from flaxnmt.data.labelled.rows import LabelledRows
from flaxnmt.data.shards import TokenArray
from flaxnmt.data.tokenizers import CLS, ENCODER_SYMBOLS, MASK, SPECIALS, Tokenizer
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.gates.budget import find_budget, full_budget
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.translation.shapes import LONGEST, square_plan
from flaxnmt.typing import Float, Params

BATCH = 64


class Guess(NamedTuple):
    """A piece for a mask, how likely it is, and the text with it."""

    piece: str
    probability: float
    text: str


class Contextual(NamedTuple):
    """The tokens of a text, [CLS] first and eos last, and their embeddings before the first layer and after each."""

    pieces: tuple[str, ...]
    layers: Float[np.ndarray, "layers L D"]


class Reader:
    """An encoder alone with its parameters and vocabulary.

    Attributes:
      model: the module.
      params: its parameters.
      tokenizer: of texts.
      labels: names of the classes, of a model that classifies.
    """

    def __init__(
        self, model: EncoderOnly, params: Params, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
    ):
        self.model, self.params, self.tokenizer, self.labels = model, params, tokenizer, labels
        variables = {"params": params}
        self._logits = jax.jit(lambda *inputs: model.apply(variables, *inputs))
        self._classes = jax.jit(
            lambda tokens, segments, budget: model.apply(
                variables, tokens, segments, budget=budget, skip=bool(model.config.budgets)
            )
        )
        self._encode = jax.jit(lambda tokens: model.apply(variables, tokens, method="encode")[0])
        self._layers = jax.jit(lambda tokens: model.apply(variables, tokens, method="layers"))

    def ids(self, text: str) -> list[int]:
        """[CLS] and the tokens of a text, in which [MASK] is the mask."""
        found = [self.tokenizer.id(CLS)]
        for place, part in enumerate(text.split(MASK)):
            found += [self.tokenizer.id(MASK)] if place else []
            found += self.tokenizer.encode([part.strip()])[0] if part.strip() else []
        return found

    def _over(self, texts: Sequence[str], function) -> list[np.ndarray]:
        """What `function` makes of the tokens of each text, padding left out."""
        tokens = TokenArray.from_lists(map(self.ids, texts))
        batches = EvaluationBatches(tokens, None, square_plan(BATCH))
        found = [np.asarray(function(batches.batch(i)["source"])) for i in range(len(batches))]
        rows = batches.restore(found)
        return [row[:length] for row, length in zip(rows, tokens.lengths)]

    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[list[list[Guess]]]:
        """For each text, and each [MASK] in it, the likeliest pieces, best first; other masks stay as they are.

        Raises:
          ConfigError: for a model with another head.
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
        mask = self.tokenizer.id(MASK)
        return [
            [self._guesses(ids, place, logits[place], top) for place in np.flatnonzero(np.equal(ids, mask))]
            for ids, logits in zip(map(self.ids, texts), self._over(texts, self._logits))
        ]

    def _guesses(self, ids: list[int], place: int, logits: np.ndarray, top: int) -> list[Guess]:
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
                self._text([*ids[:place], i, *ids[place + 1 :]]),
            )
            for i in best
        ]

    def _text(self, ids: list[int]) -> str:
        """Text of tokens, with masks as they are written."""
        mask, parts = self.tokenizer.id(MASK), [[]]
        for token in ids[1:]:
            parts += [[]] if token == mask else []
            parts[-1] += [] if token == mask else [token]
        return f" {MASK} ".join(self.tokenizer.decode(parts)).strip()

    def classify(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, budget: float | None = None
    ) -> list[tuple[str, float]]:
        """The likeliest class of each text, or of each pair of texts, and its probability.

        Args:
          texts: one after the other.
          seconds: of pairs.
          budget: one of the model's, the largest if None; what its gates decide against is not computed.

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
        config = self.model.config
        place = full_budget(config.budgets) if config.budgets else None
        if budget is not None:
            place = find_budget(config.budgets, budget)
        longest = config.max_positions if config.positions == "learned" else LONGEST
        rows = text_inputs(pairs, self.tokenizer, min(longest, LONGEST))
        ids, segments = zip(*rows) if rows else ((), ())
        batches = SortedBatches(LabelledRows(ids, segments, [0] * len(ids), "classes"), square_plan(BATCH))
        found = []
        for i in range(len(batches)):
            batch = batches.batch(i)
            told = None if place is None else np.full(len(batch["tokens"]), place, np.int32)
            logits = self._classes(batch["tokens"], batch["segments"], told)
            found.append(np.asarray(jax.nn.softmax(logits)))
        return [(self.labels[row.argmax()], float(row.max())) for row in batches.restore(found)]

    def embed(self, texts: Sequence[str], pool: str = "mean") -> Float[np.ndarray, "texts D"]:
        """A vector a text: the mean over its tokens (`mean`), or the output of [CLS] (`first`)."""
        if pool not in ("mean", "first"):
            raise ConfigError(f"pool {pool!r}: mean or first")
        rows = self._over(texts, self._encode)
        return np.stack([row.mean(0) if pool == "mean" else row[0] for row in rows])

    def contextual(self, texts: Sequence[str]) -> list[Contextual]:
        """Embeddings of every token of each text in every layer."""
        # The layers come first out of the model, and rows first out of batches.
        rows = self._over(texts, lambda tokens: np.moveaxis(np.asarray(self._layers(tokens)), 0, 2))
        return [
            Contextual((*(self.tokenizer.pieces[i] for i in self.ids(text)), "</s>"), np.moveaxis(row, 1, 0))
            for text, row in zip(texts, rows)
        ]
