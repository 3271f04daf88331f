"""Trains a configuration with every combination of some options, and says which the development set prefers.

    python -m experiments.grid CONFIG --runs DIR --over OPTION=VALUE,VALUE [--over ...] [--seeds 1 2 3] [--jobs 2]
        -- --train FILE --dev FILE [--section.field value ...]

What stands behind `--` is given to every training, as to `python -m experiments.train`. Each has a directory of its own in
DIR; the same command again continues, and a wider grid leaves out what is finished. The grid of Devlin et al. 2019
(appendix A.3) is --over optimizer.learning-rate=5e-5,3e-5,2e-5 --over max-epochs=2,3,4, where the configuration has no
--max-steps, and --over data.batch-tokens= with 16 and 32 times the length of a row.
Exit codes are those of `experiments.sweep`.
"""

import itertools
import re
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments import sweep
from experiments.arguments import parse as parse_training
from experiments.data import with_data
from experiments.report import LOWER_IS_BETTER, best_row
from experiments.tables import Table
from experiments.trial import Sweep, Trial
from flaxnmt.commands import guarded, parsed
from flaxnmt.errors import ConfigError
from flaxnmt.ledger import Ledger, Row
from flaxnmt.training.metrics import number
from flaxnmt.training.preemption import leaving_at_once

OWN = {
    "--run": "each training has a directory in --runs",
    "--seed": "give --seeds in front of --",
    "--help": "see python -m experiments.train CONFIG --help",
}
"""Options that no training of a grid takes from what all have in common."""


@dataclass(frozen=True)
class Arguments:
    runs: Path
    """Where run directories go, and `grid.jsonl`, a row of each that is finished."""
    over: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="OPTION=V,V")] = ()
    """An option of the training and its values, such as optimizer.learning-rate=3e-4,1e-3; a value of several words has
    spaces between them. Given several times, all combinations are trained."""
    seeds: tuple[int, ...] = (1,)
    """Seeds of each combination, which are compared by their means."""
    jobs: int = 1
    """Trainings at once, each on its share of the cores, with --log-files."""
    log_files: bool = False
    """Write what each training says into NAME.log beside its run."""
    dry_run: bool = False
    """Say which trainings are finished and which are not, and stop."""
    debug: bool = False
    """Show tracebacks."""


def axes(over: tuple[str, ...]) -> dict[str, list[str]]:
    """Values by option.

    Raises:
      ConfigError: for none, one without values, or one that is given twice.
    """
    found: dict[str, list[str]] = {}
    for text in over:
        name, _, values = text.partition("=")
        name = name.removeprefix("--")
        if not name or not all(values.split(",")):
            raise ConfigError(f"--over {text}: give OPTION=VALUE,VALUE, such as max-epochs=2,3,4")
        if name in found:
            raise ConfigError(f"--over {text}: {name} has its values already; give all of them at once")
        found[name] = list(dict.fromkeys(values.split(",")))
    if not found:
        raise ConfigError("no --over: give an option and its values, such as --over max-epochs=2,3,4")
    return found


def trials(
    config: str, over: dict[str, list[str]], common: tuple[str, ...], seeds: tuple[int, ...]
) -> tuple[Trial, ...]:
    """A training for each combination and seed; the seeds of a combination stand together."""
    found = []
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values))
        name = "-".join(f"{option.rsplit('.')[-1]} {value}" for option, value in point.items())
        name = re.sub(r"[^\w.+-]+", "-", name)
        flags = [word for option, value in point.items() for word in (f"--{option}", *value.split())]
        found += [Trial(name, config, (*common, *flags), seed, tuple(point.items())) for seed in seeds]
    return tuple(found)


def measure(run: Path, trial: Trial) -> dict:
    """{"metric", "dev": the score of the exported parameters on the development set}."""
    from flaxnmt import open_run

    opened = open_run(run)
    metric = opened.config.training.metric
    averages = [row for row in opened.metrics if row["kind"] == "average"]
    return {"metric": metric, "dev": number((averages or [best_row(opened.metrics, metric)])[-1], metric)}


def preferred(rows: list[Row], options: list[str]) -> tuple[tuple[str, ...], float]:
    """The values with the best mean over seeds, the earliest of equals, and that mean."""
    scores = defaultdict(list)
    for row in rows:
        scores[tuple(row[option] for option in options)].append(row["dev"])
    means = {values: statistics.mean(found) for values, found in scores.items()}
    best = (min if rows[0]["metric"] in LOWER_IS_BETTER else max)(means, key=means.get)
    return best, means[best]


def planned(argv: list[str]) -> tuple[Arguments, tuple[Trial, ...]]:
    """The arguments, and the trainings that they ask for.

    Raises:
      ConfigError: as `axes`, and for options that a training does not have.
    """
    own, common = _apart(argv)
    config, arguments = parse(own)
    for option, hint in OWN.items():
        if option in common:
            raise ConfigError(f"{option} behind --: {hint}")
    grid = trials(config, axes(arguments.over), common, arguments.seeds)
    for trial in grid:
        # A misspelt option is one mistake, and not one of each training.
        parse_training(with_data(trial.command(arguments.runs)))
    return arguments, grid


def run(argv: list[str]) -> int:
    """Trains the grid and prints what was found; an exit code."""
    (arguments, grid), (own, common) = planned(argv), _apart(argv)
    options = [option for option, _ in grid[0].settings]
    columns = {"score": "dev", "minutes": "minutes"}
    made = Sweep(grid, measure, (Table("Grid", tuple(options), columns),))
    ledger = Ledger(arguments.runs / "grid.jsonl")
    code = sweep.complete(
        made,
        ledger,
        sweep.Arguments(
            arguments.runs,
            jobs=arguments.jobs,
            log_files=arguments.log_files,
            results=arguments.runs,
            keep=True,
            dry_run=arguments.dry_run,
        ),
        ("-m", "experiments.grid", *own, "--jobs", "1", "--log-files", "--", *common),
    )
    if code or arguments.dry_run:
        return code
    keys = {trial.key for trial in grid}
    rows = [row for row in ledger.rows() if row["key"] in keys]
    print("\n".join(made.tables[0].lines(rows)))
    values, score = preferred(rows, options)
    chosen = [trial for trial in grid if tuple(value for _, value in trial.settings) == values]
    flags = " ".join(f"--{option} {value}" for option, value in zip(options, values))
    where = " ".join(str(arguments.runs / trial.directory) for trial in chosen)
    print(f"\nThe development set prefers {flags}: {rows[0]['metric']} {score:.4g}; {where}")
    return 0


def _apart(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before `--`, and behind it."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], tuple(argv[at + 1 :])


def parse(argv: list[str]) -> tuple[str, Arguments]:
    """The configuration and the arguments."""
    if not argv or argv[0].startswith("-"):
        print(__doc__)
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    return argv[0], parsed(
        lambda: tyro.cli(
            Arguments,
            args=argv[1:],
            prog=f"python -m experiments.grid {argv[0]}",
            description=__doc__,
            config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff),
        ),
        argv,
    )


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    with leaving_at_once():
        return guarded(lambda: run(argv), debug="--debug" in argv)


if __name__ == "__main__":
    sys.exit(main())
