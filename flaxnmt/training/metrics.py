"""The record of a run: rows of numbers by step, one JSON object per line in `metrics.jsonl`.

A row has `step`, `time` (seconds since 1970) and `kind`: "train" (means by token over a logging interval), "dev" and
"test" (losses, and scores as `evaluation.scores` gives them), "average" (those of averaged checkpoints on the development
set), or "event" (something that happened: what is in `event`). A number that is not finite is null.
"""

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import jax

from flaxnmt.errors import RunError
from flaxnmt.typing import PyTree

FILE = "metrics.jsonl"
Row = dict[str, object]


def read_metrics(run_dir: str | os.PathLike) -> list[Row]:
    """The rows of a run, in the order of writing; a last line torn by a kill is left out.

    Returns an empty list where there is no record yet.

    Raises:
      RunError: for another line that is no row, with its number.
    """
    path = Path(run_dir) / FILE
    return whole_rows(path)[0] if path.exists() else []


def whole_rows(path: Path) -> tuple[list[Row], int]:
    """The rows of a record, and the number of bytes that they take; a torn last line is left out.

    Raises:
      RunError: for another line that is no row: to stop there would lose all that follow.
    """
    rows, size = [], 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not line.endswith(b"\n"):
            if number < len(lines):
                raise RunError(f"{path}:{number}: not a row of a record; take the line out")
            break
        rows.append(row)
        size += len(line)
    return rows, size


def number(row: Row, name: str) -> float | None:
    """A value of a row as a number: of a score with its signature the score; None if it is neither."""
    value = row.get(name)
    value = value.get("score") if isinstance(value, dict) else value
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def finite(values: PyTree) -> PyTree:
    """With None for what is no finite number: JSON has no name for it, and strict readers refuse Python's."""
    match values:
        case Mapping():
            return {name: finite(value) for name, value in values.items()}
        case list() | tuple():
            return [finite(value) for value in values]
        case float() if not math.isfinite(values):
            return None
    return values


class MetricsWriter:
    """Appends rows to the record of `run_dir`; other processes than the first write nothing.

    `resume_step` is the step that the run continues from (0 for the start, None to keep everything): rows of
    later steps are dropped, events excepted, and at this one those of `again`, so that nothing is there twice. With
    `tensorboard` the numbers also go to `run_dir/tensorboard`.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike,
        tensorboard: bool = False,
        resume_step: int | None = None,
        again: Collection[str] = ("average", "test"),
    ):
        self._later: deque[tuple[Row, PyTree, Callable]] = deque()
        self._file, self._board = None, None
        if jax.process_index() != 0:
            return
        path = Path(run_dir) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        repair(path, resume_step, again)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if tensorboard:
            from tensorboardX import SummaryWriter

            purge = None if resume_step is None else resume_step + 1
            self._board = SummaryWriter(str(path.parent / "tensorboard"), purge_step=purge)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> Row:
        """Write a row of host values now, after any that wait; returns it."""
        self.flush()
        return self._append({"step": step, "time": time.time(), "kind": kind, **values})

    def event(self, step: int, event: str, **values: object) -> Row:
        """Write that something happened."""
        return self.write(step, "event", {"event": event, **values})

    def write_later(
        self,
        step: int,
        values: Mapping[str, PyTree],
        kind: str = "train",
        derive: Callable[[dict], Mapping[str, object]] = dict,
    ) -> list[Row]:
        """Hand over scalars that may still be computing; their row is written when the next one comes.

        `derive` makes the row from the host numbers, for quotients of sums. The device is waited for only up
        to the row before, so a step is never held up and the host is at most one interval ahead.
        Returns the rows that were written now.
        """
        if self._file is None:
            return []
        for leaf in jax.tree.leaves(values):
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()
        written = self.flush()
        self._later.append(({"step": step, "time": time.time(), "kind": kind}, dict(values), derive))
        return written

    def flush(self) -> list[Row]:
        """Write the rows that wait; returns them."""
        written = []
        while self._later:
            head, values, derive = self._later.popleft()
            numbers = jax.tree.map(lambda x: x.item() if hasattr(x, "item") else x, jax.device_get(values))
            written.append(self._append({**head, **derive(numbers)}))
        return written

    def close(self) -> None:
        """Write what waits and close the record."""
        self.flush()
        for target in (self._file, self._board):
            if target is not None:
                target.close()
        self._file = self._board = None

    def _append(self, row: Row) -> Row:
        if self._file is not None:
            # One write per line: a kill tears the last line at most.
            self._file.write(json.dumps(finite(row), allow_nan=False) + "\n")
        if self._board is not None:
            for name in row.keys() - {"step", "time"}:
                value = number(row, name)
                if value is not None:
                    self._board.add_scalar(f"{row['kind']}/{name}", value, row["step"], row["time"])
        return row


def repair(path: Path, resume_step: int | None, again: Collection[str]) -> None:
    """Cut a torn end off a record, and drop the rows that are measured again from `resume_step` on."""
    if not path.exists():
        return
    rows, size = whole_rows(path)
    kept = rows if resume_step is None else [row for row in rows if not past(row, resume_step, again)]
    if len(kept) < len(rows):
        replacement = path.with_suffix(".tmp")
        replacement.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        replacement.replace(path)
    elif size < path.stat().st_size:
        os.truncate(path, size)


def past(row: Row, step: int, again: Collection[str]) -> bool:
    """Whether a run that continues from `step` measures a row again: of that step itself, the kinds in `again`."""
    return row["kind"] != "event" and (row["step"] > step or (row["step"] == step and row["kind"] in again))
