"""Contrastive evaluation: does a model prefer the right translation of a sentence in its document?

A contrast is a sentence in its document with one right translation and wrong ones, all of them fluent. A model
scores each of them in the same context and is right where the right one scores strictly higher than every
wrong one (Sennrich 2017, Bawden et al. 2018, Müller et al. 2018). Nothing is decoded.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flaxnmt.data.discourse import ContrastiveExample
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import DataError

Scorer = Callable[[list[tuple[Document, int]]], Sequence[float]]
"""Log-probabilities, one for each (document, index): how likely the target of the sentence with this index is.

The rest of the document is context, its targets included, and a model reads of it what it can. What follows the
sentence is there only where the test set gives it. Documents that differ in the judged target alone stand side
by side in the list.
"""

UNKNOWN = "-"
"""Label of distances that the test set does not give."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A sentence in its document, and the translations between which a model chooses.

    Attributes:
      document: holds the right translation of the judged sentence, and the target-side context where known.
      sentence: index of the judged sentence in the document, from 0.
      candidates: translations in the order of the test set, two or more.
      answer: index of the right one among them.
      phenomenon: what is tested, as the test set names it.
      distance: sentences between the judged one and what decides; None where the test set does not say.
      group: name shared by examples that belong together, such as the twins of a closed set; "" for none.

    Raises:
      DataError: if there is nothing to choose, or the document does not hold the right translation.
    """

    document: Document
    sentence: int
    candidates: tuple[str, ...]
    answer: int
    phenomenon: str
    distance: int | None = None
    group: str = ""

    def __post_init__(self):
        if not 0 <= self.sentence < len(self.document):
            raise DataError(
                f"contrast in document {self.document.id!r}: sentence {self.sentence} of {len(self.document)}"
            )
        if len(self.candidates) < 2 or not 0 <= self.answer < len(self.candidates):
            raise DataError(
                f"contrast in document {self.document.id!r}: no choice between {len(self.candidates)} "
                f"candidate(s) with answer {self.answer}; give the right translation and another one"
            )
        if self.document.sentences[self.sentence].target != self.right:
            raise DataError(
                f"contrast in document {self.document.id!r}: sentence {self.sentence} of the document does not "
                "hold the right translation"
            )

    @property
    def right(self) -> str:
        return self.candidates[self.answer]

    @property
    def wrong(self) -> tuple[str, ...]:
        """The other candidates, without those that equal the right one: public sets have a few of them."""
        return tuple(text for text in self.candidates if text != self.right)


class Outcome(NamedTuple):
    """What one example adds to a table of accuracies."""

    phenomenon: str
    distance: int | None
    group: str
    right: bool
    tie: bool = False


def from_discourse(example: ContrastiveExample) -> Contrast:
    """A contrast of the embedded corpus; its group is the closed set."""
    return Contrast(
        example.document,
        example.sentence,
        (example.right, example.wrong),
        answer=0,
        phenomenon=example.phenomenon,
        distance=example.distance,
        group=example.document.id.rpartition("/")[0],
    )


def with_sentences(document: Document, sentences: Sequence[Sentence]) -> Document:
    """The document with other sentences in the same paragraphs; as many as it has."""
    rest = iter(sentences)
    return replace(
        document, paragraphs=tuple(tuple(next(rest) for _ in part) for part in document.paragraphs)
    )


def candidate_documents(example: Contrast) -> list[tuple[Document, int]]:
    """What a `Scorer` reads: the document once for each candidate, which is the target of the judged sentence."""
    sentences = list(example.document)
    pairs = []
    for text in example.candidates:
        sentences[example.sentence] = sentences[example.sentence]._replace(target=text)
        pairs.append((with_sentences(example.document, sentences), example.sentence))
    return pairs


def score_contrasts(examples: Sequence[Contrast], score: Scorer) -> list[tuple[float, ...]]:
    """Scores of the candidates of each example, in their order, from one call of the scorer.

    Raises DataError if the scorer does not return one number for each candidate.
    """
    documents = [pair for example in examples for pair in candidate_documents(example)]
    values = list(score(documents))
    if len(values) != len(documents):
        raise DataError(f"the scorer returned {len(values)} scores for {len(documents)} candidates")
    return split_scores(examples, values)


def split_scores(examples: Sequence[Contrast], values: Iterable[float]) -> list[tuple[float, ...]]:
    """A flat list of scores, one for each candidate of each example in turn, as one tuple an example."""
    rest = iter(values)
    return [tuple(float(next(rest)) for _ in example.candidates) for example in examples]


def accuracy(
    examples: Sequence[Contrast], scores: Sequence[Sequence[float]], *, farthest: int | None = None
) -> dict:
    """How often the right candidate scores strictly higher than every wrong one; ready for JSON.

    scores: those of the candidates of each example, in their order; higher is better.
    farthest: larger distances are put together, such as ">3".

    A tie is wrong: a model that does not tell two translations apart has not chosen. (The published scripts of
    ContraPro and of Bawden et al. count alike; that of Voita et al. gives a tie to the candidate that comes
    first.) Candidates with the text of the right one are left out of the comparison; where nothing remains, as
    in one published example, the example is right.
    Returns what `tabulate` returns. Raises DataError for lengths that do not fit, and for NaN.
    """
    if len(examples) != len(scores):
        raise DataError(f"{len(examples)} contrasts but {len(scores)} rows of scores")
    return tabulate((_outcome(*pair) for pair in zip(examples, scores, strict=True)), farthest=farthest)


def tabulate(outcomes: Iterable[Outcome], *, farthest: int | None = None) -> dict:
    """Accuracies in per cent with the counts that they come from.

    {"overall": cell, "by_phenomenon": {name: cell}, "by_distance": {label: cell},
    "by_phenomenon_and_distance": {name: {label: cell}}, "groups": {"accuracy", "right", "total"}} with
    cell = {"accuracy", "right", "ties", "total"}; a label is a distance, ">3" or "-" where it is not known. A
    group is right where all of its examples are. Raises DataError where there is no outcome.
    """
    outcomes = [outcome._replace(distance=_binned(outcome.distance, farthest)) for outcome in outcomes]
    if not outcomes:
        raise DataError("no contrastive examples: nothing to measure")

    def by(key: Callable[[Outcome], str], of: list[Outcome]) -> dict[str, list[Outcome]]:
        parts: dict[str, list[Outcome]] = {}
        for outcome in of:
            parts.setdefault(key(outcome), []).append(outcome)
        return parts

    def by_distance(of: list[Outcome]) -> dict[str, dict]:
        near_first = sorted(of, key=lambda o: math.inf if o.distance is None else o.distance)
        parts = by(lambda o: _label(o.distance, farthest), near_first)
        return {label: _cell(part) for label, part in parts.items()}

    phenomena = by(lambda o: o.phenomenon, outcomes)
    groups = by(lambda o: o.group, [outcome for outcome in outcomes if outcome.group])
    whole = sum(all(outcome.right for outcome in group) for group in groups.values())
    return {
        "overall": _cell(outcomes),
        "by_phenomenon": {name: _cell(part) for name, part in phenomena.items()},
        "by_distance": by_distance(outcomes),
        "by_phenomenon_and_distance": {name: by_distance(part) for name, part in phenomena.items()},
        "groups": {
            "accuracy": 100 * whole / len(groups) if groups else None,
            "right": whole,
            "total": len(groups),
        },
    }


def format_table(result: dict, *, markdown: bool = False) -> str:
    """A result of `tabulate` as text: phenomena down, distances across, per cent, with the number of examples."""
    labels = list(result["by_distance"])
    labels = [] if labels == [UNKNOWN] else labels
    rows = [["phenomenon", *labels, "all", "examples"]]
    for name, cells in result["by_phenomenon_and_distance"].items():
        rows.append(_row(name, [cells.get(label) for label in labels], result["by_phenomenon"][name]))
    rows.append(_row("all", [result["by_distance"][label] for label in labels], result["overall"]))
    counts = [str(result["by_distance"][label]["total"]) for label in labels]
    rows.append(["examples", *counts, str(result["overall"]["total"]), ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells).rstrip())
    if markdown:
        bars = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        lines.insert(1, "| " + " | ".join(bars) + " |")
    if ties := result["overall"]["ties"]:
        lines += [""] * markdown + [f"{ties} tie(s) counted as wrong"]
    return "\n".join(lines)


def _outcome(example: Contrast, scores: Sequence[float]) -> Outcome:
    if len(scores) != len(example.candidates) or any(map(math.isnan, scores)):
        raise DataError(
            f"contrast in document {example.document.id!r}: scores {list(scores)} for "
            f"{len(example.candidates)} candidates; give one number for each"
        )
    right = float(scores[example.answer])
    wrong = [
        float(score)
        for score, text in zip(scores, example.candidates, strict=True)
        if text != example.right
    ]  # fmt: skip
    best = max(wrong, default=-math.inf)
    return Outcome(example.phenomenon, example.distance, example.group, right > best, right == best)


def _binned(distance: int | None, farthest: int | None) -> int | None:
    return distance if distance is None or farthest is None else min(distance, farthest + 1)


def _label(distance: int | None, farthest: int | None) -> str:
    if distance is None:
        return UNKNOWN
    return f">{farthest}" if farthest is not None and distance > farthest else str(distance)


def _cell(outcomes: list[Outcome]) -> dict:
    right = sum(outcome.right for outcome in outcomes)
    ties = sum(outcome.tie for outcome in outcomes)
    total = len(outcomes)
    return {"accuracy": 100 * right / total, "right": right, "ties": ties, "total": total}


def _row(name: str, cells: list[dict | None], whole: dict) -> list[str]:
    texts = [f"{cell['accuracy']:.1f}" if cell else "" for cell in [*cells, whole]]
    return [name, *texts, str(whole["total"])]
