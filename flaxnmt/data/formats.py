"""File formats to documents, each a generator that streams.

Plain text, TSV and line-number files are first rows `(document, paragraph, Sentence)` with keys that
change where a unit ends, then grouped. `report` gets what is wrong with a line (see `files`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, count, groupby, islice
from operator import itemgetter
from pathlib import Path

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.files import Problem, Report, has_blank_line_inside, ignore, read_lines, refuse

Row = tuple[str | int, int, Sentence]
Blame = Callable[[int, bool], None]
CHUNK = 4096
# Sentence._make without its Python frame: reading is a tenth faster.
_sentence = partial(tuple.__new__, Sentence)


def one_line(text: str) -> str:
    """Text with its line breaks turned into spaces: a sentence is a line everywhere."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _half(path: str | Path, line: int, report: Report, source_blank: bool) -> None:
    blank, other = ("source", "target") if source_blank else ("target", "source")
    report(Problem("one side", str(path), line, f"blank on the {blank} side but not on the {other} side"))


def _group(rows: Iterable[Row]) -> Iterator[Document]:
    for key, document in groupby(rows, key=itemgetter(0)):
        paragraphs = groupby(document, key=itemgetter(1))
        yield Document(
            tuple(tuple(row[2] for row in paragraph) for _, paragraph in paragraphs),
            id=key if isinstance(key, str) else "",
        )


def _split_at_blank_lines(sentences: Iterable[Sentence | None], paragraphs: bool) -> Iterator[Row]:
    """Rows of sentences with None for blank lines, which end documents (or paragraphs, and two documents)."""
    document = paragraph = blanks = 0
    for sentence in sentences:
        if sentence is None:
            blanks += 1
            continue
        if blanks:
            paragraph += 1
            document += blanks > 1 or not paragraphs
            blanks = 0
        yield document, paragraph, sentence


def _checked(pairs: Iterable[tuple[str, str]], first: int, blame: Blame) -> Iterator[Sentence | None]:
    for line, (source, target) in enumerate(pairs, first):
        if not _blank(source) and not _blank(target):
            yield Sentence(source, target, line)
        elif _blank(source) and _blank(target):
            yield None
        else:
            blame(line, _blank(source))


def _pairs(source: Path, target: Path, report: Report) -> Iterator[Sentence | None]:
    """Line by line of two files; None where both are blank."""

    def blame(line: int, source_blank: bool) -> None:
        _half(source if source_blank else target, line, report, source_blank)

    def chunks() -> Iterator[Iterator[Sentence | None]]:
        sources, targets = read_lines(source, report), read_lines(target, report)
        line = 1
        while True:
            texts, translations = list(islice(sources, CHUNK)), list(islice(targets, CHUNK))
            # Blank lines are looked for in whole lists: a loop over lines would halve the speed.
            if any("" in side or any(map(str.isspace, side)) for side in (texts, translations)):
                yield _checked(zip(texts, translations), line, blame)
            else:
                yield map(_sentence, zip(texts, translations, count(line)))
            if len(texts) != len(translations):
                lengths = [line - 1 + len(texts), line - 1 + len(translations)]
                lengths = [
                    n + sum(1 for _ in rest) for n, rest in zip(lengths, (sources, targets), strict=True)
                ]
                message = f"{lengths[0]} lines, but {target} has {lengths[1]}: both must have the same number"
                report(Problem("lengths", str(source), 0, message))
                return
            if len(texts) < CHUNK:
                return
            line += CHUNK

    return chain.from_iterable(chunks())


def _single(sentences: Iterable[Sentence | None]) -> Iterator[Document]:
    return map(Document, zip(zip(filter(None, sentences))))


def parallel_text(
    source: Path, target: Path, paragraphs: bool = False, report: Report = refuse, documents: bool = False
) -> Iterator[Document]:
    """Two files, line by line translations of each other.

    A line that is blank in both ends a document; with `paragraphs` it ends a paragraph, and two or more
    of them the document. Files without blank lines between the text are a sentence corpus: each line is
    a document; with `documents` they are one document.
    """
    sentences = _pairs(source, target, report)
    if paragraphs or documents or has_blank_line_inside(source):
        return _group(_split_at_blank_lines(sentences, paragraphs))
    return _single(sentences)


def text(path: Path, report: Report = refuse) -> Iterator[Document]:
    """A file of one language, a sentence or paragraph a line; blank lines end documents, of which there may be one."""
    lines = enumerate(read_lines(path, report), 1)
    sentences = (None if _blank(line) else Sentence(line, None, number) for number, line in lines)
    return _group(_split_at_blank_lines(sentences, paragraphs=False))


def _document_starts(path: Path, report: Report) -> list[int]:
    """0-based first lines of documents, ascending from 0."""
    starts = [0]
    for line, text in enumerate(read_lines(path, report), 1):
        number = int(text) if text.strip().isdecimal() else None
        if number is None:
            report(Problem("line number", str(path), line, f"{text!r} is not a line number"))
        elif line == 1 and number != 0:
            report(
                Problem("line number", str(path), line, f"the first document starts at line 0, not {number}")
            )
        elif number < starts[-1]:
            report(Problem("line number", str(path), line, f"{number} comes after {starts[-1]}: must ascend"))
        else:
            starts.append(number)
    return starts


