"""Text files as lines: plain or gzip, UTF-8, streamed in blocks.

Only a line feed ends a line (U+2028, U+0085 and form feeds stay inside it); a carriage return before it
and a byte order mark at the start of the file are dropped. Nothing else is changed: no Unicode
normalisation. What is wrong with a line is a `Problem`, handed to `report`: readers refuse at the first
one, `flaxnmt check-data` collects them and goes on.
"""

import difflib
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from flaxnmt.errors import DataError
from flaxnmt.remote import bring_file, is_address

BLOCK = 1 << 20
BLANK_LINE_INSIDE = re.compile(rb"\n[ \t\r\f\v]*\n\s*\S")


class Problem(NamedTuple):
    """A defect of a corpus: `kind` groups them in a report, `line` is 1-based and 0 for the whole file."""

    kind: str
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


Report = Callable[[Problem], None]


def refuse(problem: Problem) -> None:
    """The reporter of readers: raises DataError with the problem as its one line."""
    raise DataError(str(problem))


def ignore(problem: Problem) -> None:
    """The reporter of those whom a defect does not concern."""


def locate(path: str | Path) -> Path:
    """The path of a file that exists and is not empty; otherwise DataError with the nearest name.

    What an address names, such as gs://bucket/train.jsonl, is copied to this machine.
    """
    if is_address(path):
        return bring_file(str(path))
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, a file was expected")
    if not path.exists():
        if not path.parent.is_dir():
            raise DataError(f"{path} does not exist: there is no folder {path.parent}")
        names = sorted(entry.name for entry in path.parent.iterdir())
        nearest = difflib.get_close_matches(path.name, names, n=1)
        hint = f"; the nearest name there is {path.parent / nearest[0]}" if nearest else ""
        raise DataError(f"{path} does not exist{hint}")
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    return path


def write_bytes(path: str | Path, data: bytes) -> None:
    """Writes a file that is whole or not there at all."""
    partial = Path(f"{path}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def open_bytes(path: str | Path) -> BinaryIO:
    """A file of bytes, decompressed where its name or its first two bytes say gzip."""
    if str(path).endswith(".gz"):
        return gzip.open(path)
    file = open(path, "rb")
    # Looked at and not read: a pipe, such as that of <(zcat a.gz), has its bytes once.
    if file.peek(2)[:2] != b"\x1f\x8b":
        return file
    file.close()
    return gzip.open(path)


def _byte_blocks(path: str | Path, report: Report) -> Iterator[bytes]:
    """Blocks that end with a line feed, but for the last one of a file without a final line feed."""
    rest = []
    lines = 0
    try:
        with open_bytes(path) as file:
            while len(chunk := file.read(BLOCK)) == BLOCK:
                cut = chunk.rfind(b"\n") + 1
                rest.append(chunk[:cut])
                if cut:
                    block = b"".join(rest)
                    lines += block.count(b"\n")
                    yield block
                    rest = []
                rest.append(chunk[cut:])
        # The file is closed before its last lines are looked at: what is wrong with one of them leaves nothing open.
        rest.append(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        report(
            Problem("gzip", str(path), lines + 1, f"corrupt gzip, nothing can be read from here on ({error})")
        )
        rest = []
    if any(rest):
        yield b"".join(rest)


def _bad_line(raw: bytes, name: str, line: int, offset: int, report: Report) -> str:
    """The text of one line with replacement characters for what could not be decoded, reported."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte 0x{raw[error.start]:02x} at offset {offset + error.start}"
        report(Problem("utf-8", name, line, f"invalid UTF-8 ({where}, byte {error.start + 1} of the line)"))
        text = raw.decode(errors="replace")
    if "\0" in text:
        at = offset + raw.index(b"\0")
        report(Problem("nul", name, line, f"NUL byte (at offset {at}): not a text file, or damaged"))
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def decode(block: bytes, name: str, line: int, offset: int, report: Report = refuse) -> list[str]:
    """Lines of a block whose first line is number `line` and starts at byte `offset` of the file."""
    if line == 1 and block.startswith(b"\xef\xbb\xbf"):
        block, offset = block[3:], offset + 3
    block = block.removesuffix(b"\n")
    try:
        text = block.decode()
        clean = "\0" not in text
    except UnicodeDecodeError:
        clean = False
    if not clean:
        lines = []
        for number, raw in enumerate(block.split(b"\n"), line):
            lines.append(_bad_line(raw, name, number, offset, report).removesuffix("\r"))
            offset += len(raw) + 1
        return lines
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    return text.split("\n")


def read_lines(path: str | Path, report: Report = refuse) -> Iterator[str]:
    """The lines of a file without their ends, in blocks of a megabyte.

    Raises DataError (or reports and goes on) for invalid UTF-8, NUL bytes and corrupt gzip.
    """

    def decoded() -> Iterator[list[str]]:
        line, offset = 1, 0
        for block in _byte_blocks(path, report):
            lines = decode(block, str(path), line, offset, report)
            line, offset = line + len(lines), offset + len(block)
            yield lines

    return chain.from_iterable(decoded())


def has_blank_line_inside(path: str | Path) -> bool:
    """Whether a blank line stands between two lines of text; stops at the first one."""
    tail = b""
    for block in _byte_blocks(path, lambda problem: None):
        text = tail + block if tail else block.lstrip()
        if BLANK_LINE_INSIDE.search(text):
            return True
        # Blank lines at the end of a block separate only if text follows in a later one.
        if stripped := text.rstrip():
            tail = b"x" + text[len(stripped) :]
    return False
