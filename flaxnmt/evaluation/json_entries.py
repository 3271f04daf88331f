"""The entries of a JSON file with the lines where they begin, read field by field with messages that name both."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flaxnmt.data.files import locate, read_lines
from flaxnmt.data.formats import one_line
from flaxnmt.errors import DataError

_BETWEEN = re.compile(r"[\s,:]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a JSON file: `key` is its name in a file that is an object, `line` is where it begins."""

    value: dict[str, Any]
    path: str
    line: int
    key: str = ""

    def error(self, message: str) -> DataError:
        return DataError(f"{self.path}:{self.line}: {message}")

    def text(self, name: str) -> str:
        """A text in one line, without blanks around it; DataError if there is none."""
        return self._line(name, self._field(name, str, "a text"))

    def number(self, name: str) -> int:
        """A whole number; DataError if there is none."""
        return self._field(name, int, "a whole number")

    def texts(self, name: str) -> list[str]:
        """A list of texts, each as in `text`."""
        return [self._line(name, text) for text in self._field(name, list, "a list of texts")]

    def entry(self, name: str) -> "Entry":
        """An object inside this one, which keeps its line."""
        return Entry(self._field(name, dict, "an object"), self.path, self.line, name)

    def entries(self, name: str) -> list["Entry"]:
        """A list of objects inside this one, which keep its line."""
        values = self._field(name, list, "a list of objects")
        return [Entry(value, self.path, self.line, name) for value in values]

    def __contains__(self, name: str) -> bool:
        return isinstance(self.value, dict) and name in self.value

    def _field(self, name: str, kind: type, what: str) -> Any:
        if name not in self:
            inside = f" in {self.key!r}" if self.key else ""
            raise self.error(f"no {name!r}{inside}: {what} was expected; is the file in this format?")
        value = self.value[name]
        # True and false are whole numbers in Python.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(f"{name!r} is {json.dumps(value, ensure_ascii=False)[:60]}, {what} was expected")
        return value

    def _line(self, name: str, text: Any) -> str:
        if not isinstance(text, str) or not text.strip():
            raise self.error(f"{json.dumps(text)[:60]} in {name!r}: a text that is not blank was expected")
        return one_line(text).strip()


def read_entries(path: str | Path, kind: type[list] | type[dict]) -> Iterator[Entry]:
    """The entries of a JSON file that is a list, or an object whose values are entries.

    Raises DataError with file and line for what is no JSON and for a file of the other kind.
    """
    text = "\n".join(read_lines(locate(path)))
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(whole, kind) or not whole:
        expected = "a list of entries" if kind is list else "an object of entries"
        raise DataError(f"{path}:1: {expected} was expected; is the file in this format?")
    # The text is valid, so its values can be decoded again one by one, which says where each begins.
    decode = json.JSONDecoder().raw_decode
    begin = _after(text, text.index("[" if kind is list else "{") + 1)
    line = 1 + text.count("\n", 0, begin)
    for _ in whole:
        key, at = "", begin
        if kind is dict:
            key, at = decode(text, at)
            at = _after(text, at)
        value, at = decode(text, at)
        yield Entry(value, str(path), line, key)
        at = _after(text, at)
        line, begin = line + text.count("\n", begin, at), at


def _after(text: str, at: int) -> int:
    """Where the next value or key begins."""
    return _BETWEEN.match(text, at).end()
