"""Files that commands read and write."""

import errno
import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from flaxnmt.errors import DataError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a file that has no room, without its name."""


@contextmanager
def writer(path: Path | None) -> Iterator[TextIO]:
    """A UTF-8 file, or standard output whatever the locale."""
    if path is None:
        out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
        try:
            yield out
        finally:
            out.detach()
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error.errno) from None
    try:
        with file:
            yield file
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        raise _unwritable(path, error.errno) from None


def check_output(path: Path | None, *inputs: str | Path | int | None) -> None:
    """Refuses, before anything is computed, a file that cannot be written, or from which there is still to be read.

    inputs: files, or descriptors of such.

    Raises:
      DataError: with the name of the file.
    """
    if path is None:
        return
    if path.is_file() and any(_is_same(path, given) for given in inputs if given is not None):
        raise DataError(f"{path} is what is read, and writing would empty it: name another file")
    if path.is_dir():
        raise _unwritable(path, errno.EISDIR)
    if not path.parent.is_dir():
        raise _unwritable(path, errno.ENOENT)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, errno.EACCES)


def _is_same(path: Path, given: str | Path | int) -> bool:
    try:
        return os.path.samefile(path, given)
    except OSError:
        return False


def _unwritable(path: Path, number: int) -> DataError:
    return DataError(f"{path}: cannot be written ({os.strerror(number)}); name another file")


def same_length(first: str | Path, one: list, second: str | Path, other: list) -> None:
    """Refuses texts that do not match line by line."""
    if len(one) != len(other):
        raise DataError(
            f"{first} has {len(one)} lines and {second} {len(other)}: they must match line by line"
        )


def not_empty(name: str | Path, lines: list) -> None:
    """Refuses a text of which nothing could be said."""
    if not lines:
        raise DataError(f"{name} is empty")


@dataclass(frozen=True)
class Layout:
    """Which lines of a text are the sentences of documents; all others are blank.

    Attributes:
      places: of the sentences of each document, from 0.
      length: lines of the text.
    """

    places: tuple[tuple[int, ...], ...]
    length: int

    @staticmethod
    def with_blanks(lengths: Sequence[int]) -> "Layout":
        """Documents of so many sentences each, with a blank line between two."""
        starts = [0, *itertools.accumulate(length + 1 for length in lengths)]
        places = (tuple(range(start, start + length)) for start, length in zip(starts, lengths))
        return Layout(tuple(places), starts[-1] - 1)

    def documents(self, lines: list[str]) -> list[list[str]] | None:
        """The lines of each document; None of another text, of which nobody knows what stands where."""
        blank = set(range(self.length)).difference(*self.places)
        if len(lines) != self.length or any(lines[place].strip() for place in blank):
            return None
        return [[lines[place] for place in places] for places in self.places]

    def lines(self, documents: list[list[str]]) -> list[str]:
        """The text of documents."""
        text = [""] * self.length
        for places, sentences in zip(self.places, documents, strict=True):
            for place, sentence in zip(places, sentences, strict=True):
                text[place] = sentence
        return text
