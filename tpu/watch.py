"""Keeping a queued resource at its training: looks, decides, acts, until the training has ended."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flaxnmt.commands import MISTAKE
from tpu import queued
from tpu.command import CAPACITY, OTHER, CommandFailed, Runner
from tpu.job import Job
from tpu.queued import Action, Outcome, Progress, Resource

FILES = Path("runs/launch")
"""Where what goes to the machines is kept on this one."""
STARTUP = Path(__file__).with_name("startup.sh")
DEFECT = 1
FAILURES = 5
"""Looks and restarts in a row that may fail, as where the network is away."""
SILENCE = 1200.0
"""Seconds in which one of the machines must have said that it is there, once all are."""
LOSSES, HOUR = 3, 3600.0
"""Restarts after lost processes within an hour, on machines that stay: more of them are a defect."""
LONGEST_DELAY = 600.0


def create(job: Job, runner: Runner, fresh: bool = True) -> None:
    """Asks for the machines; their startup script trains.

    Args:
      fresh: whether what an earlier job of this name said in the bucket is forgotten first.
    """
    if fresh:
        runner.run(queued.forget(job.state), missing_ok=True)
    files = queued.sent(job, STARTUP, FILES / job.name)
    for key, (path, text) in files.items():
        runner.write(path, text, show="tpu/startup.sh" if key == "startup-script" else None)
    runner.run(queued.create(job, {key: path for key, (path, _) in files.items()}))


def run(job: Job, runner: Runner) -> None:
    """Starts the training again on machines that are there."""
    runner.run(queued.forget(job.state), missing_ok=True)
    runner.run(queued.again(job))


def recreate(job: Job, runner: Runner) -> None:
    """Deletes what is left of a resource and asks for it again."""
    runner.run(queued.delete(job.name, job.place), missing_ok=True)
    create(job, runner)


def look(job: Job, runner: Runner) -> tuple[Resource, Progress]:
    """The resource as Cloud TPU describes it, and what its machines said."""
    resource = queued.read_resource(runner.run(queued.describe(job.name, job.place), missing_ok=True))
    said = runner.run(queued.codes(job.state), missing_ok=True)
    return resource, queued.read_progress(said, job.name, job.workers)


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
      delay: seconds between two looks; longer, up to ten minutes, after resources that failed in a row.
      keep: leave the machines when the training has finished.
      sleep: waits for seconds.
      clock: seconds.
    """

    job: Job
    runner: Runner
    restarts: int = 50
    delay: float = 30.0
    keep: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    used: int = 0
    _said: str = ""
    _begun: Action | None = None
    _ended_at: float | None = None
    _silent_at: float | None = None
    _failures: int = 0
    _in_a_row: int = 0
    _losses: list[float] = field(default_factory=list)

    def watch(self) -> int:
        """Until the training has finished, or cannot go on; its exit code.

        Raises:
          CommandFailed: where gcloud cannot be asked, as without credentials.
        """
        if self.runner.dry_run:
            return self._show()
        while True:
            code = self.step()
            if code is not None:
                return code
            self.sleep(min(self.delay * 2 ** min(self._in_a_row, 10), max(self.delay, LONGEST_DELAY)))

    def step(self) -> int | None:
        """One look and what follows; the exit code where that is the end."""
        try:
            code = self.react(*look(self.job, self.runner))
            self._failures = 0
            return code
        except (CommandFailed, json.JSONDecodeError) as error:
            self._failures += 1
            passing = isinstance(error, json.JSONDecodeError) or error.kind in (OTHER, CAPACITY)
            if not passing or self._failures >= FAILURES:
                raise
            self._say(f"{self.job.name}: will try again ({error})")
            return None

    def react(self, resource: Resource, progress: Progress) -> int | None:
        """What follows from a look; the exit code where that is the end."""
        if self._begun is Action.RECREATE or (self._begun is Action.RUN and resource.state == "ACTIVE"):
            # Half of it is done: what machines said before is forgotten, or the resource is deleted.
            return self._go_on(self._begun)
        self._begun = None
        if progress.outcome not in (Outcome.KILLED, Outcome.LOST):
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = self.clock()
        ended_for = 0.0 if self._ended_at is None else self.clock() - self._ended_at
        if resource.state != "ACTIVE" or progress.reported:
            self._silent_at = None
        elif self._silent_at is None:
            self._silent_at = self.clock()
        self._say(line_of(self.job, resource, progress))
        if resource.state == "ACTIVE" and progress.outcome is Outcome.RUNNING:
            self._in_a_row = 0
        action, why = queued.decide(resource, self.job.spot, progress, ended_for)
        if action is Action.RUN and progress.outcome is Outcome.LOST and self._too_often():
            action, why = Action.STOP, f"processes were lost {LOSSES + 1} times within an hour"
        if (
            action is Action.WAIT
            and self._silent_at is not None
            and self.clock() - self._silent_at >= SILENCE
        ):
            return self._give_up_on_silence()
        if action in (Action.RUN, Action.RECREATE):
            return self._restart(action, why)
        if action is Action.FINISH:
            return self._finish(resource, why)
        return self._stop(progress, why) if action is Action.STOP else None

    def _too_often(self) -> bool:
        self._losses = [when for when in self._losses if self.clock() - when < HOUR]
        self._losses.append(self.clock())
        return len(self._losses) > LOSSES

    def _restart(self, action: Action, why: str) -> int | None:
        if self.used >= self.restarts:
            self.runner.say(f"{self.job.name}: {why}; stopped after {self.used} restarts (--restarts)")
            return DEFECT
        self.used += 1
        self._in_a_row += 1
        verb = "running it again" if action is Action.RUN else "asking for it again"
        self.runner.say(f"{self.job.name}: {why}; {verb}, restart {self.used} of at most {self.restarts}")
        self._ended_at, self._silent_at, self._said = None, None, ""
        return self._go_on(action)

    def _go_on(self, action: Action) -> None:
        self._begun = action
        (run if action is Action.RUN else recreate)(self.job, self.runner)
        self._begun = None

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
        run(self.job, self.runner)
        if self.job.spot:
            say("# after SUSPENDED or FAILED:")
            recreate(self.job, self.runner)
        if not self.keep:
            say("# when it has finished:")
            self.runner.run(queued.delete(self.job.name, self.job.place))
        return 0

    def _say(self, line: str) -> None:
        """Only what is new."""
        if line != self._said:
            self._said = line
            self.runner.say(f"{time.strftime('%H:%M:%S')} {line}")
