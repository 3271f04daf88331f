"""Keeping a queued resource at its training: looks, decides, acts, until the training has ended."""

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flaxnmt.commands import MISTAKE
from tpu import queued
from tpu.command import CAPACITY, OTHER, CommandFailed, Runner
from tpu.job import Job
from tpu.patience import HOUR, UNREACHED, Outage, pause
from tpu.queued import Action, Outcome, Progress, Resource
from tpu.restarts import KEPT, Restarts, read_restarts

FILES = Path("runs/launch")
"""Where what goes to the machines is kept on this one."""
STARTUP = Path(__file__).with_name("startup.sh")
DEFECT = 1
SILENCE = 1200.0
"""Seconds in which one of the machines must have said that it is there, once all are."""
LOSSES = 3
"""Restarts after lost processes within an hour, on machines that stay: more of them are a defect."""
HALF_DONE = {
    Action.RUN: ("ACTIVE",),
    Action.RECREATE: (queued.MISSING, "SUSPENDED", "FAILED"),
}
"""States in which a restart that was begun is to be done again, from its first command on."""


def create(job: Job, runner: Runner, fresh: bool = True) -> None:
    """Asks for the machines; their startup script trains.

    Args:
      fresh: whether how often an earlier job of this name was started again is forgotten, and not only how it ended.
    """
    runner.run(queued.forget(job.state, restarts=fresh), missing_ok=True)
    files = queued.sent(job, STARTUP, FILES / job.name)
    for key, (path, text) in files.items():
        runner.write(path, text, show="tpu/startup.sh" if key == "startup-script" else None)
    runner.run(queued.create(job, {key: path for key, (path, _) in files.items()}))


def run(job: Job, runner: Runner, fresh: bool = True) -> None:
    """Starts the training again on machines that are there; `fresh` as in `create`."""
    runner.run(queued.forget(job.state, restarts=fresh), missing_ok=True)
    runner.run(queued.again(job), limit=queued.SSH_LIMIT)


def recreate(job: Job, runner: Runner, fresh: bool = True) -> None:
    """Deletes what is left of a resource and asks for it again; `fresh` as in `create`."""
    runner.run(queued.delete(job.name, job.place), missing_ok=True)
    create(job, runner, fresh)


def described(job: Job, runner: Runner) -> Resource:
    """The resource as Cloud TPU describes it."""
    return queued.read_resource(runner.run(queued.describe(job.name, job.place), missing_ok=True))


def look(job: Job, runner: Runner) -> tuple[Resource, Progress, Restarts]:
    """The resource, what its machines said, and how often they were started again."""
    resource = described(job, runner)
    said = runner.run(queued.codes(job.state), missing_ok=True)
    progress = queued.read_progress(said, job.name, job.workers)
    return resource, progress, read_restarts(said).get(job.name, Restarts())


def remember(job: Job, runner: Runner, restarts: Restarts) -> None:
    """Keeps in the bucket how often a job was started again."""
    path = FILES / job.name / KEPT
    runner.write(path, restarts.line(job.name))
    runner.run(queued.remember(path, job.state))


def line_of(job: Job, resource: Resource, progress: Progress) -> str:
    """State of a job in one line."""
    training = progress.outcome.value
    if progress.outcome is Outcome.RUNNING:
        training = (
            f"{progress.reported} of {job.workers} workers have started"
            if progress.reported
            else "not started"
        )
        if progress.reported == job.workers:
            training = f"running on {job.workers} workers"
    return f"{job.name}: {resource.state}, {training}"


