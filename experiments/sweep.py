"""Trains and measures the trials of a sweep, one after the other or several at once; what is finished is skipped.

    python -m experiments.sweep documents --runs DIR [--jobs 2] [--only PATTERN ...] [--seeds 1 2 3] [--data DIR]

The same command again continues: a trial that was interrupted goes on from its checkpoint, and those with a row in the
ledger are not run again, unless others start from them and their run is gone. A command that runs beside another one,
on the same directories, takes trials that the other has not. `python -m experiments.tables NAME` shows what was found.
Exit codes: 0 all finished, 2 a mistake to correct or a trial that failed, 42 stopped because it was asked to (SIGTERM or
Ctrl-C).
"""

import contextlib
import difflib
import fnmatch
import gzip
import hashlib
import importlib
import logging
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments import sweeps
from experiments.data import DATA, with_data
from experiments.jobs import apart, claim, run_jobs
from experiments.measures import BASELINE, TRANSLATIONS
from experiments.tables import RESULTS
from experiments.trial import Sweep, Trial
from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.config_io import nearest
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.ledger import Ledger, link_ledger
from flaxnmt.training.preemption import PREEMPTED, leaving_at_once

log = logging.getLogger("experiments.sweep")

COMPILATION_CACHE = "JAX_COMPILATION_CACHE_DIR"
"""Where trials find what others have compiled: most of evaluation and decoding."""

LISTED = 20
"""Names that an error lists."""

WAIT = 5.0
"""Seconds until another look at what other commands have finished."""


