"""The report of a run: `report.md` and `curves.png`, from what the run directory holds.

    python -m experiments.report RUN

Works at any time: on a finished run, on one that is still training, and on one with a single evaluation.
"""

import json
import logging
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.errors import RunError
from flaxnmt.training.metrics import Row, number, read_metrics
from flaxnmt.training.phases import goodput

log = logging.getLogger(__name__)

REPORT, CURVES = "report.md", "curves.png"
COUNTS = {
    "compilations": "compilations",
    "compilations_after_warmup": "compilations after warm-up",
    "skipped_lines": "skipped lines (too long, or empty on one side)",
    "bad_steps": "non-finite steps (skipped)",
}
WIDEST = 60
"""Characters of the widest cell that a column makes room for."""

LOWER_IS_BETTER = ("loss", "perplexity", "ter")
NO_SCORES = ("step", "time", "minutes", "lines", "seconds", "budget", *COUNTS)


def write_report(run_dir: str | Path) -> Path:
    """Write `report.md`, and `curves.png` if there is anything to draw; returns the path of the report.

    Raises RunError if the directory holds no run.
    """
    run_dir = Path(run_dir)
    config, run, rows = (
        read_json(run_dir / "config.json"),
        read_json(run_dir / "run.json"),
        read_metrics(run_dir),
    )
    if not (config or run or rows):
        raise RunError(f"{run_dir}: no config.json, run.json or metrics.jsonl; give the directory of a run")
    drawn = draw_curves(rows, metric_of(config), run_dir / CURVES)
    path = run_dir / REPORT
    path.write_text(report_text(run_dir.resolve().name, config, run, rows, drawn), encoding="utf-8")
    return path


def read_json(path: Path) -> dict:
    """The object in a JSON file; {} if there is none. Raises RunError if it is half written."""
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(
            f"{path}: not a whole JSON file ({error}); bring it back or start the run again"
        ) from None


def report_text(name: str, config: dict, run: dict, rows: list[Row], drawn: bool) -> str:
    """The report in Markdown."""
    sections = [
        [f"# Run {name}", "", state_of(rows)],
        section("Scores", table(("set", "step", "score", "value", "signature"), score_cells(rows, config))),
        ["![Curves of loss, score, learning rate and speed](curves.png)"] if drawn else [],
        section("Training", table(("what", "value"), training_cells(config, run, rows))),
        section("Run", table(("what", "value"), flattened(run))),
        section("Configuration", table(("field", "value"), flattened(config))),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def section(title: str, lines: list[str]) -> list[str]:
    """A heading with its lines; nothing without lines."""
    return [f"## {title}", "", *lines] if lines else []


def table(head: tuple[str, ...], cells: list[tuple]) -> list[str]:
    """A Markdown table whose columns are aligned, where cells of over `WIDEST` stick out; nothing without cells."""
    if not cells:
        return []
    rows = [[show(cell).replace("|", "\\|") for cell in row] for row in (head, *cells)]
    widths = [
        max(3, *(len(cell) for cell in column if len(cell) <= WIDEST)) for column in zip(*rows, strict=True)
    ]
    rows.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows)
    return [f"| {line} |" for line in lines]


