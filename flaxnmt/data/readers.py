"""One entry point from what a user names to documents, and one for text to translate."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from flaxnmt.data import formats
from flaxnmt.data.documents import Document
from flaxnmt.data.files import Problem, Report, decode, locate, read_lines, refuse
from flaxnmt.errors import DataError

KINDS = (
    "name one corpus (documents.jsonl[.gz], pairs.tsv[.gz], tfds:NAME/..., discourse[:SPLIT[:DOCUMENTS]]), "
    "two parallel text files, or three (source, target, line numbers of documents)"
)
DISCOURSE_DOCUMENTS = 2000


def _generated(name: str) -> Iterator[Document]:
    """The embedded corpus: `discourse[:SPLIT[:DOCUMENTS]]`."""
    from flaxnmt.data import discourse

    _, split, documents = (name.split(":") + ["train", str(DISCOURSE_DOCUMENTS)][name.count(":") :])[:3]
    if not documents.isdecimal() or name.count(":") > 2:
        raise DataError(f"{name}: expected discourse[:SPLIT[:DOCUMENTS]], for example discourse:train:1000")
    return (item.document for item in discourse.generate(split, int(documents)))


def _single(name: str, paragraphs: bool, report: Report) -> Iterator[Document]:
    if name == "discourse" or name.startswith("discourse:"):
        return _generated(name)
    if name.startswith("tfds:"):
        from flaxnmt.data import tfds

        return tfds.read(name)
    path = locate(name)
    suffixes = name.removesuffix(".gz")
    if suffixes.endswith(".jsonl"):
        return formats.json_lines(path, report)
    if suffixes.endswith(".tsv"):
        return formats.tsv(path, paragraphs, report)
    raise DataError(f"{name} alone is not a corpus: {KINDS}")


def _some(documents: Iterator[Document], name: str, report: Report) -> Iterator[Document]:
    for document in documents:
        yield document
        yield from documents
        return
    report(Problem("empty", name, 0, "no sentence pair in it"))


def read(
    *paths: str | Path, paragraphs: bool = False, limit: int | None = None, report: Report = refuse
) -> Iterator[Document]:
    """Documents of a corpus, lazily and in their order.

    One argument is documents as JSON lines (.jsonl[.gz]), TSV (.tsv[.gz]), a TFDS set (`tfds:...`, see
    `flaxnmt.data.tfds`) or the generated corpus (`discourse[:SPLIT[:DOCUMENTS]]`); two are parallel text
    files, plain or gzip; three add HAN line numbers. See `formats` for what separates documents;
    `paragraphs` makes single blank lines end paragraphs. `limit` is a number of documents.

    Raises DataError, at once for missing and empty files and while reading for what is wrong with a line;
    another `report` than `refuse` collects the latter, and reading goes on.
    """
    names = [str(path) for path in paths]
    if len(names) == 1:
        documents = _single(names[0], paragraphs, report)
    elif len(names) == 2:
        documents = formats.parallel_text(locate(names[0]), locate(names[1]), paragraphs, report)
    elif len(names) == 3:
        documents = formats.numbered_text(*map(locate, names), paragraphs, report)
    else:
        raise DataError(f"{len(names)} corpus arguments: {KINDS}")
    return islice(_some(documents, " and ".join(names), report), limit)


def read_source(source: str | Path | BinaryIO | TextIO) -> Iterator[str]:
    """Lines to translate, each as soon as it is there; blank lines are kept, so that lines stay aligned.

    `source` is a file (plain or gzip) or a stream of bytes such as `sys.stdin` (its buffer is read).
    Raises DataError for a missing file, invalid UTF-8 and NUL bytes; an empty input has no lines.
    """
    if isinstance(source, str | Path):
        if not Path(source).exists():
            locate(source)
        return read_lines(source)
    name = str(getattr(source, "name", "input"))

    def lines() -> Iterator[str]:
        offset = 0
        for number, raw in enumerate(getattr(source, "buffer", source), 1):
            yield from decode(raw, name, number, offset)
            offset += len(raw)

    return lines()
