"""ctxpro (Wicks and Post 2023, github.com/rewicks/ctxpro): does a translation hold the form that context asks for?

Nothing is scored: a model translates the last sentence of a fragment of subtitles, and the translation must contain
one expected word, such as the German "sie" for "it". Sets exist for gender, formality, auxiliaries, inflection and
animacy, from and into English.

`tests/evaluation/test_ctxpro.py` makes a small file of each kind.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.files import locate, read_lines
from flaxnmt.errors import DataError
from flaxnmt.evaluation.contrastive import Outcome, tabulate
from flaxnmt.evaluation.json_entries import read_entries

SEPARATOR = "<eos>"
"""Stands between the sentences of a line of an input file."""

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class FormExample:
    """A document whose last sentence is judged; only this one has a reference.

    Attributes:
      document: the context, source side only, and the judged sentence.
      expected: the word that a right translation contains.
      rule: what asks for it, as the set names it ("DO.ELL", "ACC.FORM+PLUR").
      distance: sentences back to the antecedent; None where the set does not say.
    """

    document: Document
    expected: str
    rule: str
    distance: int | None


def read_ctxpro(path: str | Path, inputs: str | Path | None = None) -> list[FormExample]:
    """A set with its context, one line of the file of inputs for each entry.

    An entry of the JSON list has "src segment", "ref segment", "expected", "rule", "document id", "segment id" and,
    for some phenomena, "ante distance". A line of inputs holds the sentences up to the judged one, separated by
    "<eos>". Without inputs every sentence is a document of its own.
    Raises DataError with file and line for a missing or wrong field and for inputs that do not belong to the set.
    """
    entries = list(read_entries(path, list))
    lines = [""] * len(entries) if inputs is None else list(read_lines(locate(inputs)))
    if len(lines) != len(entries):
        raise DataError(f"{inputs}:{len(lines)}: {len(lines)} lines for the {len(entries)} entries of {path}")
    result = []
    for number, (entry, line) in enumerate(zip(entries, lines, strict=True), start=1):
        source = entry.text("src segment")
        *before, last = (text.strip() for text in (line or source).split(SEPARATOR))
        if last.split() != source.split():
            raise DataError(
                f"{inputs}:{number}: ends with {last[:60]!r}, but the set asks for {source[:60]!r}"
            )
        context = [Sentence(text, None, number) for text in before if text]
        judged = Sentence(source, entry.text("ref segment"), entry.line)
        result.append(
            FormExample(
                Document(
                    ((*context, judged),), id=f"{entry.text('document id')}/{entry.number('segment id')}"
                ),
                entry.text("expected"),
                entry.text("rule"),
                entry.number("ante distance") if "ante distance" in entry else None,
            )
        )
    return result


def contains(translation: str, form: str) -> bool:
    """Whether a form stands in a translation as a word (or words), case and ASCII punctuation aside."""
    words = translation.lower().translate(_NO_PUNCTUATION)
    return f" {form.lower()} " in f" {words} "


def form_accuracy(
    examples: Sequence[FormExample], translations: Sequence[str], *, farthest: int | None = None
) -> dict:
    """How many translations of judged sentences contain the expected form, by rule and distance: as `tabulate`.

    translations: one for each example, of its last sentence alone. (The published script gets a fragment and
    looks for its last sentence with a sentence splitter.) Raises DataError for another number of them.
    """
    if len(examples) != len(translations):
        raise DataError(f"{len(translations)} translations for {len(examples)} examples: give one for each")
    outcomes = [
        Outcome(example.rule, example.distance, "", contains(text, example.expected))
        for example, text in zip(examples, translations, strict=True)
    ]
    return tabulate(outcomes, farthest=farthest)