@dataclass(frozen=True)
class Arguments:
    runs: Path
    """Where run directories go; they may be removed when the sweep is finished."""
    only: tuple[str, ...] = ("*",)
    """Trials whose name matches one of these patterns, such as 'conditional*'."""
    seeds: tuple[int, ...] | None = None
    """Trials of these seeds alone."""
    jobs: int = 1
    """Trials at once, each on its share of the cores, with --log-files. Small models leave most of several cores idle.
    An accelerator belongs to one trial."""
    log_files: bool = False
    """Write what each training says into NAME.log beside its run."""
    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Where the ledger is kept."""
    data: str | None = None
    """Directory of the corpora, or its address on a bucket, for sweeps on real ones; $FLAXNMT_DATA if not given."""
    keep: bool = False
    """Keep run directories of trials that others do not start from."""
    dry_run: bool = False
    """Say which trials are finished and which are not, and stop."""
    debug: bool = False
    """Show tracebacks."""


def names() -> list[str]:
    """All sweeps."""
    return sorted(module.name for module in pkgutil.iter_modules(sweeps.__path__))


def load(name: str) -> Sweep:
    """The sweep of this name.

    Raises:
      ConfigError: if there is none, with the nearest name.
    """
    if name not in names():
        raise ConfigError(f"no sweep {name!r}{nearest(name, names())}; there are {', '.join(names())}")
    return importlib.import_module(f"experiments.sweeps.{name}").sweep


def run(argv: list[str]) -> int:
    """Runs what is left of a sweep; its exit code."""
    name, arguments = parse(argv)
    if arguments.data is not None:
        os.environ[DATA] = arguments.data.rstrip("/")
    again = ("-m", "experiments.sweep", *argv, "--jobs", "1", "--log-files")
    return complete(load(name), Ledger(arguments.results / f"{name}.jsonl"), arguments, again)


def complete(sweep: Sweep, ledger: Ledger, arguments: Arguments, again: Sequence[str]) -> int:
    """Trains and measures what the ledger does not have yet; an exit code.

    Args:
      again: arguments of Python for the same with one job, of which several share the trials.

    Raises:
      ConfigError: for no jobs, and as `check`.
      RunError: as `check` and `finish`.
    """
    if arguments.jobs < 1:
        raise ConfigError(f"--jobs {arguments.jobs}: give 1 or more")
    quiet()
    left = _left(sweep, ledger, arguments)
    if arguments.dry_run:
        return 0
    check(left, sweep, ledger)
    os.environ.setdefault(COMPILATION_CACHE, str(arguments.runs.resolve() / "programs"))
    if left and arguments.jobs > 1:
        return run_jobs(again, min(arguments.jobs, len(left)))
    while left:
        for trial in _ready(left, arguments.runs):
            with claim(arguments.runs / f"{trial.directory}.lock") as mine:
                # Another command may have finished it meanwhile.
                if not mine or trial not in _left(sweep, ledger, arguments, say=False):
                    continue
                log.info("%s: %d left with it", trial.directory, len(left))
                code = finish(trial, sweep, ledger, arguments)
                if code:
                    return code
                break
        else:
            # What is left is held by another command, or starts from what is.
            time.sleep(WAIT)
        left = _left(sweep, ledger, arguments, say=False)
    return 0


def _ready(left: list[Trial], runs: Path) -> list[Trial]:
    """Trials that wait for no other, and behind them those that can be trained before they are compared with one."""
    missing = {trial.directory for trial in left}
    able = [trial for trial in left if trial.start not in missing]
    whole = [trial for trial in able if trial.baseline not in missing]
    return whole + [trial for trial in able if trial not in whole and not has_ended(runs / trial.directory)]


def finish(trial: Trial, sweep: Sweep, ledger: Ledger, arguments: Arguments) -> int:
    """Trains and measures a trial and writes its row; its exit code, where it was asked to stop.

    A trial with a row is only trained, for those that start from it, as is one whose baseline has no row yet.

    Raises:
      RunError: if its training fails.
    """
    began = time.monotonic()
    directory, kept = arguments.runs / trial.directory, _kept(ledger)
    code = train(trial, arguments.runs, arguments.log_files)
    if code == PREEMPTED:
        log.info("asked to stop: the same command continues with %s", trial.directory)
        return PREEMPTED
    if code:
        where = f"in {_log(directory)}" if arguments.log_files else "above"
        raise RunError(f"{trial.directory}: training ended with exit code {code}; its log is {where}")
    if trial.key in ledger.keys():
        log.info("%s: trained again, since others start from it", trial.directory)
        return 0
    if trial.baseline is not None:
        if trial.baseline not in _measured(sweep, ledger):
            log.info("%s: trained, and measured when %s is", trial.directory, trial.baseline)
            return 0
        (directory / BASELINE).write_bytes(gzip.decompress(translations(kept, trial.baseline).read_bytes()))
    row = {"key": trial.key, "name": trial.name, "seed": trial.seed, **dict(trial.settings)}
    # Apart, since the next training needs the accelerator for itself.
    row |= describe(directory, trial) | apart(sweep.measure, directory, trial)
    # Those too that follow from this very row.
    trials = sweep.all([*ledger.rows(), row])
    if trial.directory in {other.baseline for other in trials}:
        kept.mkdir(parents=True, exist_ok=True)
        # Without the time, so that the same translations are the same file.
        text = gzip.compress((directory / TRANSLATIONS).read_bytes(), mtime=0)
        translations(kept, trial.directory).write_bytes(text)
    ledger.add(row)
    link_ledger(ledger, arguments.runs)
    log.info("%s: row written after %.1f minutes", trial.directory, (time.monotonic() - began) / 60)
    if not arguments.keep and trial.directory not in {other.start for other in trials}:
        shutil.rmtree(directory)
    return 0


def _kept(ledger: Ledger) -> Path:
    """Where translations that others are compared with are kept."""
    return ledger.path.with_suffix("")


def _measured(sweep: Sweep, ledger: Ledger) -> set[str]:
    """Directories of the trials with a row."""
    finished = ledger.keys()
    return {trial.directory for trial in sweep.all(ledger.rows()) if trial.key in finished}


def _log(directory: Path) -> Path:
    return directory.with_suffix(".log")


def _left(sweep: Sweep, ledger: Ledger, arguments: Arguments, say: bool = True) -> list[Trial]:
    """Trials that were asked for and have no row, and those from which they start, where their run is not there."""
    chosen = matching(ledger.path.stem, sweep.all(ledger.rows()), arguments.only, arguments.seeds)
    finished = ledger.keys()
    left = [trial for trial in chosen if trial.key not in finished]
    if say:
        done = len(chosen) - len(left)
        log.info("%s: %d trials, %d finished, rows in %s", ledger.path.stem, len(chosen), done, ledger.path)
    if arguments.dry_run:
        for trial in chosen:
            log.info("%s %s", "todo    " if trial in left else "finished", trial.directory)
    return with_starts(left, finished, arguments.runs)


def matching(
    sweep: str, trials: Sequence[Trial], only: Sequence[str], seeds: Sequence[int] | None
) -> list[Trial]:
    """Those of the trials of a sweep whose name matches one of these patterns, of these seeds, or of all.

    Raises:
      ConfigError: if there are none, with the names and the seeds that there are.
    """
    named = [trial for trial in trials if any(fnmatch.fnmatch(trial.name, pattern) for pattern in only)]
    if not named:
        known = listed(list(dict.fromkeys(trial.name for trial in trials)), only)
        wanted = " or ".join(map(repr, only))
        raise ConfigError(f"no trial of {sweep} matches {wanted}; there are {known}")
    found = [trial for trial in named if seeds is None or trial.seed in seeds]
    if not found:
        known = ", ".join(map(str, sorted({trial.seed for trial in named})))
        wanted = " or ".join(map(str, seeds or ()))
        raise ConfigError(f"these trials of {sweep} have no seed {wanted}; there are {known}")
    return found


def listed(names: Sequence[str], wanted: Sequence[str]) -> str:
    """These names, or how many they are and those nearest to what was wanted, if they would fill the screen."""
    if len(names) <= LISTED:
        return ", ".join(names)
    close = [near for one in wanted for near in difflib.get_close_matches(one, names, n=3, cutoff=0.5)]
    near = f", the nearest are {', '.join(dict.fromkeys(close))}" if close else ""
    return f"{len(names)}{near}; --dry-run without --only lists all"


def with_starts(trials: list[Trial], finished: set[str], runs: Path) -> list[Trial]:
    """Before each trial the one from which it starts, unless that has its row and its run: a row alone is no start.

    finished: keys of the trials with a row.
    """
    found: dict[str, Trial] = {}

    def add(trial: Trial) -> None:
        start = trial.origin
        if start is not None and not (start.key in finished and has_ended(runs / start.directory)):
            add(start)
        found.setdefault(trial.key, trial)

    for trial in trials:
        add(trial)
    return list(found.values())


def has_ended(directory: Path) -> bool:
    """Whether the training of this run directory came to its end."""
    from flaxnmt.training.metrics import read_metrics

    return directory.is_dir() and any(row.get("event") == "finished" for row in read_metrics(directory))


def translations(kept: Path, directory: str) -> Path:
    """Where translations of a run that others are compared with are kept."""
    return kept / f"{directory}.json.gz"


def check(left: list[Trial], sweep: Sweep, ledger: Ledger) -> None:
    """Refuses what would fail only after hours.

    Raises:
      ConfigError: for corpora that are not there.
      RunError: for translations to compare with that are gone, are those of a trial that has changed, or will not be there.
    """
    kept, measured = _kept(ledger), _measured(sweep, ledger)
    known = {directory for directory in measured if translations(kept, directory).exists()}
    for trial in left:
        with_data(trial.options)
        if trial.baseline is not None and trial.baseline not in known:
            if trial.baseline in measured:
                raise RunError(
                    f"{trial.directory} needs the translations of {trial.baseline}, which are not in {kept}: take the row "
                    f"of {trial.baseline} out of {ledger.path}, and it is run again"
                )
            raise RunError(
                f"{trial.directory} needs {trial.baseline}, which has no row in {ledger.path} and is not run before it: "
                "choose it with --only and --seeds, too"
            )
        known.add(trial.directory)


def describe(directory: Path, trial: Trial) -> dict:
    """What a row says of its run, whatever is measured."""
    from flaxnmt import open_run
    from flaxnmt.run_directory import CONFIG

    opened = open_run(directory)
    record, metrics = opened.record, opened.metrics
    finished = next(row for row in reversed(metrics) if row.get("event") == "finished")
    kept = ("parameters", "training_corpus", "training_pairs", "devices", "host", "versions")
    return {
        "command": " ".join(["python -m experiments.train", *trial.command(Path("RUNS"))]),
        "steps": finished["step"],
        "epochs": round(
            finished["step"] * opened.config.training.accumulate / record["batches_per_epoch"], 2
        ),
        "minutes": round(finished["minutes"], 2),
        "config_hash": hashlib.sha256((opened.directory / CONFIG).read_bytes()).hexdigest()[:16],
        **{name: record[name] for name in kept},
    }


def train(trial: Trial, runs: Path, log_file: bool = False) -> int:
    """Trains in a process of its own, whose output may go to a file beside the run; its exit code.

    A signal that asks to stop is passed on; the answer is then PREEMPTED, even where it came too early to be heard.
    """
    process, asked = None, False

    def stop(*_):
        nonlocal asked
        asked = True
        if process is not None:
            process.send_signal(signal.SIGTERM)

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    command = [sys.executable, "-m", "experiments.train", *with_data(trial.command(runs))]
    try:
        with _log(runs / trial.directory).open("a") if log_file else contextlib.nullcontext() as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        if asked:
            process.send_signal(signal.SIGTERM)
        code = process.wait()
        return PREEMPTED if asked else code
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    with leaving_at_once():
        return guarded(lambda: run(argv), debug="--debug" in argv)


def parse(argv: list[str]) -> tuple[str, Arguments]:
    """Name of the sweep and arguments."""
    if not argv or argv[0].startswith("-"):
        print(f"{__doc__}\nSweeps: {', '.join(names())}")
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    return argv[0], parsed(
        lambda: tyro.cli(
            Arguments,
            args=argv[1:],
            prog=f"python -m experiments.sweep {argv[0]}",
            description=__doc__,
            config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff),
        ),
        argv,
    )


if __name__ == "__main__":
    sys.exit(main())
