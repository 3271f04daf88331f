"""Files that commands read and write."""

import errno
import io
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from flaxnmt.errors import DataError


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
    with file:
        yield file


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


def in_documents(path: str, lines: list[str], lengths: list[int]) -> list[list[str]]:
    """Lines of documents of so many sentences each, with a blank line between two, as commands write them.

    Raises:
      DataError: if there are others; what stands where is not known then.
    """
    ends = list(itertools.accumulate(length + 1 for length in lengths))
    if len(lines) != ends[-1] - 1 or any(lines[end - 1].strip() for end in ends[:-1]):
        raise DataError(
            f"{path}: give a line for each of the {sum(lengths)} sentences, and a blank one between two of the "
            f"{len(lengths)} documents, as --output writes them"
        )
    return [lines[end - length - 1 : end - 1] for length, end in zip(lengths, ends)]