def numbered_text(
    source: Path, target: Path, starts: Path, paragraphs: bool = False, report: Report = refuse
) -> Iterator[Document]:
    """Two files and the document boundaries of HAN_NMT (Miculicich et al. 2018).

    Each line of the third file is the 0-based number of the line where a document starts. Lines blank in
    both files hold no sentence; with `paragraphs` they end a paragraph.
    """
    first_lines = _document_starts(starts, report)

    def rows() -> Iterator[Row]:
        document = paragraph = line = 0
        for line, sentence in enumerate(_pairs(source, target, report)):
            while document < len(first_lines) and first_lines[document] <= line:
                document += 1
            if sentence is None:
                paragraph += paragraphs
            else:
                yield document, paragraph, sentence
        if first_lines[-1] > line:
            message = f"a document starts at line {first_lines[-1]}, but {source} has {line + 1} lines"
            report(Problem("line number", str(starts), 0, message))

    return _group(rows())


def tsv(path: Path, paragraphs: bool = False, report: Report = refuse) -> Iterator[Document]:
    """Source, tab, target and, in every row or none, tab, document id.

    Rows with the same id that follow each other are a document, a blank line ends a paragraph of it.
    Without ids, blank lines have the meaning they have in parallel text.
    """
    keys: list[str] = []

    def sentences() -> Iterator[Sentence | None]:
        columns = 0
        for line, text in enumerate(read_lines(path, report), 1):
            if _blank(text):
                yield None
                continue
            cells = text.split("\t")
            columns = columns or len(cells)
            if len(cells) != columns or not 2 <= columns <= 3:
                expected = f"{columns} as in the rows before" if 2 <= columns <= 3 and line > 1 else "2 or 3"
                report(
                    Problem("columns", str(path), line, f"{len(cells)} tab-separated columns, not {expected}")
                )
                columns = columns if 2 <= columns <= 3 else 0
            elif _blank(cells[0]) or _blank(cells[1]):
                _half(path, line, report, _blank(cells[0]))
            else:
                keys[:] = cells[2:]
                yield Sentence(cells[0], cells[1], line)

    def by_id() -> Iterator[Row]:
        paragraph, current, seen = 0, None, set()
        for sentence in sentences():
            if sentence is None:
                paragraph += paragraphs
                continue
            if keys[0] != current:
                current = keys[0]
                if current in seen:
                    message = (
                        f"document {current!r} goes on here after another one: sort the rows by document"
                    )
                    report(Problem("order", str(path), sentence.line, message))
                seen.add(current)
            yield current, paragraph, sentence

    first = next((line for line in read_lines(path, report=lambda problem: None) if not _blank(line)), "")
    if first.count("\t") == 2:
        return _group(by_id())
    if paragraphs or has_blank_line_inside(path):
        return _group(_split_at_blank_lines(sentences(), paragraphs))
    return _single(sentences())


def _paragraph(value: dict, path: Path, line: int, report: Report) -> tuple[Sentence, ...]:
    sources, targets = value["src"], value.get("tgt")
    if not isinstance(sources, list) or not isinstance(targets, list | None):
        raise TypeError("sentences come in lists")
    if targets is None:
        return tuple(Sentence(one_line(text), None, line) for text in sources if not _blank(text))
    if len(sources) != len(targets):
        message = f"a paragraph with {len(sources)} source and {len(targets)} target sentences"
        report(Problem("lengths", str(path), line, message))
        return ()
    sentences = []
    for source, target in zip(sources, targets, strict=True):
        if _blank(source) != _blank(target):
            _half(path, line, report, _blank(source))
        elif not _blank(source):
            sentences.append(Sentence(one_line(source), one_line(target), line))
    return tuple(sentences)


def json_lines(path: Path, report: Report = refuse, blank: Report = ignore) -> Iterator[Document]:
    """One document per line: {"doc_id", "section", "paragraphs": [{"src": [...], "tgt": [...]}]}.

    `doc_id` and `section` may be left out, and `tgt` too where only the source is known. Blank sentences, and documents
    without any sentence, are left out, and `blank` is told.
    """
    for line, text in enumerate(read_lines(path, report), 1):
        if _blank(text):
            continue
        if "\\u0000" in text:
            report(Problem("nul", str(path), line, "NUL character (\\u0000) in a sentence"))
            continue
        try:
            value = json.loads(text)
            if "\\ud" in text.lower():
                json.dumps(value, ensure_ascii=False).encode()
            paragraphs = tuple(_paragraph(paragraph, path, line, report) for paragraph in value["paragraphs"])
        except json.JSONDecodeError as error:
            report(Problem("json", str(path), line, f"not JSON ({error.msg} at column {error.colno})"))
            continue
        except RecursionError:
            report(Problem("json", str(path), line, "not JSON that can be read (nested too deeply)"))
            continue
        except UnicodeEncodeError:
            report(
                Problem(
                    "utf-8", str(path), line, "half of a surrogate pair (\\ud800 to \\udfff) in a sentence"
                )
            )
            continue
        except (KeyError, TypeError, AttributeError, ValueError):
            message = (
                'not a document: {"doc_id", "section", "paragraphs": [{"src": [...], "tgt": [...]}]} expected'
            )
            report(Problem("json", str(path), line, message))
            continue
        if not any(paragraphs) or sum(map(len, paragraphs)) < sum(
            len(part["src"]) for part in value["paragraphs"]
        ):
            blank(
                Problem("blank", str(path), line, "a blank sentence, or none in this document: take it out")
            )
        if paragraphs := tuple(filter(None, paragraphs)):
            yield Document(paragraphs, str(value.get("doc_id", "")), str(value.get("section", "")))
