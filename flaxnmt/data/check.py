"""What a corpus holds and what is wrong with it: the report of `flaxnmt check-data`.

Errors are what readers refuse; notes are legal but often a sign of bad data. All are counted, and the
first few of each kind are kept with file and line.
"""

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.files import Problem
from flaxnmt.data.readers import read

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


def percentiles(counts: Counter[int], shares: Sequence[int] = PERCENTILES) -> dict[str, int]:
    """Smallest value that at least each share (in percent) of all does not exceed, with least and largest."""
    total = sum(counts.values())
    if not total:
        return {}
    found = {"min": min(counts)}
    wanted = iter(shares)
    share = next(wanted, None)
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        while share is not None and 100 * seen >= share * total:
            found[f"{share}%"] = value
            share = next(wanted, None)
    return found | {"max": max(counts)}


@dataclass
class Issue:
    """A kind of problem: how often, and the first places."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Side:
    """One language: words are separated by spaces, lengths are words per sentence."""

    words: int = 0
    characters: int = 0
    lengths: dict[str, int] = field(default_factory=dict)


@dataclass
class Report:
    """Counts of a corpus; `errors` are lines that training refuses, `notes` lines worth a look."""

    name: str
    documents: int = 0
    paragraphs: int = 0
    sentences: int = 0
    source: Side = field(default_factory=Side)
    target: Side = field(default_factory=Side)
    sentences_per_document: dict[str, int] = field(default_factory=dict)
    errors: dict[str, Issue] = field(default_factory=dict)
    notes: dict[str, Issue] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether readers accept the corpus."""
        return not self.errors

    def as_dict(self) -> dict:
        """Plain values for JSON."""
        return dataclasses.asdict(self) | {"ok": self.ok}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _row(name: str, values: Iterable[object]) -> str:
    return f"{name:24}" + "".join(f"{value:>12}" for value in values)


def _lines(report: Report) -> Iterator[str]:
    yield report.name
    yield _row("documents", [f"{report.documents:,}"])
    yield _row("paragraphs", [f"{report.paragraphs:,}"])
    yield _row("sentences", [f"{report.sentences:,}"])
    if report.sentences:
        yield ""
        sides = {"source": report.source, "target": report.target}
        yield _row("", ["words", "characters"])
        for name, side in sides.items():
            yield _row(name, [f"{side.words:,}", f"{side.characters:,}"])
        yield ""
        yield _row("length", report.source.lengths)
        for name, side in sides.items():
            yield _row(f"{name} words", side.lengths.values())
        yield _row("sentences per document", report.sentences_per_document.values())
    for title, issues in (("errors", report.errors), ("notes", report.notes)):
        if issues:
            yield ""
            yield title
        for kind, issue in issues.items():
            yield _row(f"  {kind}", [f"{issue.count:,}"])
            yield from (f"      {example}" for example in issue.examples)
    yield ""
    yield "no errors" if report.ok else "errors: this corpus is refused in training"


class _Counts:
    """Running counts over the documents of a corpus."""

    def __init__(self, report: Report, max_words: int, max_ratio: float, examples: int):
        self.report = report
        self.max_words = max_words
        self.max_ratio = max_ratio
        self.examples = examples
        self.lengths = (Counter(), Counter())
        self.documents = Counter()
        self.seen: set[int] = set()

    def error(self, problem: Problem) -> None:
        self._add(self.report.errors, problem.kind, str(problem))

    def note(self, kind: str, where: str, detail: str) -> None:
        self._add(self.report.notes, kind, f"{where}: {detail}")

    def _add(self, issues: dict[str, Issue], kind: str, example: str) -> None:
        issue = issues.setdefault(kind, Issue())
        issue.count += 1
        if len(issue.examples) < self.examples:
            issue.examples.append(example)

    def document(self, document: Document, name: str) -> None:
        self.report.documents += 1
        self.report.paragraphs += len(document.paragraphs)
        self.report.sentences += len(document)
        self.documents[len(document)] += 1
        for sentence in document:
            self.sentence(sentence, f"{name}:{sentence.line}" if sentence.line else document.id)

    def sentence(self, sentence: Sentence, where: str) -> None:
        source, target = sentence.source, sentence.target or ""
        words = []
        for text, side, lengths in zip(
            (source, target), (self.report.source, self.report.target), self.lengths, strict=True
        ):
            words.append(len(text.split()))
            lengths[words[-1]] += 1
            side.words += words[-1]
            side.characters += len(text)
            if not unicodedata.is_normalized("NFC", text):
                self.note("not NFC", where, "characters in decomposed form")
        if max(words) > self.max_words:
            self.note("too long", where, f"{words[0]} and {words[1]} words, more than {self.max_words}")
        if source == target:
            self.note("source = target", where, repr(source[:60]))
        shorter, longer = sorted((len(source), len(target)))
        if target and longer > self.max_ratio * shorter:
            self.note("length ratio", where, f"{len(source)} and {len(target)} characters")
        key = hash((source, target))
        if key in self.seen:
            self.note("duplicate", where, repr(source[:60]))
        self.seen.add(key)

    def finish(self) -> Report:
        self.report.source.lengths, self.report.target.lengths = map(percentiles, self.lengths)
        self.report.sentences_per_document = percentiles(self.documents)
        return self.report


def check(
    *paths: str | Path,
    paragraphs: bool = False,
    max_words: int = 200,
    max_ratio: float = 9.0,
    examples: int = 5,
) -> Report:
    """Reads a whole corpus, named as for `read`, past its bad lines.

    Notes are sentences of more than `max_words` words on either side, pairs whose lengths in characters
    differ by more than a factor of `max_ratio`, source equal to target, pairs seen before (by a 64-bit
    hash), and text that is not in Unicode normal form C. `examples` places are kept of each kind.
    Raises DataError only where there is nothing to read: missing files and unknown corpora.
    """
    name = " ".join(map(str, paths))
    counts = _Counts(Report(name), max_words, max_ratio, examples)
    for document in read(*paths, paragraphs=paragraphs, report=counts.error):
        counts.document(document, str(paths[0]))
    return counts.finish()
