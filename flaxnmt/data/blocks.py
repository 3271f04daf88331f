"""Lines of a stream, or documents, in blocks: as many as are there, so that nobody waits for lines not written yet."""

import io
import os
import select
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar

from flaxnmt.data.documents import Document
from flaxnmt.data.files import decode
from flaxnmt.data.readers import read_source
from flaxnmt.errors import DataError

T = TypeVar("T")

PATIENCE = 0.1
"""Seconds after a line in which the next one still joins its block."""


def read_blocks(
    source: str | Path | BinaryIO | TextIO, size: int, patience: float = PATIENCE
) -> Iterator[list[str]]:
    """The lines of a file or stream (see `read_source`) in lists of at most `size`.

    From a pipe or a terminal a block ends early when the next line takes longer than `patience` seconds: a
    line that is typed comes at once and alone, a file in full blocks. Lines before a bad one are handed out
    before its DataError is raised.
    """
    try:
        descriptor = source.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return _blocks(read_source(source), size)
    return _blocks(_decoded(_arriving(descriptor, patience), str(getattr(source, "name", "input"))), size)


def whole_documents(blocks: Iterable[list[str]], paragraphs: bool = False) -> Iterator[list[str]]:
    """The same lines in blocks that end where a document does: at a blank line, or at two with `paragraphs`.

    Lines before a bad one are handed out before its DataError is raised.
    """

    def end(held: list[str], block: list[str]) -> int:
        blank = [not line.strip() for line in block]
        if paragraphs:
            before = bool(held) and not held[-1].strip()
            blank = [here and last for here, last in zip(blank, [before, *blank])]
        return len(blank) - blank[::-1].index(True) if any(blank) else 0

    return _cut(blocks, end)


def document_blocks(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Documents in lists that hold `size` sentences or, with their last document, more; the last list may hold fewer.

    Documents before a bad one are handed out before its DataError is raised.
    """

    sentences = 0

    def end(held: list[Document], part: list[Document]) -> int:
        nonlocal sentences
        sentences += sum(map(len, part))
        if sentences < size:
            return 0
        sentences = 0
        return len(part)

    return _cut(([document] for document in documents), end)


def _cut(parts: Iterable[list[T]], end: Callable[[list[T], list[T]], int]) -> Iterator[list[T]]:
    """What is in the parts, handed out up to where `end` says of what is held and the next part; what is left at last.

    That is so at an error, too. Only new parts are looked at, since a document may be as long as its file.
    """
    held: list[T] = []
    try:
        for part in parts:
            stop = end(held, part)
            if not stop:
                held += part
                continue
            yield held + part[:stop]
            held = part[stop:]
    except DataError:
        if held:
            yield held
        raise
    if held:
        yield held


def _blocks(lines: Iterable[str | None], size: int) -> Iterator[list[str]]:
    """None among the lines ends a block."""
    block: list[str] = []
    try:
        for line in lines:
            if line is not None:
                block.append(line)
            if block and (line is None or len(block) == size):
                yield block
                block = []
    except DataError:
        if block:
            yield block
        raise
    if block:
        yield block


def _arriving(descriptor: int, patience: float) -> Iterator[bytes | None]:
    """Lines without their ends, and None where nothing more came for a while."""
    # Not the buffered stream, which may hold lines that `select` does not see.
    rest = b""
    while True:
        if not select.select([descriptor], [], [], patience)[0]:
            yield None
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _decoded(lines: Iterable[bytes | None], name: str) -> Iterator[str | None]:
    number, offset = 0, 0
    for raw in lines:
        if raw is None:
            yield None
            continue
        number += 1
        yield from decode(raw, name, number, offset)
        offset += len(raw) + 1
