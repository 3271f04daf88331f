"""Labels of words, in columns as the shared tasks of CoNLL have them (Tjong Kim Sang and De Meulder 2003)."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from flaxnmt.data.files import Problem, Report, locate, read_lines, refuse
from flaxnmt.data.labelled.examples import TaggedExample

START = "-DOCSTART-"
"""What opens a document, on a line of its own."""

Token = tuple[int, str, str]


def read_tags(
    path: str | Path, labels: Sequence[str], *, limit: int | None = None, report: Report = refuse
) -> Iterator[TaggedExample]:
    """Sentences of a file: a word a line, blanks between its columns, a blank line after each sentence.

    The first column is the word and the last one its label; lines that begin with # and a blank before a sentence,
    and those of -DOCSTART-, are no words. `labels` are names such as `tag_names` finds.

    Raises:
      DataError: for a missing file and, while reading, for lines of another number of columns and unknown labels.
    """
    places = {label: place for place, label in enumerate(labels)}

    def examples() -> Iterator[TaggedExample]:
        for sentence in _sentences(path, report):
            unknown = [(line, label) for line, _, label in sentence if label not in places]
            for line, label in unknown:
                report(
                    Problem("label", str(path), line, f"{label!r} is none of the labels {', '.join(labels)}")
                )
            if not unknown:
                lines, words, names = zip(*sentence)
                yield TaggedExample(words, tuple(places[name] for name in names), lines[0])

    return islice(examples(), limit)


def tag_names(*paths: str | Path) -> tuple[str, ...]:
    """The labels of files, sorted."""
    sentences = (sentence for path in paths for sentence in _sentences(path, refuse))
    return tuple(sorted({label for sentence in sentences for _, _, label in sentence}))


def _sentences(path: str | Path, report: Report) -> Iterator[list[Token]]:
    sentence: list[Token] = []
    columns = 0
    for line, text in enumerate(read_lines(locate(path), report), 1):
        cells = text.split()
        if not cells or cells[0] == START:
            if sentence:
                yield sentence
            sentence = []
        elif text.startswith("# ") and not sentence:
            continue
        elif len(cells) < 2 or len(cells) != (columns or len(cells)):
            expected = f"{columns} as in the lines before" if columns else "a word and its label"
            report(Problem("columns", str(path), line, f"{len(cells)} columns, not {expected}"))
        else:
            columns = len(cells)
            sentence.append((line, cells[0], cells[-1]))
    if sentence:
        yield sentence
