"""The ledger of a sweep: one row of JSON for each finished trial, a small file that is kept with the code."""

import json
import os
from pathlib import Path
from typing import Any

from flaxnmt.errors import RunError


class Ledger:
    """Rows of finished trials, by the key of the trial; a row is whole or not there.

    What is finished is known from this file alone, since run directories may be gone.
    """

    def __init__(self, path: Path):
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
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

    def keys(self) -> set[str]:
        """Keys of the finished trials."""
        return {row["key"] for row in self.rows()}

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row, on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(each, ensure_ascii=False) for each in [*self.rows(), row]]
        temporary = self.path.with_name(f"{self.path.name}.tmp{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
