"""Queued resources of Cloud TPU: the commands of gcloud, and what to do in each of their states.

Commands: `gcloud compute tpus queued-resources` of the Google Cloud SDK, 528. States: QueuedResourceState of the Cloud
TPU API, v2. The training is the machines' startup script, so that one that is started again runs it again; a spot
resource that was taken away stays SUSPENDED until it is deleted, and is created again then.
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from experiments.supervise import LOST, MISTAKE, PREEMPTED
from flaxnmt.errors import ConfigError
from tpu.command import CAPACITY, OTHER, kind_of
from tpu.job import Job, Place
from tpu.restarts import KEPT

GCLOUD = ("gcloud", "compute", "tpus", "queued-resources")
SCRIPT = "/var/lib/flaxnmt/startup.sh"
LOG = "/var/lib/flaxnmt/log"
"""On the machines, where startup.sh puts itself and what the training says."""

MISSING = "NOT_FOUND"
WAITING = (
    "CREATING",
    "ACCEPTED",
    "WAITING_FOR_RESOURCES",
    "PROVISIONING",
    "SUSPENDING",
    "DELETING",
)
PATIENCE = 120.0
"""Seconds to wait after processes have ended: the state of a resource follows its machines late."""
SSH_LIMIT = 300.0
"""Seconds to start the training on machines that are there; those that are being taken away do not answer."""
NO_IMAGE = 125
"""Exit code of docker itself: it could not fetch or start the image, or was ended with its machine."""


IMAGE, ENVIRONMENT = "flaxnmt-image", "flaxnmt-environment"
"""Names of the metadata that machines keep as long as they are there."""


def sent(job: Job, startup: Path, folder: Path) -> dict[str, tuple[Path, str]]:
    """What goes into the machines' metadata, each in a file since gcloud splits values at commas.

    Returns:
      by name of the metadata: path, text. The command is a word a line, the environment NAME=VALUE a line.
    """
    texts = {
        "startup-script": ("startup.sh", startup.read_text(encoding="utf-8")),
        "flaxnmt-command": ("command", "".join(f"{word}\n" for word in job.command)),
        ENVIRONMENT: (
            "environment",
            "".join(f"{name}={value}\n" for name, value in job.environment.items()),
        ),
    }
    return {key: (folder / file, text) for key, (file, text) in texts.items()}


def create(job: Job, files: dict[str, Path]) -> list[str]:
    """Asks for the machines; `files` are those of `sent`."""
    nodes = [f"--node-id={job.name}"]
    if job.slices > 1:
        nodes = [f"--node-count={job.slices}", f"--node-prefix={job.name}"]
    optional = {
        "--spot": job.spot,
        "--reserved": job.reserved,
        "--internal-ips": job.internal,
        f"--service-account={job.service_account}": job.service_account,
        f"--valid-until-duration={job.valid_for}": job.valid_for,
    }
    metadata = {"flaxnmt-name": job.name, IMAGE: job.image, "flaxnmt-state": job.state}
    return [
        *GCLOUD,
        "create",
        job.name,
        *nodes,
        *job.place.flags,
        f"--accelerator-type={job.slice.accelerator_type}",
        f"--runtime-version={job.runtime or job.slice.generation.runtime}",
        *(flag for flag, given in optional.items() if given),
        "--scopes=cloud-platform",
        f"--metadata={_pairs(metadata)}",
        f"--metadata-from-file={_pairs(files)}",
        "--quiet",
    ]


def _pairs(values: dict) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def describe(name: str, place: Place) -> list[str]:
    return [*GCLOUD, "describe", name, *place.flags, "--format=json"]


def listing(place: Place) -> list[str]:
    return [*GCLOUD, "list", *place.flags, "--format=json"]


def delete(name: str, place: Place) -> list[str]:
    """Gives the machines back, and returns when the name is free again."""
    return [*GCLOUD, "delete", name, *place.flags, "--force", "--quiet"]


def ssh(name: str, place: Place, words: Iterable[str], node: str = "all", worker: str = "all") -> list[str]:
    """Runs a command on machines; what their shells get is quoted."""
    command = f"--command={shlex.join(words)}"
    return [*GCLOUD, "ssh", name, *place.flags, f"--node={node}", f"--worker={worker}", command, "--quiet"]


def again(job: Job) -> list[str]:
    """Starts the training on machines that are there, in the background."""
    words = ["sudo", "setsid", "--fork", "bash", SCRIPT, "again", *job.command]
    return ssh(job.name, job.place, words)


def follow(name: str, place: Place, node: int, worker: int, lines: int) -> list[str]:
    """Streams what the training says on one machine."""
    words = ["sudo", "tail", "-n", str(lines), "-F", LOG]
    return ssh(name, place, words, str(node), str(worker))


def codes(state: str) -> list[str]:
    """Reads how the machines ended, and the restarts; `state` may hold a pattern."""
    return ["gcloud", "storage", "cat", f"{state}/exit/*"]


def forget(state: str, restarts: bool) -> list[str]:
    """Removes how they ended, before they are started again, and with `restarts` how often they were."""
    return ["gcloud", "storage", "rm", f"{state}/exit/{'*' if restarts else '[0-9]*'}", "--quiet"]


def remember(path: Path, state: str) -> list[str]:
    """Keeps what `tpu.restarts` has written to a file."""
    return ["gcloud", "storage", "cp", str(path), f"{state}/exit/{KEPT}", "--quiet"]


def saved_log(state: str, node: int, worker: int) -> list[str]:
    """Prints what a machine left in the bucket when its training ended."""
    return ["gcloud", "storage", "cat", f"{state}/log/{node}-{worker}"]


@dataclass(frozen=True)
class Resource:
    """What is known of a queued resource.

    Attributes:
      state: of the API; NOT_FOUND where there is none.
      error: why it failed, in Google's words.
      accelerator: such as v5litepod-16.
      nodes: slices.
      metadata: of its machines.
    """

    state: str = MISSING
    error: str = ""
    accelerator: str = ""
    nodes: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


def read_resource(text: str) -> Resource:
    """From the JSON of `describe`; a text without any is that of no resource."""
    return resource_of(json.loads(text)) if text.strip() else Resource()


def read_resources(text: str) -> dict[str, Resource]:
    """From the JSON of `list`, by name."""
    found = json.loads(text) if text.strip() else []
    return {row["name"].rpartition("/")[2]: resource_of(row) for row in found}


def resource_of(found: dict) -> Resource:
    """From a QueuedResource of the API."""
    state = found.get("state", {})
    data = next((value for key, value in state.items() if key.endswith("Data") and "error" in value), {})
    specs = found.get("tpu", {}).get("nodeSpec", [])
    nodes = sum(
        int(spec.get("multiNodeParams", spec.get("multisliceParams", {})).get("nodeCount", 1))
        for spec in specs
    )
    node = specs[0].get("node", {}) if specs else {}
    error = data.get("error", {}).get("message", "")
    return Resource(
        state.get("state", "STATE_UNSPECIFIED"),
        error,
        node.get("acceleratorType", ""),
        nodes,
        node.get("metadata", {}),
    )


def check_same(job: Job, resource: Resource) -> None:
    """Refuses to go on with machines of another slice, or that were made with another image or other variables.

    Raises:
      ConfigError: with what differs; values of variables are not repeated.
    """
    machines, wanted = (resource.nodes, resource.accelerator), (job.slices, job.slice.accelerator_type)
    if resource.accelerator and machines != wanted:
        raise ConfigError(
            f"{job.name}: its machines are {machines[0]} x {machines[1]}, and not {wanted[0]} x {wanted[1]}: give their "
            "--slice and --slices, or what is new needs delete and create"
        )
    if IMAGE not in resource.metadata:
        return
    lines = resource.metadata.get(ENVIRONMENT, "").splitlines()
    had = dict(line.split("=", 1) for line in lines if "=" in line)
    names = sorted(
        name for name in had.keys() | job.environment.keys() if had.get(name) != job.environment.get(name)
    )
    changed = [f"--image {resource.metadata[IMAGE]}"] if resource.metadata[IMAGE] != job.image else []
    changed += [f"--env {name}" for name in names]
    if changed:
        raise ConfigError(
            f"{job.name}: its machines were made with another {', '.join(changed)} and keep it: give the same, or what is "
            "new needs delete and create"
        )


class Outcome(Enum):
    """How the processes of all machines stand, together."""

    RUNNING = "running"
    FINISHED = "finished"
    PREEMPTED = "saved and left"
    MISTAKE = "a mistake to correct"
    LOST = "processes were lost"
    KILLED = "killed"
    DEFECT = "a defect"


@dataclass(frozen=True)
class Progress:
    """Outcome of a training on all its machines.

    Attributes:
      outcome: of all.
      code: the exit code that decides.
      worker: SLICE-WORKER that left with it.
      reported: machines that said anything.
      ended_at: when the last of those ended that have, in seconds since 1970.
    """

    outcome: Outcome
    code: int | None = None
    worker: str | None = None
    reported: int = 0
    ended_at: float | None = None


def said_by(text: str, name: str) -> dict[str, tuple[str, str]]:
    """Code, or `running`, and its time by SLICE-WORKER, from lines among which there are others."""
    rows = (line.split() for line in text.splitlines())
    return {row[1]: (row[2], row[3]) for row in rows if len(row) == 4 and row[0] == name}


def read_progress(text: str, name: str, workers: int) -> Progress:
    """From lines of `NAME SLICE-WORKER CODE SECONDS`, where the code of a process that runs is `running`.

    One mistake or defect decides, at once: others wait for a process that has left, and are killed in the end. Apart from
    that nothing is decided before every machine has said how it ended.
    """
    said = said_by(text, name)
    ended = {worker: int(code) for worker, (code, _) in sorted(said.items()) if code.isdecimal()}
    ended_at = max((float(said[worker][1]) for worker in ended), default=None)

    def first(outcome: Outcome, fits) -> Progress | None:
        found = (
            Progress(outcome, code, who, len(said), ended_at) for who, code in ended.items() if fits(code)
        )
        return next(found, None)

    def killed(code: int) -> bool:
        return code >= 128 or code == NO_IMAGE

    decided = (
        first(Outcome.MISTAKE, lambda code: code == MISTAKE)
        or first(Outcome.DEFECT, lambda code: code not in (0, PREEMPTED, LOST) and not killed(code))
        or first(Outcome.KILLED, killed)
        or first(Outcome.LOST, lambda code: code == LOST)
    )
    if decided:
        return decided
    if len(ended) < workers:
        return Progress(Outcome.RUNNING, reported=len(said))
    again = first(Outcome.PREEMPTED, lambda code: code == PREEMPTED)
    return again or Progress(Outcome.FINISHED, 0, reported=len(said))


class Action(Enum):
    """What to do next."""

    WAIT = "wait"
    RUN = "run"
    RECREATE = "recreate"
    FINISH = "finish"
    STOP = "stop"


AFTERWARDS = {
    Outcome.PREEMPTED: (Action.RUN, "the training saved and left"),
    Outcome.LOST: (Action.RUN, "processes were lost, and the machines are still there"),
    Outcome.KILLED: (
        Action.STOP,
        "processes were killed or the image could not be had, and the machines are still there",
    ),
    Outcome.DEFECT: (Action.STOP, "the training failed: a defect, which starting it again would repeat"),
}
"""What follows once it is clear that machines stay on which processes have ended."""


def decide(resource: Resource, spot: bool, progress: Progress, ended_for: float = 0.0) -> tuple[Action, str]:
    """The state machine: what to do, and why.

    Args:
      resource: as Cloud TPU says.
      spot: whether it may be taken away at any time, and is asked for again then.
      progress: as the machines said.
      ended_for: seconds since the last process ended.
    """
    state, outcome = resource.state, progress.outcome
    if outcome is Outcome.FINISHED:
        return Action.FINISH, "the training has finished"
    if outcome is Outcome.MISTAKE:
        return Action.STOP, "the training was refused: a mistake to correct"
    # Python leaves with 1 too where what it works with is taken away under it.
    taken = spot and progress.code == 1 and state in ("ACTIVE", "SUSPENDING", "SUSPENDED")
    if outcome is Outcome.DEFECT and not taken:
        return AFTERWARDS[outcome]
    if state in WAITING:
        return Action.WAIT, ""
    if state == "ACTIVE":
        settled = outcome in AFTERWARDS and ended_for >= PATIENCE
        return AFTERWARDS[outcome] if settled else (Action.WAIT, "")
    if state == MISSING:
        return Action.STOP, "the resource is not there: it was deleted, or never created"
    if state in ("SUSPENDED", "FAILED"):
        why = f"the resource is {state}" + (f" ({resource.error})" if resource.error else "")
        # What Google Cloud could not do now it may do later; what it does not allow, it never does.
        hopeless = state == "FAILED" and resource.error and kind_of(resource.error) not in (CAPACITY, OTHER)
        return (Action.RECREATE if spot and not hopeless else Action.STOP), why
    return Action.WAIT, f"an unknown state, {state}"
