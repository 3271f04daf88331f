"""A sweep on TPU slices: one job for each of its trials, and each call does what is next for every one of them."""

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.data import PLACE
from experiments.sweep import RESULTS
from experiments.trial import Sweep, Trial
from flaxnmt.errors import ConfigError
from flaxnmt.ledger import Ledger
from tpu import gke, queued
from tpu.command import EXISTS, OTHER, CommandFailed, Runner
from tpu.engines import Gke, Queued
from tpu.job import Job, Place, state_of, training_command
from tpu.names import slug
from tpu.queued import Outcome, Progress, Resource
from tpu.watch import Watcher

RUNNING = Progress(Outcome.RUNNING)
FAILURES = (Outcome.MISTAKE, Outcome.DEFECT)


@dataclass(frozen=True)
class Planned:
    """A trial and its job.

    Attributes:
      trial: of the sweep.
      job: that trains it.
      after: name of the job that has to finish first.
    """

    trial: Trial
    job: Job
    after: str | None


def job_name(sweep: str, directory: str) -> str:
    """Of the trial with this directory."""
    return slug(f"{prefix(sweep)}{directory}")


def prefix(sweep: str) -> str:
    """With which the names of all jobs of a sweep begin."""
    return sweep.replace("_", "-")[:20].rstrip("-") + "-"


def plan(
    name: str,
    sweep: Sweep,
    template: Job,
    data: str | None,
    only: Sequence[str] = ("*",),
    seeds: Sequence[int] | None = None,
    ledger: Ledger | None = None,
) -> list[Planned]:
    """Jobs of the trials that have no row in the ledger, and of those from which they start, in the sweep's order.

    Args:
      name: of the sweep.
      sweep: its trials.
      template: the machines of every job; run directories go to runs/NAME of its bucket.
      data: where the corpora lie, for sweeps on real ones.
      only: patterns of names of trials.
      seeds: of trials; all if not given.
      ledger: of finished trials; that in experiments/results if not given.

    Raises:
      ConfigError: where no trial fits, or the place of the corpora is not known.
    """
    ledger = Ledger(RESULTS / f"{name}.jsonl") if ledger is None else ledger
    rows, finished = ledger.rows(), ledger.keys()
    trials = {trial.directory: trial for trial in sweep.all(rows)}
    chosen = [
        trial
        for trial in trials.values()
        if any(fnmatch.fnmatch(trial.name, pattern) for pattern in only)
        and (seeds is None or trial.seed in seeds)
    ]
    if not chosen:
        known = ", ".join(dict.fromkeys(trial.name for trial in trials.values()))
        raise ConfigError(f"no trial of {name} matches {' or '.join(map(repr, only))}; there are {known}")
    wanted: set[str] = set()
    for trial in chosen:
        one: Trial | None = trial if trial.key not in finished else None
        while one is not None and one.directory not in wanted:
            wanted.add(one.directory)
            one = trials.get(one.start or "")
    runs = f"{template.bucket}/runs/{name}"
    planned = []
    for trial in trials.values():
        if trial.directory in wanted:
            words = _words(trial, runs, data)
            run = f"{runs}/{trial.directory}"
            command = training_command(trial.config, run, words)
            job = dataclasses.replace(
                template, name=job_name(name, trial.directory), run=run, command=command
            )
            after = None if trial.start is None else job_name(name, trial.start)
            planned.append(Planned(trial, job, after))
    return planned


def _words(trial: Trial, runs: str, data: str | None) -> list[str]:
    words = ["--seed", str(trial.seed)]
    if trial.start is not None:
        words += ["--init-from", f"{runs}/{trial.start}"]
    for word in trial.options:
        if PLACE in word:
            if data is None:
                raise ConfigError(f"{word}: give --data gs://..., to say where the corpora are")
            word = word.replace(PLACE, data)
        words.append(word)
    return words


@dataclass(frozen=True)
class Seen:
    """What is known of all jobs of a sweep: resources, and how their processes stand, by name."""

    resources: dict[str, Resource]
    progress: dict[str, Progress]


def look(name: str, planned: Sequence[Planned], place: Place, bucket: str, runner: Runner) -> Seen:
    """Asks once for all jobs."""
    jobs = [one.job for one in planned]
    if place.cluster is not None:
        said = runner.run(gke.listing(place, prefix(name)))
        states = {job.name: gke.read_listing(said, job.name)[0] for job in jobs} if said else {}
        finished = {job: Progress(Outcome.FINISHED) for job, state in states.items() if state == gke.FINISHED}
        return Seen({job: Resource(state) for job, state in states.items()}, finished)
    resources = queued.read_resources(runner.run(queued.listing(place)))
    said = runner.run(queued.codes(state_of(bucket, f"{prefix(name)}*")), missing_ok=True)
    return Seen(resources, {job.name: queued.read_progress(said, job.name, job.workers) for job in jobs})


def advance(planned: Sequence[Planned], seen: Seen, engine: Queued | Gke, at_most: int, retry: bool) -> int:
    """Does what is next for every trial: starts it, asks for its machines again, gives them back; how many are left.

    Args:
      engine: what starts jobs.
      at_most: jobs that are started in one call.
      retry: start those again that failed before.
    """
    left = started = 0
    say, dry_run = engine.runner.say, engine.runner.dry_run
    for one in planned:
        job = one.job
        resource = seen.resources.get(job.name, Resource())
        progress = seen.progress.get(job.name, RUNNING)
        there = resource.state != queued.MISSING
        if progress.outcome is Outcome.FINISHED and not there:
            say(f"{job.name}: finished")
            continue
        if there:
            left += not _tend(job, resource, progress, engine, retry)
            continue
        left += 1
        waits = (
            one.after is not None and seen.progress.get(one.after, RUNNING).outcome is not Outcome.FINISHED
        )
        if waits and not dry_run:
            say(f"{job.name}: waits for {one.after}")
        elif progress.outcome in FAILURES and not retry:
            say(
                f"{job.name}: failed before with exit code {progress.code}; {job.state}/log/{progress.worker} has why, "
                "--retry starts it again"
            )
        elif started >= at_most:
            say(f"{job.name}: not started, since --at-most {at_most} were")
        else:
            started += 1
            if waits:
                say(f"# after {one.after} has finished:")
            _start(job, engine)
    return left


def _tend(job: Job, resource: Resource, progress: Progress, engine: Queued | Gke, retry: bool) -> bool:
    """Looks after a job whose machines, or their request, are there; whether it has finished."""
    on_gke = isinstance(engine, Gke)
    failed = resource.state == gke.FAILED if on_gke else progress.outcome in FAILURES
    try:
        if failed and retry and (on_gke or resource.state == gke.ACTIVE):
            engine.runner.say(f"{job.name}: failed before, and is started again")
            engine.run(job)
            return False
        if on_gke:
            engine.runner.say(f"{job.name}: {resource.state}")
            return resource.state == gke.FINISHED
        return Watcher(job, engine.runner, engine.restarts).react(resource, progress) == 0
    except CommandFailed as error:
        # Of one job, as where a machine cannot be reached; the next call tries it again.
        if error.kind != OTHER:
            raise
        engine.runner.say(f"{job.name}: {error}")
        return False


def _start(job: Job, engine: Queued | Gke) -> None:
    try:
        engine.create(job)
        if not engine.runner.dry_run:
            engine.runner.say(f"{job.name}: asked for")
    except CommandFailed as error:
        if error.kind != EXISTS:
            raise
        engine.runner.say(f"{job.name}: is there already")
