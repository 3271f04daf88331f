"""A sweep on TPU slices: one job for each of its trials, and each call does what is next for every one of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.data import PLACE
from experiments.report import REPORT
from experiments.sweep import matching
from experiments.tables import RESULTS
from experiments.trial import Sweep, Trial
from flaxnmt.errors import ConfigError
from flaxnmt.ledger import Ledger
from tpu import gke, queued, watch
from tpu.command import CAPACITY, EXISTS, OTHER, CommandFailed, Runner
from tpu.engines import Gke, Queued
from tpu.job import Job, Place, state_of, with_training
from tpu.names import slug
from tpu.queued import Action, Outcome, Progress, Resource
from tpu.restarts import Restarts, read_restarts

RUNNING = Progress(Outcome.RUNNING)
FAILURES = (Outcome.MISTAKE, Outcome.DEFECT, Outcome.LOST, Outcome.KILLED)
"""How a job may have ended that is not there any more, and is started again only where it is wanted."""


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
    chosen = matching(name, list(trials.values()), only, seeds)
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
            job = dataclasses.replace(template, name=job_name(name, trial.directory), run=run)
            job = with_training(job, trial.config, words)
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
    """What is known of all jobs of a sweep, by name.

    Attributes:
      resources: machines, or the request for them.
      progress: how their processes stand.
      restarts: of jobs that were started again, or asked for on a cluster.
      finished: jobs that have finished, whether anything else is left of them or not.
    """

    resources: dict[str, Resource]
    progress: dict[str, Progress]
    restarts: dict[str, Restarts]
    finished: frozenset[str]


def look(name: str, planned: Sequence[Planned], place: Place, bucket: str, runner: Runner) -> Seen:
    """Asks once for all jobs."""
    jobs = [one.job for one in planned]
    if place.cluster is None:
        resources = queued.read_resources(runner.run(queued.listing(place)))
    else:
        said = runner.run(gke.listing(place, prefix(name)))
        states = {job.name: gke.read_listing(said, job.name)[0] for job in jobs} if said else {}
        resources = {job: Resource(state) for job, state in states.items() if state != gke.MISSING}
    said = runner.run(queued.codes(state_of(bucket, f"{prefix(name)}*")), missing_ok=True)
    progress = {job.name: queued.read_progress(said, job.name, job.workers) for job in jobs}
    reports = runner.run(written(f"{bucket}/runs/{name}/*"), missing_ok=True).split()
    finished = frozenset(
        job.name
        for job in jobs
        if _finished(resources.get(job.name), progress[job.name], f"{job.run}/{REPORT}" in reports)
    )
    restarts = read_restarts(said)
    # Those that were deleted to be asked for again are not to be started anew.
    again = {name for name, one in restarts.items() if one.begun == Action.RECREATE.value} - finished
    return Seen(dict.fromkeys(again, Resource()) | resources, progress, restarts, finished)


def written(runs: str) -> list[str]:
    """Lists the reports of runs, which a training writes when it has finished; `runs` may hold a pattern."""
    return ["gcloud", "storage", "ls", f"{runs}/{REPORT}"]


def _finished(resource: Resource | None, progress: Progress, report: bool) -> bool:
    """Where nothing of the machines is left the run directory knows; before, the training may still be leaving."""
    if resource is None:
        return report or progress.outcome is Outcome.FINISHED
    return resource.state == gke.FINISHED or progress.outcome is Outcome.FINISHED


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
        if job.name in seen.resources:
            left += not _tend(job, seen, engine, retry)
            continue
        if job.name in seen.finished:
            say(f"{job.name}: finished")
            continue
        left += 1
        waits = one.after is not None and one.after not in seen.finished
        why = _failed(job, seen, engine)
        if waits and not dry_run:
            say(f"{job.name}: waits for {one.after}")
        elif why and not retry:
            say(f"{job.name}: {why}; --retry starts it again")
        elif started >= at_most:
            say(f"{job.name}: not started, since --at-most {at_most} were")
        else:
            started += 1
            if waits:
                say(f"# after {one.after} has finished:")
            _start(job, engine)
    return left


def _failed(job: Job, seen: Seen, engine: Queued | Gke) -> str | None:
    """Why a job of which no machines are left is not to be started again by itself."""
    progress = seen.progress.get(job.name, RUNNING)
    if progress.outcome in FAILURES:
        return f"failed before with exit code {progress.code}; {job.state}/log/{progress.worker} has why"
    if isinstance(engine, Gke) and job.name in seen.restarts:
        return "was asked for before, has not finished and is gone: deleted, or failed so long ago that xpk forgot it"
    return None


def _tend(job: Job, seen: Seen, engine: Queued | Gke, retry: bool) -> bool:
    """Looks after a job whose machines, or their request, are there; whether it has finished."""
    resource, say = seen.resources[job.name], engine.runner.say
    try:
        if isinstance(engine, Gke):
            say(f"{job.name}: {resource.state}")
            code = 1 if resource.state == gke.FAILED else None
        else:
            watcher = watch.Watcher(job, engine.runner, engine.restarts)
            code = watcher.react(
                resource, seen.progress.get(job.name, RUNNING), seen.restarts.get(job.name, Restarts())
            )
        if code and retry:
            say(f"{job.name}: failed before, and is started again")
            if isinstance(engine, Gke) or resource.state == "ACTIVE":
                engine.run(job)
            else:
                watch.recreate(job, engine.runner)
    except ConfigError as error:
        say(str(error))
    except CommandFailed as error:
        # Of one job, as where a machine cannot be reached; the next call tries it again.
        if error.kind not in (OTHER, CAPACITY):
            raise
        say(f"{job.name}: {error}")
    return job.name in seen.finished


def _start(job: Job, engine: Queued | Gke) -> None:
    runner = engine.runner
    try:
        engine.create(job)
        if isinstance(engine, Gke):
            # The list of workloads forgets what has ended.
            watch.remember(job, runner, Restarts())
        if not runner.dry_run:
            runner.say(f"{job.name}: asked for")
    except CommandFailed as error:
        if error.kind == EXISTS:
            runner.say(f"{job.name}: is there already")
        elif error.kind == CAPACITY:
            runner.say(f"{job.name}: {error}")
        else:
            raise
