"""What a fine-tuned encoder says of texts: their classes, the labels of their words, answers to questions about them."""

from collections.abc import Sequence
from functools import partial
from itertools import islice

import jax
import numpy as np

from flaxnmt.config import DataConfig
from flaxnmt.data.batches import SortedBatches
from flaxnmt.data.labelled.examples import QuestionExample, TaggedExample, TextExample
from flaxnmt.data.labelled.layout import NO_LABEL, NO_PLACE, Inputs, TaggedInputs, tagged_inputs, text_inputs
from flaxnmt.data.labelled.rows import LabelledRows
from flaxnmt.data.labelled.spans import NOWHERE, Window, best_answer, question_inputs
from flaxnmt.data.tokenizers import Tokenizer
from flaxnmt.errors import ConfigError
from flaxnmt.language.contextual import plan_of, told
from flaxnmt.models.config import Head
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.training.labelled import labelled_logits
from flaxnmt.translation.lines import refuse_one
from flaxnmt.translation.shapes import longest_of
from flaxnmt.typing import Array, Float, Params


class LabelledReader:
    """An encoder with a head that was trained on labels, its parameters and vocabulary.

    Texts are read as the evaluation of the run reads them: cut at the length of its rows, with a warning, contexts of
    questions in windows. A `budget` is one of those of the model, the largest if None; what its gates decide against is
    not computed, or, without `skip`, multiplied by zero.

    Attributes:
      model: the module.
      params: its parameters.
      tokenizer: of texts.
      data: of the run: `labels` are the names, `max_length` and `stride` the sizes of rows.
      longest: tokens of a row.
    """

    def __init__(
        self, model: EncoderOnly, params: Params, tokenizer: Tokenizer, data: DataConfig, skip: bool = True
    ):
        self.model, self.params, self.tokenizer, self.data = model, params, tokenizer, data
        self.longest = min(data.max_length, longest_of(model.config))
        self._logits = partial(jax.jit(partial(_logits, model, skip)), params)

    def classify(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, budget: float | None = None
    ) -> list[tuple[str, float]]:
        """The likeliest class of each text, or of each pair of texts, and its probability.

        Args:
          texts: one after the other.
          seconds: of pairs.
          budget: see above.

        Raises:
          ConfigError: for a model with another head, a budget for which it was not trained, or a text without a second.
        """
        self._check("classes", "texts are classified")
        refuse_one(texts)
        others = [None] * len(texts) if seconds is None else _as_many("second texts", seconds, texts)
        pairs = [TextExample(text, second) for text, second in zip(texts, others)]
        rows = text_inputs(pairs, self.tokenizer, self.longest)
        found = [
            np.asarray(jax.nn.softmax(logits)) for logits in self._said(rows, [NO_LABEL] * len(rows), budget)
        ]
        return [(self.data.labels[row.argmax()], float(row.max())) for row in found]

    def label(self, texts: Sequence[str], budget: float | None = None) -> list[list[tuple[str, str | None]]]:
        """The words of each text, which spaces part, each with its likeliest label; None of a word that is cut off.

        Raises:
          ConfigError: for a model with another head, or a budget for which it was not trained.
        """
        self._check("labels", "words are labelled")
        refuse_one(texts)
        sentences = [text.split() for text in texts]
        unknown = [TaggedExample(tuple(words), (NO_LABEL,) * len(words)) for words in sentences]
        rows = tagged_inputs(unknown, self.tokenizer, self.longest)
        found = self._said(rows, [row.labels for row in rows], budget)
        names = (*self.data.labels, None)
        return [
            [
                (word, names[NO_LABEL if place == NO_PLACE else logits[place].argmax()])
                for word, place in zip(words, row.places)
            ]
            for words, row, logits in zip(sentences, rows, found)
        ]

    def answer(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        threshold: float | None = None,
        budget: float | None = None,
    ) -> list[str]:
        """The part of each context that answers the question about it.

        Args:
          questions: one after the other.
          contexts: of any length, one a question.
          threshold: by which the logit of no answer has to exceed that of the best one for an empty text to be said, 0
            in SQuAD 2.0; None: there is always an answer.
          budget: see above.

        Raises:
          ConfigError: for a model with another head, a budget for which it was not trained, or a question without a
            context.
        """
        self._check("spans", "questions are answered")
        refuse_one(questions)
        _as_many("contexts", contexts, questions)
        sizes = {"max_length": self.longest, "stride": self.data.stride}
        asked = [
            question_inputs(QuestionExample("", question, context), self.tokenizer, **sizes)
            for question, context in zip(questions, contexts)
        ]
        windows = [window for question in asked for window in question.windows]
        said = iter(self._said(windows, [NOWHERE] * len(windows), budget))
        found = [list(islice(said, len(question.windows))) for question in asked]
        return [
            best_answer(question, context, *zip(*logits), threshold=threshold)
            for question, context, logits in zip(asked, contexts, found)
        ]

    def _check(self, head: Head, what: str) -> None:
        if self.model.config.head != head:
            raise ConfigError(
                f"this model has the head {self.model.config.head!r}: {what} by a run with --model.head {head}"
            )

    def _said(
        self, rows: Sequence[Inputs | TaggedInputs | Window], said: Sequence, budget: float | None
    ) -> list[np.ndarray]:
        """Logits of each row."""
        at = told(self.model.config, budget)
        units = LabelledRows(
            [row.ids for row in rows], [row.segments for row in rows], said, self.model.config.head
        )
        batches = SortedBatches(units, plan_of(len(rows), self.longest))
        found = []
        for i in range(len(batches)):
            batch = batches.batch(i)
            tokens = batch["tokens"]
            found.append(np.asarray(self._logits(tokens, batch["segments"], at(len(tokens)))))
        return batches.restore(found)


def _logits(model: EncoderOnly, skip: bool, params: Params, tokens, segments, budget) -> Float[Array, "..."]:
    """Logits of padded rows, without what gates decide against."""

    def logits(model):
        options = {"deterministic": True, "budget": budget, "skip": skip and bool(model.config.budgets)}
        return labelled_logits(model, tokens, segments, **options)[0]

    return model.apply({"params": params}, method=logits)


def _as_many(what: str, given: Sequence[str], texts: Sequence[str]) -> Sequence[str]:
    refuse_one(given)
    if len(given) != len(texts):
        raise ConfigError(f"{len(given)} {what} for {len(texts)} texts: give one each")
    return given