def show(value: object) -> str:
    """A value as a cell: four significant digits, thousands apart, no line breaks."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return " ".join(str(value).split())


def flattened(tree: dict, prefix: str = "") -> list[tuple[str, object]]:
    """(section.field, value) of a nested dictionary; lists joined by blanks."""
    cells: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            cells += flattened(value, f"{prefix}{key}.")
        else:
            # A number of a configuration is shown as it was given: 1e-09, not rounded.
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            cells.append((prefix + key, repr(text) if isinstance(text, float) else text))
    return cells


def state_of(rows: list[Row]) -> str:
    """One sentence on how far the run came."""
    steps = [row["step"] for row in rows]
    ends = [row for row in rows if row.get("event") in ("finished", "preempted", "started")]
    how = {"finished": "Finished", "preempted": "Preempted, to be continued,"}
    known = how.get(ends[-1]["event"], "Not finished; the record ends") if ends else "The record ends"
    return f"{known} at step {max(steps):,}." if steps else "No step is recorded yet."


def metric_of(config: dict) -> str:
    """The score that "best" means."""
    return config.get("training", {}).get("metric", "loss")


def best_row(rows: list[Row], metric: str) -> Row | None:
    """The development row with the best score, the earliest of equals."""
    scored = [row for row in rows if row["kind"] == "dev" and number(row, metric) is not None]
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return min(scored, key=lambda row: (sign * number(row, metric), row["step"]), default=None)


def score_cells(rows: list[Row], config: dict) -> list[tuple]:
    """Scores of the best and last development evaluation and of every test set, with signatures."""
    development = [row for row in rows if row["kind"] == "dev"]
    best = best_row(rows, metric_of(config))
    chosen = [("dev (best)", best)] if best else []
    chosen += [("dev (last)", row) for row in development[-1:] if row is not best]
    chosen += [(str(row.get("set", "test")), row) for row in rows if row["kind"] in ("average", "test")]
    return [
        (name, row["step"], score, number(row, score), signature(row, score))
        for name, row in with_budgets(chosen)
        for score in row
        if number(row, score) is not None and score not in NO_SCORES
    ]


def with_budgets(chosen: list[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """Named rows, each followed by those of the budgets that it was measured at."""
    for name, row in chosen:
        yield name, row
        for at in row.get("budgets", ()):
            yield f"{name}, budget {at['budget']:g}", {"step": row["step"], **at}


def signature(row: Row, score: str) -> str | None:
    """How a score was computed, where the row says so."""
    return row[score].get("signature") if isinstance(row[score], dict) else None


def training_cells(config: dict, run: dict, rows: list[Row]) -> list[tuple]:
    """What training took: steps, time, speed, counts."""
    train = [row for row in rows if row["kind"] == "train"]
    best = best_row(rows, metric_of(config))
    cells = [
        ("updates", max((row["step"] for row in rows), default=None)),
        (f"best step by {metric_of(config)}", best and best["step"]),
        ("minutes of training", latest("minutes", rows, run)),
        ("seconds per update (median)", median("step_seconds", train)),
        ("target tokens per second (median)", median("target_tokens_per_second", train)),
        ("padding, share of positions (median)", median("padding", train)),
        ("share of the measured matrix-product peak (median)", median("mfu", train)),
        *time_cells(latest("phases", rows, run)),
        *((label, latest(key, rows, run)) for key, label in COUNTS.items()),
    ]
    return [(label, value) for label, value in cells if value is not None]


def time_cells(phases: dict[str, float] | None) -> list[tuple]:
    """Where the wall time went; nothing where it was not measured."""
    if not phases:
        return []
    seconds = ", ".join(f"{phase} {show(value)}" for phase, value in phases.items())
    return [("goodput (share of the wall time in updates)", goodput(phases)), ("seconds by phase", seconds)]


def median(key: str, rows: list[Row]) -> float | None:
    """Median of a value over the rows that have it."""
    values = [value for row in rows if (value := number(row, key)) is not None]
    return statistics.median(values) if values else None


def latest(key: str, rows: list[Row], run: dict) -> object:
    """A value of the last row that has it, else of the run's description."""
    return next((row[key] for row in reversed(rows) if key in row), run.get(key))


def draw_curves(rows: list[Row], metric: str, path: Path) -> bool:
    """Draw loss, development score, learning rate and speed; False if there is nothing to draw (with)."""
    names = (name for name in dict.fromkeys((metric, "bleu", "chrf")) if name != "loss")
    # Of a model of texts that is judged by its loss.
    scores = [name for name in names if points(rows, "dev", name)[0]] or ["perplexity"]
    panels = [
        ("Loss per target token (nats)", [("train", "loss"), ("dev", "loss")]),
        ("Development score", [("dev", key) for key in scores]),
        ("Learning rate", [("train", "learning_rate")]),
        ("Target tokens per second", [("train", "target_tokens_per_second")]),
    ]
    curves = {
        title: [(kind, key, *points(rows, kind, key)) for kind, key in lines] for title, lines in panels
    }
    if not any(steps for lines in curves.values() for _, _, steps, _ in lines):
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("no curves without matplotlib: pip install 'flaxnmt[plots]', then make the report again")
        return False

    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(2, 2).flat, curves.items()):
        for kind, key, steps, values in lines:
            if steps:
                axes.plot(
                    steps,
                    values,
                    label=f"{kind} {key}".replace("_", " "),
                    marker="o" if len(steps) < 30 else None,
                    ms=3,
                )
        axes.set(title=title, xlabel="updates")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
        else:
            axes.text(
                0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="gray"
            )
    # From zero, as a narrow range would show the noise of the speed as if it were a trend.
    figure.axes[3].set_ylim(0, 1.1 * figure.axes[3].dataLim.ymax if figure.axes[3].lines else None)
    FigureCanvasAgg(figure).print_png(path)
    return True


def points(rows: list[Row], kind: str, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one curve; values that are not finite leave a gap."""
    chosen = [row for row in rows if row["kind"] == kind and number(row, key) is not None]
    return [row["step"] for row in chosen], [number(row, key) for row in chosen]


@dataclass(frozen=True)
class Arguments:
    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    debug: bool = False
    """Show tracebacks."""


def main(argv: list[str] | None = None) -> int:
    """Writes the report of the run directory that a command line names; its exit code."""
    argv = sys.argv[1:] if argv is None else argv

    def run() -> int:
        prog = "python -m experiments.report"
        arguments = parsed(lambda: tyro.cli(Arguments, args=argv, prog=prog, description=__doc__), argv)
        quiet()
        print(write_report(arguments.run))
        return 0

    return guarded(run, debug="--debug" in argv)


if __name__ == "__main__":
    sys.exit(main())
