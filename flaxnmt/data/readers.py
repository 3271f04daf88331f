"""One entry point from what a user names to documents, and one for text to translate."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from flaxnmt.data import formats
from flaxnmt.data.documents import Document
from flaxnmt.data.files import Problem, Report, decode, ignore, locate, read_lines, refuse
from flaxnmt.errors import DataError
from flaxnmt.remote import is_address

KINDS = (
    "name one corpus (documents.jsonl[.gz], pairs.tsv[.gz], tfds:NAME/..., discourse[:SPLIT[:DOCUMENTS]]), "
    "two parallel text files, or three (source, target, line numbers of documents)"
)
DISCOURSE_DOCUMENTS = 2000
PART = re.compile(r"(?P<name>.+)\[(?P<first>\d*):(?P<last>\d*)\]")
"""A file and the documents of it that are meant, counted from 0, as TFDS writes parts of a split."""


def _generated(name: str) -> Iterator[Document]:
    """The embedded corpus: `discourse[:SPLIT[:DOCUMENTS]]`."""
    from flaxnmt.data import discourse

    _, split, documents = (name.split(":") + ["train", str(DISCOURSE_DOCUMENTS)][name.count(":") :])[:3]
    if not documents.isdecimal() or name.count(":") > 2:
        raise DataError(f"{name}: expected discourse[:SPLIT[:DOCUMENTS]], for example discourse:train:1000")
    return (item.document for item in discourse.generate(split, int(documents)))


def _is_generated(name: str) -> bool:
    return name == "discourse" or name.startswith("discourse:")


def _corpus(name: str) -> Path:
    """The path of a file that can be read more than once."""
    path = locate(name)
    if not path.is_file():
        raise DataError(f"{name} is a pipe, and a corpus is read more than once: write it to a file")
    return path


def _single(name: str, paragraphs: bool, report: Report, blank: Report = ignore) -> Iterator[Document]:
    if _is_generated(name):
        return _generated(name)
    if name.startswith("tfds:"):
        from flaxnmt.data import tfds

        return tfds.read(name)
    path = _corpus(name)
    suffixes = name.removesuffix(".gz")
    if suffixes.endswith(".jsonl"):
        return formats.json_lines(path, report, blank)
    if suffixes.endswith(".tsv"):
        return formats.tsv(path, paragraphs, report)
    raise DataError(f"{name} alone is not a corpus: {KINDS}")


def without_part(name: str) -> str:
    """The file of an argument that names a part of it."""
    part = None if name.startswith("tfds:") else PART.fullmatch(name)
    return name if part is None else part["name"]


def holds_documents(name: str) -> bool:
    """Whether a file is documents as JSON lines, by its name, and not lines of text."""
    return without_part(name).removesuffix(".gz").endswith(".jsonl")


def _part(names: Sequence[str]) -> tuple[int | None, int | None]:
    """First and last of the documents that are meant, the same for all files."""
    parts = [None if name.startswith("tfds:") else PART.fullmatch(name) for name in names]
    ends = {("", "") if part is None else part.group("first", "last") for part in parts}
    if len(ends) > 1:
        raise DataError(
            f"{' and '.join(names)}: the same part of each file, such as [:3000] behind each name"
        )
    first, last = (int(end) if end else None for end in ends.pop())
    return first, last


def _some(documents: Iterator[Document], name: str, report: Report) -> Iterator[Document]:
    for document in documents:
        yield document
        yield from documents
        return
    report(Problem("empty", name, 0, "no sentence pair in it"))


def read(
    *paths: str | Path,
    paragraphs: bool = False,
    documents: bool = False,
    limit: int | None = None,
    report: Report = refuse,
    blank: Report = ignore,
) -> Iterator[Document]:
    """Documents of a corpus, lazily and in their order.

    One argument is documents as JSON lines (.jsonl[.gz]), TSV (.tsv[.gz]), a TFDS set (`tfds:...`, see
    `flaxnmt.data.tfds`) or the generated corpus (`discourse[:SPLIT[:DOCUMENTS]]`); two are parallel text
    files, plain or gzip; three add HAN line numbers. See `formats` for what separates documents;
    `paragraphs` makes single blank lines end paragraphs, and `documents` makes parallel text without blank lines one
    document in place of one a line. `limit` is a number of documents. A part of a corpus is meant where each name ends
    with a slice of its documents: `train.en[:3000]`, `train.en[25000:]`.

    Raises DataError, at once for missing and empty files and while reading for what is wrong with a line;
    another `report` than `refuse` collects the latter, and reading goes on. `blank` is told of blank sentences of JSON
    lines, which are left out: to refuse them is for those who need an output for each.
    """
    given = [str(path) for path in paths]
    names = [without_part(name) for name in given]
    if len(names) == 1:
        found = _single(names[0], paragraphs, report, blank)
    elif len(names) == 2:
        found = formats.parallel_text(*map(_corpus, names), paragraphs, report, documents)
    elif len(names) == 3:
        found = formats.numbered_text(*map(_corpus, names), paragraphs, report)
    else:
        raise DataError(f"{len(names)} corpus arguments: {KINDS}")
    found = islice(found, *_part(given))
    return islice(_some(found, " and ".join(given), report), limit)


def read_texts(*paths: str | Path, report: Report = refuse) -> Iterator[Document]:
    """Documents of one language, for a language model, of any number of corpora one after the other.

    Each argument is a plain text file, of which each is a document unless blank lines end some, or a corpus that `read`
    takes alone, whose targets are left out. A slice behind a name means a part of its documents.

    Raises:
      DataError: as `read`.
    """
    for given in map(str, paths):
        name = without_part(given)
        kind = name.removesuffix(".gz")
        alone = _is_generated(name) or name.startswith("tfds:") or kind.endswith((".jsonl", ".tsv"))
        documents = _single(name, False, report) if alone else formats.text(_corpus(name), report)
        yield from _some(islice(documents, *_part([given])), given, report)


def read_source(source: str | Path | BinaryIO | TextIO) -> Iterator[str]:
    """Lines to translate, each as soon as it is there; blank lines are kept, so that lines stay aligned.

    `source` is a file (plain or gzip) or a stream of bytes such as `sys.stdin` (its buffer is read).
    Raises DataError for a missing file, invalid UTF-8 and NUL bytes; an empty input has no lines.
    """
    if isinstance(source, str | Path):
        if is_address(source) or not Path(source).exists():
            source = locate(source)
        return read_lines(source)
    name = str(getattr(source, "name", "input"))

    def lines() -> Iterator[str]:
        offset = 0
        for number, raw in enumerate(getattr(source, "buffer", source), 1):
            yield from decode(raw, name, number, offset)
            offset += len(raw)

    return lines()
