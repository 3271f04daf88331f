"""Files that commands read and write."""

import io
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
        raise DataError(f"{path}: cannot be written ({error.strerror}); give another --output") from None
    with file:
        yield file


def same_length(first: Path, one: list, second: Path, other: list) -> None:
    if len(one) != len(other):
        raise DataError(
            f"{first} has {len(one)} lines and {second} {len(other)}: they must match line by line"
        )
