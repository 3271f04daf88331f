"""Labelled sets of each head: rows for the model, and scores of what it says of them.

What of a set is cut is said in one warning, which calls it by its name, such as dev.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import numpy as np

from experiments.tasks.task import Scored
from flaxnmt.config import DataConfig
from flaxnmt.data.labelled.examples import QuestionExample, TaggedExample, TextExample
from flaxnmt.data.labelled.layout import NO_LABEL, NO_PLACE, cuts, tagged_inputs, text_inputs
from flaxnmt.data.labelled.questions import read_questions
from flaxnmt.data.labelled.rows import LabelledRows
from flaxnmt.data.labelled.spans import Question, best_answer, most_of_question, question_inputs
from flaxnmt.data.labelled.tags import read_tags, tag_names
from flaxnmt.data.labelled.texts import label_names, read_texts
from flaxnmt.data.tokenizers import Tokenizer
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.answers import answer_scores
from flaxnmt.evaluation.classification import classification_scores
from flaxnmt.models.config import Head

log = logging.getLogger(__name__)

OUTSIDE = "O"
"""The label of words that are nothing of what is looked for."""

NOTHING = "-"
"""What is said of a word that the model did not read."""


class LabelledSet(Protocol):
    """A set of labelled examples.

    Attributes:
      rows: as the model reads them.
    """

    rows: LabelledRows

    def scored(self, outputs: Sequence[np.ndarray]) -> Scored:
        """Scores of the logits of each row, and a line for each example of what the model says."""
        ...


def _with_signature(scores: dict[str, float], signature: str) -> dict[str, dict]:
    return {name: {"score": score, "signature": signature} for name, score in scores.items()}


def _scores(
    pairs: Sequence[tuple[int, int]], classes: int, marked: Sequence[int] | None = None
) -> dict[str, dict]:
    """Scores of what is said and what is right; none for a set whose labels are a secret."""
    if not pairs:
        return {}
    scores = classification_scores(*zip(*pairs), classes=classes, marked=marked)
    return _with_signature(scores, f"scikit-learn {version('scikit-learn')}")


@dataclass(frozen=True)
class ClassSet:
    """Texts, or pairs, and their classes."""

    rows: LabelledRows
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, examples: Sequence[TextExample], tokenizer: Tokenizer, data: DataConfig, name: str
    ) -> "ClassSet":
        inputs = text_inputs(examples, tokenizer, data.max_length, f"{name} texts")
        said = [NO_LABEL if example.label is None else example.label for example in examples]
        ids, segments = zip(*inputs)
        return cls(LabelledRows(ids, segments, said, "classes"), data.labels)

    def scored(self, outputs: Sequence[np.ndarray]) -> Scored:
        found = np.argmax(outputs, axis=-1)
        known = [(guess, said) for guess, said in zip(found.tolist(), self.rows.said) if said != NO_LABEL]
        return _scores(known, len(self.names)), [self.names[place] for place in found]


@dataclass(frozen=True)
class TagSet:
    """Words of sentences and their labels; of a word that is not in its row nothing is said, which is wrong.

    F1 is that of all labels but O together, where there is O.
    """

    rows: LabelledRows
    names: tuple[str, ...]
    places: tuple[Sequence[int], ...]
    labels: tuple[Sequence[int], ...]

    @classmethod
    def of(
        cls, examples: Sequence[TaggedExample], tokenizer: Tokenizer, data: DataConfig, name: str
    ) -> "TagSet":
        inputs = tagged_inputs(examples, tokenizer, data.max_length, f"{name} sentences")
        ids, segments, said, places = zip(*inputs)
        labels = tuple(example.labels for example in examples)
        return cls(LabelledRows(ids, segments, said, "labels"), data.labels, places, labels)

    def scored(self, outputs: Sequence[np.ndarray]) -> Scored:
        pairs, lines = [], []
        for logits, places, labels in zip(outputs, self.places, self.labels):
            found = logits.argmax(-1)
            guesses = [NO_LABEL if place == NO_PLACE else int(found[place]) for place in places]
            pairs += zip(guesses, labels, strict=True)
            lines.append(" ".join(NOTHING if guess == NO_LABEL else self.names[guess] for guess in guesses))
        marked = [place for place, name in enumerate(self.names) if name != OUTSIDE]
        return _scores(pairs, len(self.names), marked if OUTSIDE in self.names else None), lines


@dataclass(frozen=True)
class QuestionSet:
    """Questions about texts; a row is a window over a text."""

    rows: LabelledRows
    examples: tuple[QuestionExample, ...]
    questions: tuple[Question, ...]

    @classmethod
    def of(
        cls, examples: Sequence[QuestionExample], tokenizer: Tokenizer, data: DataConfig, name: str
    ) -> "QuestionSet":
        sizes = {"max_length": data.max_length, "stride": data.stride}
        questions = tuple(question_inputs(example, tokenizer, **sizes) for example in examples)
        asked = [question.asked for question in questions]
        if cut := cuts(f"{name} questions", asked, most_of_question(data.max_length)):
            log.warning("%s", cut)
        windows = [window for question in questions for window in question.windows]
        said = [answer for question in questions for answer in question.answers]
        rows = LabelledRows(
            [window.ids for window in windows], [window.segments for window in windows], said, "spans"
        )
        return cls(rows, tuple(examples), questions)

    def scored(self, outputs: Sequence[np.ndarray]) -> Scored:
        logits: Iterator[np.ndarray] = iter(outputs)
        # Where some questions have no answer, nothing is one, and as likely as its logits say.
        threshold = None if all(example.answers for example in self.examples) else 0.0
        answers = {}
        for example, question in zip(self.examples, self.questions):
            ends = list(itertools.islice(logits, len(question.windows)))
            starts, stops = ([window[end] for window in ends] for end in (0, 1))
            answers[example.id] = best_answer(question, example.context, starts, stops, threshold=threshold)
        found = answer_scores(answers, self.examples)
        scores = {"exact_match": found["exact"], "f1": found["f1"]}
        return _with_signature(scores, "SQuAD"), [answers[example.id] for example in self.examples]


def names_of(head: Head, paths: tuple[str, ...], data: DataConfig, classes: int) -> tuple[str, ...]:
    """Names of the classes or labels: those of the configuration, or of the training corpora.

    Raises:
      ConfigError: if they are not as many as the model tells apart, or there is but one.
    """
    if head == "spans":
        return ()
    found = data.labels or (label_names if head == "classes" else tag_names)(*paths)
    said = f"{' '.join(paths)}: {len(found)} label{'s' * (len(found) > 1)} ({', '.join(found)})"
    if len(found) < 2:
        raise ConfigError(f"{said}, and nothing to tell it from: name all that there are with --data.labels")
    if len(found) != classes:
        raise ConfigError(
            f"{said}: give --model.classes {len(found)}, or name all that there are with --data.labels"
        )
    return found


def examples_of(
    head: Head, paths: tuple[str, ...], names: tuple[str, ...], labelled: bool = True, answered: bool = False
) -> list:
    """Examples of one corpus or several; of questions, those alone that have an answer if `answered`.

    Raises:
      DataError: if there is none, or if they are to be `labelled` and none is.
    """
    readers = {
        "classes": lambda path: read_texts(path, names),
        "labels": lambda path: read_tags(path, names),
        "spans": read_questions,
    }
    found = [example for path in paths for example in readers[head](path)]
    if answered and head == "spans":
        found = [example for example in found if example.answers]
    if not found or (labelled and head == "classes" and all(example.label is None for example in found)):
        raise DataError(f"{' '.join(paths)}: no example in it" + (" has a label" if found else ""))
    return found


def texts_of(examples: list) -> Iterator[str]:
    """All text of examples, of which a vocabulary is made; a context once for all its questions."""
    seen = None
    for example in examples:
        if isinstance(example, TextExample):
            yield example.text
            if example.second is not None:
                yield example.second
        elif isinstance(example, TaggedExample):
            yield " ".join(example.words)
        else:
            yield example.question
            if example.context != seen:
                yield example.context
            seen = example.context


def make_set(head: Head, examples: list, tokenizer: Tokenizer, data: DataConfig, name: str) -> LabelledSet:
    """The examples as rows; `name` is that of the set, for warnings."""
    kind = {"classes": ClassSet, "labels": TagSet, "spans": QuestionSet}[head]
    return kind.of(examples, tokenizer, data, name)
