"""Launches trainings on TPU slices: queued resources of Cloud TPU or, with --cluster, GKE through xpk.

    python -m tpu.launch create|run|watch CONFIG --slice v5e-16 --bucket gs://BUCKET --image IMAGE [-- FLAGS OF THE TRAINING]
    python -m tpu.launch status|logs|delete CONFIG [--name NAME]
    python -m tpu.launch sweep NAME --slice v5e-16 --bucket gs://BUCKET --image IMAGE

--dry-run prints what would run and runs nothing. Exit codes: 0 done, for watch: finished; 1 the training failed; 2 a
mistake to correct; 75 nobody could be asked for an hour. tpu/README.md leads from a cloud project to a running pod.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import DisallowNone

from flaxnmt.commands import guarded, parsed
from flaxnmt.errors import ConfigError
from tpu import names
from tpu.job import check_training
from tpu.options import Machines, Text, Where


@dataclass(frozen=True, kw_only=True)
class Create(Machines):
    """Asks for the machines, which train as soon as they are there."""

    manifest: DisallowNone[Path | None] = None
    """Write the JobSet to this file, for kubectl, in place of calling xpk; GKE only."""

    def __call__(self, words: list[str]) -> int:
        if self.manifest is not None and self.cluster is None:
            raise ConfigError("--manifest is of GKE: give --cluster")
        job = self.training(words)
        self.engine_for(self.manifest).create(job)
        if not self.dry_run and self.manifest is None:
            print(f"{job.name}: asked for {job.slices} x {job.slice.name}; the run directory is {job.run}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Run(Machines):
    """Starts the training again on machines that are there, as after a mistake was corrected."""

    def __call__(self, words: list[str]) -> int:
        self.engine_for().run(self.training(words))
        return 0


@dataclass(frozen=True, kw_only=True)
class Watch(Machines):
    """Looks after a job until its training has ended; with the same options and flags as create."""

    delay: float = 30.0
    """Seconds between two looks."""
    keep: bool = False
    """Keep the machines when the training has finished; queued resources only."""

    def __call__(self, words: list[str]) -> int:
        if not 0 < self.delay < math.inf:
            raise ConfigError(f"--delay {self.delay:g}: seconds, more than 0")
        self.check_queued("--keep", self.keep)
        return self.engine.watch(self.training(words), self.delay, self.restarts, self.keep)


@dataclass(frozen=True, kw_only=True)
class Status(Where):
    """Says how machines and training stand."""

    bucket: Text = None
    """As given to create; then it is said how the training stands. Queued resources only."""

    def __call__(self) -> int:
        self.check_config()
        self.check_queued("--bucket", self.bucket)
        bucket = None if self.bucket is None else names.check_bucket(self.bucket)
        row = self.engine.status(self.job_name, self.place, bucket)
        width = max(map(len, row), default=0)
        for title, value in row.items():
            if value:
                print(f"{title:<{width}}  {names.scrubbed(value)}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Logs(Where):
    """Streams what the training says on one machine."""

    node: int = 0
    """Which slice, from 0."""
    worker: int = 0
    """Which machine of the slice, from 0."""
    lines: int = 100
    """How many of the last lines first."""
    bucket: Text = None
    """As given to create; then the log that was left in the bucket is printed, of machines that are gone. Queued
    resources only."""

    def __call__(self) -> int:
        self.check_config()
        self.check_queued("--bucket", self.bucket)
        if min(self.node, self.worker, self.lines) < 0:
            raise ConfigError("--node, --worker and --lines are counted from 0")
        bucket = None if self.bucket is None else names.check_bucket(self.bucket)
        return self.engine.logs(self.job_name, self.place, bucket, (self.node, self.worker), self.lines)


@dataclass(frozen=True, kw_only=True)
class Delete(Where):
    """Gives the machines back; run directory and logs stay in the bucket."""

    def __call__(self) -> int:
        self.check_config()
        self.engine.delete(self.job_name, self.place)
        if not self.dry_run:
            print(f"{self.job_name}: deleted")
        return 0


@dataclass(frozen=True, kw_only=True)
class Sweep(Machines):
    """Creates one job for each trial of a sweep that is not finished, and looks after those that are there."""

    config: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Sweep, of `experiments.sweeps`."""
    only: tuple[str, ...] = ("*",)
    """Trials whose name matches one of these patterns, such as 'conditional*'."""
    seeds: DisallowNone[tuple[int, ...] | None] = None
    """Trials of these seeds alone."""
    data: Text = None
    """Folder of the corpora, gs://BUCKET/FOLDER, for sweeps on real ones."""
    at_most: int = 4
    """Jobs that are started in one call."""
    retry: bool = False
    """Start trials again that failed, were killed or used up their restarts, also on machines that they have left on."""

    def __call__(self) -> int:
        # Trials are those of the trainer, which loads what training needs.
        from experiments import sweep
        from tpu import sweeping

        if self.name is not None:
            raise ConfigError("--name: jobs of a sweep are called like its trials: leave it out")
        if self.at_most < 0:
            raise ConfigError(f"--at-most {self.at_most}: at least 0")
        loaded = sweep.load(self.config)
        template = self.job(self.job_name, "")
        data = None if self.data is None else names.check_bucket(self.data, "--data")
        planned = sweeping.plan(self.config, loaded, template, data, self.only, self.seeds)
        for one in planned:
            check_training(one.job)
        seen = sweeping.look(self.config, planned, self.place, template.bucket, self.runner)
        left = sweeping.advance(planned, seen, self.engine_for(), self.at_most, self.retry)
        if not self.dry_run:
            print(f"{self.config}: {len(planned) - left} of {len(planned)} jobs finished")
        return 0


VERBS = {
    "create": Create,
    "run": Run,
    "watch": Watch,
    "status": Status,
    "logs": Logs,
    "delete": Delete,
    "sweep": Sweep,
}
TRAINING = (Create, Run, Watch)


def parse(argv: list[str]) -> tuple[Where, list[str]]:
    """The verb with its options, and the flags of the training, which stand after `--`.

    Raises:
      ConfigError: for a command line that cannot be read.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    ours, words = argv[:end], argv[end + 1 :]
    verb = parsed(
        lambda: tyro.extras.subcommand_cli_from_dict(
            VERBS,
            prog="python -m tpu.launch",
            description=__doc__,
            args=ours,
            config=(tyro.conf.FlagCreatePairsOff,),
        ),
        ours,
    )
    if words and not isinstance(verb, TRAINING):
        raise ConfigError(f"flags of the training ({words[0]} ...) are given to create, run and watch")
    return verb, words


def launch(argv: list[str]) -> int:
    """Runs one command line; its exit code."""
    verb, words = parse(argv)
    return verb(words) if isinstance(verb, TRAINING) else verb()


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    own = argv[: argv.index("--")] if "--" in argv else argv
    return guarded(lambda: launch(argv or ["--help"]), debug="--debug" in own)


if __name__ == "__main__":
    sys.exit(main())