@dataclass
class Watcher:
    """Watches one job.

    Attributes:
      job: what to keep going.
      runner: how commands are run.
      restarts: how often the training may be started again.
      delay: seconds between two looks; longer, up to ten minutes, after resources or looks that failed in a row.
      keep: leave the machines when the training has finished.
      sleep: waits for seconds.
      clock: seconds since 1970, as the machines write them.
    """

    job: Job
    runner: Runner
    restarts: int = 50
    delay: float = 30.0
    keep: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time
    _known: Restarts = field(default_factory=Restarts)
    _said: str = ""
    _in_a_row: int = 0

    def __post_init__(self):
        self._outage = Outage(self.clock)

    def watch(self) -> int:
        """Until the training has finished, or cannot go on, or nobody can be asked for an hour; its exit code.

        Raises:
          CommandFailed: where gcloud refuses to answer, as without credentials.
          ConfigError: for machines of another image or with other variables.
        """
        if self.runner.dry_run:
            return self._show()
        while True:
            code = self.step()
            if code is not None:
                return code
            self.sleep(pause(self.delay, max(self._in_a_row, self._outage.failures)))

    def step(self) -> int | None:
        """One look and what follows; the exit code where that is the end."""
        try:
            code = self.react(*look(self.job, self.runner))
            self._outage.over()
            return code
        except (CommandFailed, json.JSONDecodeError) as error:
            kind = error.kind if isinstance(error, CommandFailed) else OTHER
            if kind not in (OTHER, CAPACITY):
                raise
            if self._outage.lasts(limited=kind == OTHER or not self.job.spot):
                self.runner.say(
                    f"{self.job.name}: no success for an hour ({error}); what trains goes on without this, and the same "
                    "watch looks after it again"
                )
                return UNREACHED
            self._say(f"{self.job.name}: will try again ({error})")
            return None

    def react(self, resource: Resource, progress: Progress, known: Restarts) -> int | None:
        """What follows from a look; the exit code where that is the end."""
        self._known = known
        queued.check_same(self.job, resource)
        self._say(line_of(self.job, resource, progress))
        if known.begun:
            # How machines ended may be removed, or the resource be deleted: nothing else says what to do.
            begun = Action(known.begun)
            if resource.state in HALF_DONE[begun]:
                return self._go_on(begun)
            if resource.state == "DELETING":
                return None
            self._remember(begun=None)
        if resource.state == "ACTIVE" and progress.outcome is Outcome.RUNNING:
            self._in_a_row = 0
        ended_for = 0.0 if progress.ended_at is None else self.clock() - progress.ended_at
        action, why = queued.decide(resource, self.job.spot, progress, ended_for)
        if action is Action.RUN and progress.outcome is Outcome.LOST and len(self._losses()) >= LOSSES:
            action, why = Action.STOP, f"processes were lost {LOSSES + 1} times within an hour"
        if action is Action.RECREATE and progress.outcome is Outcome.DEFECT and known.doubted:
            action, why = Action.STOP, "the training failed a second time: a defect"
        if action is Action.WAIT and self._silent(resource, progress):
            return self._give_up_on_silence()
        if action in (Action.RUN, Action.RECREATE):
            return self._restart(action, progress.outcome, why)
        if action is Action.FINISH:
            return self._finish(resource, why)
        return self._stop(progress, why) if action is Action.STOP else None

    def _losses(self) -> tuple[float, ...]:
        return tuple(when for when in self._known.losses if self.clock() - when < HOUR)

    def _silent(self, resource: Resource, progress: Progress) -> bool:
        """Whether machines that are there have said nothing for too long."""
        if resource.state != "ACTIVE" or progress.reported:
            return False
        if self._known.silent_since is None:
            self._remember(silent_since=self.clock())
        return self.clock() - self._known.silent_since >= SILENCE

    def _remember(self, **changes) -> None:
        self._known = dataclasses.replace(self._known, **changes)
        remember(self.job, self.runner, self._known)

    def _restart(self, action: Action, outcome: Outcome, why: str) -> int | None:
        used = self._known.used + 1
        if used > self.restarts:
            self.runner.say(f"{self.job.name}: {why}; stopped after {used - 1} restarts (--restarts)")
            return DEFECT
        lost = action is Action.RUN and outcome is Outcome.LOST
        self._remember(
            used=used,
            losses=self._losses() + ((self.clock(),) if lost else ()),
            doubted=self._known.doubted or outcome is Outcome.DEFECT,
            silent_since=None,
            begun=action.value,
        )
        self._in_a_row += 1
        verb = "running it again" if action is Action.RUN else "asking for it again"
        self.runner.say(f"{self.job.name}: {why}; {verb}, restart {used} of at most {self.restarts}")
        self._said = ""
        return self._go_on(action)

    def _go_on(self, action: Action) -> None:
        (run if action is Action.RUN else recreate)(self.job, self.runner, fresh=False)
        self._remember(begun=None)

    def _give_up_on_silence(self) -> int:
        """The machines cost money, and no training runs on them."""
        self.runner.say(
            f"{self.job.name}: no machine has said anything for {SILENCE / 60:.0f} minutes, so the training has not started: "
            "python -m tpu.launch logs shows whether it can be reached; may the machines write to the bucket? They cost "
            "money until you delete them"
        )
        return DEFECT

    def _finish(self, resource: Resource, why: str) -> int:
        self.runner.say(f"{self.job.name}: {why}: {self.job.run}")
        if resource.state == queued.MISSING:
            return 0
        if self.keep:
            self.runner.say(f"{self.job.name}: the machines are kept and cost money until you delete them")
            return 0
        self.runner.run(queued.delete(self.job.name, self.job.place), missing_ok=True)
        self.runner.say(f"{self.job.name}: the machines are given back")
        return 0

    def _stop(self, progress: Progress, why: str) -> int:
        say = self.runner.say
        if progress.code is None:
            say(f"{self.job.name}: {why}; it will not be asked for again")
            return DEFECT
        say(f"{self.job.name}: {why}: exit code {progress.code} of worker {progress.worker}")
        say(
            f"its log: {self.job.state}/log/{progress.worker}, or python -m tpu.launch logs while the machines are there"
        )
        say(
            "the machines cost money until you delete them; after the correction, python -m tpu.launch run starts again"
        )
        return MISTAKE if progress.code == MISTAKE else DEFECT

    def _show(self) -> int:
        """What every look runs, and what may follow."""
        say = self.runner.say
        say(f"# every {self.delay:g} seconds:")
        look(self.job, self.runner)
        say("# after exit code 42:")
        run(self.job, self.runner, fresh=False)
        if self.job.spot:
            say("# after SUSPENDED or FAILED:")
            recreate(self.job, self.runner, fresh=False)
        if not self.keep:
            say("# when it has finished:")
            self.runner.run(queued.delete(self.job.name, self.job.place))
        return 0

    def _say(self, line: str) -> None:
        """Only what is new."""
        if line != self._said:
            self._said = line
            self.runner.say(f"{time.strftime('%H:%M:%S')} {line}")
