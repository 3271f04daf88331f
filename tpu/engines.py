"""The two ways of launching behind one set of verbs: queued resources of Cloud TPU, and workloads on GKE."""

import dataclasses
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpu import gke, queued, watch
from tpu.command import ADVICE, EXISTS, NOT_FOUND, OTHER, CommandFailed, Runner
from tpu.job import Job, Place, state_of
from tpu.names import hidden
from tpu.patience import UNREACHED, Outage, pause

FAILED = 1
LEAVING = 120.0
"""Seconds in which a workload that was deleted is gone from the list..."""
PAUSE = 5.0
"""...and between two looks."""


@dataclass(frozen=True)
class Queued:
    """Queued resources of Cloud TPU."""

    runner: Runner
    restarts: int = 50

    def create(self, job: Job) -> None:
        # Before how it ended is forgotten, which a training that runs would not say again.
        resource = watch.described(job, self.runner)
        if resource.state != queued.MISSING:
            raise CommandFailed(EXISTS, f"{job.name} is {resource.state}; {ADVICE[EXISTS]}")
        watch.create(job, self.runner)

    def run(self, job: Job) -> None:
        resource = watch.described(job, self.runner)
        queued.check_same(job, resource)
        if not self.runner.dry_run and resource.state != "ACTIVE":
            raise CommandFailed(
                NOT_FOUND if resource.state == queued.MISSING else OTHER,
                f"{job.name} is {resource.state}, and run starts the training on machines that are there: "
                + ("create asks for them" if resource.state == queued.MISSING else "watch waits for them"),
            )
        watch.run(job, self.runner)

    def watch(self, job: Job, delay: float, restarts: int, keep: bool) -> int:
        return watch.Watcher(job, self.runner, restarts, delay, keep).watch()

    def status(self, name: str, place: Place, bucket: str | None) -> dict[str, str]:
        described = self.runner.run(queued.describe(name, place), missing_ok=True)
        said = (
            "" if bucket is None else self.runner.run(queued.codes(state_of(bucket, name)), missing_ok=True)
        )
        if self.runner.dry_run:
            return {}
        resource = queued.read_resource(described)
        row = {
            "name": name,
            "state": resource.state,
            "slices": f"{resource.nodes} x {resource.accelerator}" if resource.nodes else "",
            "said": resource.error,
        }
        if bucket is None:
            return row
        ends = sorted(queued.said_by(said, name).items())
        return row | {
            "workers": ", ".join(f"{worker} {code}" for worker, (code, _) in ends) or "none has started"
        }

    def logs(self, name: str, place: Place, bucket: str | None, machine: tuple[int, int], lines: int) -> int:
        if bucket is None:
            return self.runner.stream(queued.follow(name, place, *machine, lines))
        return self.runner.stream(queued.saved_log(state_of(bucket, name), *machine))

    def delete(self, name: str, place: Place) -> None:
        self.runner.run(queued.delete(name, place))


@dataclass(frozen=True)
class Gke:
    """Workloads on a cluster of GKE, through xpk; the cluster itself starts them again."""

    runner: Runner
    restarts: int = 50
    manifest: Path | None = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time

    def create(self, job: Job) -> None:
        if self.manifest is not None:
            shown = {
                name: hidden(f"{name}={value}").partition("=")[2] for name, value in job.environment.items()
            }
            show = gke.manifest_text(dataclasses.replace(job, environment=shown), self.restarts)
            self.runner.write(self.manifest, gke.manifest_text(job, self.restarts), show)
            self.runner.say(
                f"# to start it: {shlex.join(['kubectl', 'apply', '--filename', str(self.manifest)])}"
            )
            return
        # xpk would ask whether to replace a workload that runs.
        said = self.runner.run(gke.listing(job.place, job.name))
        if not self.runner.dry_run and gke.read_listing(said, job.name)[0] != gke.MISSING:
            raise CommandFailed(
                EXISTS, f"the workload {job.name} is there already: see status, or delete it first"
            )
        self.runner.run(gke.create(job, self.restarts))

    def run(self, job: Job) -> None:
        self.runner.run(gke.delete(job.name, job.place), missing_ok=True)
        for _ in range(0 if self.runner.dry_run else int(LEAVING / PAUSE)):
            if self._state(job.name, job.place)[0] == gke.MISSING:
                break
            self.sleep(PAUSE)
        self.create(job)

    def watch(self, job: Job, delay: float, restarts: int, keep: bool) -> int:
        if self.runner.dry_run:
            self.runner.say(f"# every {delay:g} seconds:")
            self.runner.run(gke.listing(job.place, job.name))
            return 0
        last, outage = "", Outage(self.clock)
        while True:
            try:
                state, message = self._state(job.name, job.place)
                outage.over()
            except CommandFailed as error:
                if error.kind != OTHER:
                    raise
                if outage.lasts():
                    self.runner.say(
                        f"{job.name}: no answer for an hour ({error}); the cluster looks after it without this"
                    )
                    return UNREACHED
                state, message = "unknown", f"will try again: {error}"
            line = f"{job.name}: {state}" + (f" ({message})" if message else "")
            if line != last:
                self.runner.say(f"{time.strftime('%H:%M:%S')} {line}")
                last = line
            if state == gke.FINISHED:
                self.runner.say(f"{job.name}: the training has finished: {job.run}")
                return 0
            if state in (gke.FAILED, gke.MISSING):
                self.runner.say(
                    f"{job.name}: " + ("it is gone: somebody has deleted it, or it ended long ago" if state == gke.MISSING
                    else "it failed; python -m tpu.launch logs shows why: exit code 2 is a mistake to correct, 42 and 43 mean "
                    "that its restarts were used up, and any other one is a defect")
                )  # fmt: skip
                return FAILED
            self.sleep(pause(delay, outage.failures))

    def status(self, name: str, place: Place, bucket: str | None) -> dict[str, str]:
        if self.runner.dry_run:
            self.runner.run(gke.listing(place, name))
            return {}
        state, message = self._state(name, place)
        return {"name": name, "state": state, "said": message}

    def logs(self, name: str, place: Place, bucket: str | None, machine: tuple[int, int], lines: int) -> int:
        return self.runner.stream(gke.follow(name, *machine, lines))

    def delete(self, name: str, place: Place) -> None:
        self.runner.run(gke.delete(name, place))

    def _state(self, name: str, place: Place) -> tuple[str, str]:
        return gke.read_listing(self.runner.run(gke.listing(place, name)), name)
