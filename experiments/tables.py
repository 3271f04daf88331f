"""Markdown tables of the ledger of a sweep: a row for each setting, mean and standard deviation over seeds.

python -m experiments.tables SWEEP [--results DIR]
"""

import logging
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro

from experiments.report import table as markdown
from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.data.discourse import MAX_DISTANCE, PHENOMENA
from flaxnmt.errors import RunError
from flaxnmt.ledger import Ledger, tidy

log = logging.getLogger("experiments.tables")

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A column that is shown with its sign, and with two decimals: what is small of it matters as well."""

    column: str | Callable[[Row], float | None]


@dataclass(frozen=True)
class Least:
    """A column of which the least of all trials is shown, such as a time, to which other work on the machine only adds."""

    column: str | Callable[[Row], float | None]


Value = str | Callable[[Row], float | None] | Difference | Least
"""A column of a tidy row by its name, or what is computed of the row."""

# Groups of distances, by name.
FAR = ("1-4", range(1, 5)), ("5-8", range(5, 9)), ("9-12", range(9, 13))


def distances(
    group: range, place: str = "by_distance", of: Callable = statistics.mean
) -> Callable[[Row], float]:
    """Contrastive accuracy, mean over distances, or the least with `min`."""
    return lambda row: of(row[f"contrastive.true.{place}.{d}"] for d in group)


CONTRASTIVE: dict[str, Value] = {
    **{name: f"contrastive.true.{name}" for name in PHENOMENA},
    **{f"distance {name}": distances(group) for name, group in FAR},
    **{f"all, {kind} context": f"contrastive.{kind}.all" for kind in ("true", "none", "random", "shuffled")},
}
ALL_DISTANCES = range(1, MAX_DISTANCE + 1)
BY_DISTANCE: dict[str, Value] = {
    **{
        f"{name}, {title}": distances(group, f"by_phenomenon_and_distance.{name}", of)
        for name in PHENOMENA
        for title, group, of in (
            *((title, group, statistics.mean) for title, group in FAR),
            (f"least of 1 to {MAX_DISTANCE}", ALL_DISTANCES, min),
        )
    },
    "all, least": distances(ALL_DISTANCES, of=min),
}
CONTROLS: dict[str, Value] = {
    f"{metric}, {kind}": f"scores.{kind}.{metric[0]}_bleu"
    for metric in ("s-BLEU", "d-BLEU")
    for kind in ("true", "none", "random", "shuffled")
}
TIME: dict[str, Value] = {
    "minutes of training": "minutes",
    "updates": "steps",
    "ms an update": lambda row: 1000 * row["speed.update_seconds"],
    "target tokens/s": "speed.target_tokens_per_second",
    "padding, %": lambda row: 100 * row["speed.padding"],
    "seconds of decoding": "speed.decoding_seconds",
}
AGAINST: dict[str, Value] = {
    "BLEU": Difference("against.bleu"),
    "p": "against.bleu_p",
    "chrF": Difference("against.chrf"),
    "p of it": "against.chrf_p",
}
"""Differences to the baseline of the sweep."""


class Shown(Protocol):
    """What is shown of a ledger.

    Attributes:
      title: its heading.
    """

    title: str

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Markdown of tidy rows; nothing where no row belongs here."""
        ...


@dataclass(frozen=True)
class Table:
    """A table of a ledger.

    Attributes:
      title: its heading.
      by: settings, names of tidy columns, whose values say which row of the table a trial belongs to. Unless the seed is
        one of them, a column says how many there are.
      columns: what is shown of it, by heading.
      where: trials that belong into the table, by values of settings; several allowed ones in a tuple.
      once: whether of a trial with several tidy rows one counts, since the columns are of its run.
    """

    title: str
    by: tuple[str, ...]
    columns: Mapping[str, Value]
    where: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Markdown; nothing where no row belongs here."""
        groups: dict[tuple, list[Row]] = {}
        if self.once:
            rows = list({row["key"]: row for row in rows}.values())
        for row in rows:
            if all(row.get(name) in _several(wanted) for name, wanted in self.where.items()):
                groups.setdefault(tuple(row.get(name) for name in self.by), []).append(row)
        counted = () if "seed" in self.by else ("seeds",)
        cells = [
            (
                *key,
                *(len({row["seed"] for row in group}) for _ in counted),
                *(cell(value, group) for value in self.columns.values()),
            )
            for key, group in groups.items()
        ]
        return markdown((*self.by, *counted, *self.columns), cells)


def cell(value: Value, rows: Sequence[Row]) -> str | None:
    """Mean and, of several rows, standard deviation of what they have; or the least of it."""
    found = [number for number in (_of(row, value) for row in rows) if number is not None]
    if not found:
        return None
    found = [min(found)] if isinstance(value, Least) else found
    mean = statistics.mean(found)
    sign, digits = "", 0 if abs(mean) >= 1000 else 3 if 0 < abs(mean) < 1 else 1
    if isinstance(value, Difference):
        sign, digits = "+", 2
    spread = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
    return f"{mean:{sign}.{digits}f}{spread}"


def _of(row: Row, value: Value) -> float | None:
    if isinstance(value, Difference | Least):
        value = value.column
    if isinstance(value, str):
        return row.get(value)
    try:
        return value(row)
    except KeyError:
        return None


def _several(wanted: Any) -> tuple:
    return wanted if isinstance(wanted, tuple) else (wanted,)


@dataclass(frozen=True)
class Arguments:
    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Where the ledger is kept."""
    debug: bool = False
    """Show tracebacks."""


def main(argv: list[str] | None = None) -> int:
    # Sweeps name their tables, so that they import this module.
    from experiments import sweep

    argv = sys.argv[1:] if argv is None else argv

    def run() -> int:
        if not argv or argv[0].startswith("-"):
            print(f"{__doc__}\nSweeps: {', '.join(sweep.names())}")
            return 0 if argv[:1] in (["-h"], ["--help"]) else 2
        prog = f"python -m experiments.tables {argv[0]}"
        arguments = parsed(lambda: tyro.cli(Arguments, args=argv[1:], prog=prog, description=__doc__), argv)
        quiet()
        loaded, ledger = sweep.load(argv[0]), Ledger(arguments.results / f"{argv[0]}.jsonl")
        rows = ledger.rows()
        keys = {trial.key for trial in loaded.all(rows)}
        current = [row for row in rows if row["key"] in keys]
        if len(current) < len(rows):
            log.warning("%d rows are left out: their trials have changed since", len(rows) - len(current))
        if not current:
            raise RunError(
                f"{ledger.path}: no finished trial; python -m experiments.sweep {argv[0]} makes some"
            )
        rows = [one for row in current for one in tidy(row)]
        for table in loaded.tables:
            if lines := table.lines(rows):
                print("\n".join([f"### {table.title}", "", *lines, ""]))
        return 0

    return guarded(run, debug="--debug" in argv)


if __name__ == "__main__":
    sys.exit(main())
