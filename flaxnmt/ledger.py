"""The ledger of a sweep: one row of JSON for each finished trial, a small file that is kept with the code."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flaxnmt.errors import RunError

if TYPE_CHECKING:
    import pandas

ROWS = "rows"
"""The field of a row that stands for several: a list of dictionaries, each with what differs among them."""

Row = dict[str, Any]


class Ledger:
    """Rows of finished trials, by the key of the trial; a row is whole or not there.

    What is finished is known from this file alone, since run directories may be gone.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def rows(self) -> list[Row]:
        """All rows in the order in which their trials finished.

        Raises:
          RunError: for a line that is no row, with its number; a torn last line is left out.
        """
        if not self.path.exists():
            return []
        rows = []
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or "key" not in row:
                    raise ValueError("no row")
                rows.append(row)
            except ValueError:
                if number == len(lines):
                    continue
                raise RunError(f"{self.path}:{number}: not a row of a trial; take the line out") from None
        return rows

    def tidy(self) -> list[Row]:
        """Rows without nesting: of each trial one, or as many as its `rows` has, with dotted names of what was inside.

        Of a trial that has changed and was run again, the last row.
        """
        last = {(row.get("name", row["key"]), row.get("seed")): row for row in self.rows()}
        return [one for row in last.values() for one in tidy(row)]

    @property
    def table(self) -> "pandas.DataFrame":
        """`tidy` as a data frame, a column for each name; NaN where a row has none.

        Raises:
          RunError: without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise RunError("tables of a sweep need pandas: pip install 'flaxnmt[plots]'") from None
        return pandas.DataFrame(self.tidy())

    def keys(self) -> set[str]:
        """Keys of the finished trials."""
        return {row["key"] for row in self.rows()}

    def add(self, row: Row) -> None:
        """Appends a row, on the disk when this returns; others may do so at the same time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.path.parent):
            lines = [json.dumps(each, ensure_ascii=False) for each in [*self.rows(), row]]
            temporary = self.path.with_name(f"{self.path.name}.tmp{os.getpid()}")
            with temporary.open("w", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)


SUFFIX = ".jsonl"


def find_ledger(path: str | os.PathLike) -> Path:
    """The ledger of this path: a file, the only one in a directory, or the one beside it that has its name.

    Raises:
      RunError: if there is none, or if there are several.
    """
    path = Path(path)
    beside = path.with_name(f"{path.name}{SUFFIX}") if path.name else path
    for file in (path, beside):
        if file.is_file():
            return file
    found = sorted(file for file in path.glob(f"*{SUFFIX}") if file.is_file())
    if len(found) > 1:
        raise RunError(
            f"{path}: {len(found)} ledgers of sweeps there, name one: {', '.join(file.name for file in found)}"
        )
    if not found:
        raise RunError(f"{path}: no ledger of a sweep there; python -m experiments.sweep writes one")
    # A row that is added goes into the ledger, not into the place of a link to it.
    return found[0].resolve()


def link_ledger(ledger: Ledger, directory: Path) -> None:
    """Lets `find_ledger` find a ledger by the directory of the runs, where links can be made."""
    link, target = directory / ledger.path.name, ledger.path.resolve()
    with contextlib.suppress(OSError):
        if link.is_symlink() and link.resolve() != target:
            link.unlink()
        link.symlink_to(target)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Waits until no other process is in here with this directory."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def tidy(row: Row) -> list[Row]:
    """One row without nesting for each entry of its `rows`, whose fields go before its own; or the row itself."""
    common = {name: value for name, value in row.items() if name != ROWS}
    return [_flat(common | one) for one in row.get(ROWS, [{}])]


def _flat(tree: Row, prefix: str = "") -> Row:
    flat: Row = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
