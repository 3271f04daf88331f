"""Processes that are ended from outside at a moment of their training, and what is left then."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import orbax.checkpoint as ocp
from tiny_runs import start

from flaxnmt.training.checkpoints import absolute, read_record
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.metrics import read_metrics

MEASURED_ANEW = (
    "time",
    "minutes",
    "step_seconds",
    "target_tokens_per_second",
    "mfu",
    "seconds",
    "phases",
    "goodput",
)
COUNTED_BY_PROCESS = ("compilations", "compilations_after_warmup")


def completed(run: Path) -> list[int]:
    """Steps of the checkpoints that are whole."""
    return sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit())


def saving(run: Path) -> bool:
    """Whether a checkpoint is half written now; it may be renamed while it is looked at."""
    return any(any(path.glob("*")) for path in (run / "checkpoints").glob("*.orbax-checkpoint-tmp*"))


def starts(run: Path) -> int:
    """How often the training came as far as its first update."""
    return sum(row.get("event") == "started" for row in read_metrics(run))


def end_live(
    arguments: list[str], run: Path, moment: Callable[[], bool], number: signal.Signals
) -> tuple[int, str]:
    """Starts the training, sends the signal at the moment, when it must be alive; exit code and error stream."""
    process = start("experiments.train", *arguments, "--run", str(run))
    try:
        deadline = time.monotonic() + 120
        while not moment():
            assert process.poll() is None, f"ended before the moment came: {process.stderr.read()[-3000:]}"
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        assert process.poll() is None
        process.send_signal(number)
        return process.wait(timeout=120), process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def kill(arguments: list[str], run: Path, moment: Callable[[], bool]) -> None:
    code, _ = end_live(arguments, run, moment, signal.SIGKILL)
    assert code == -signal.SIGKILL


def before_the_first_checkpoint(run: Path) -> Callable[[], bool]:
    return lambda: starts(run) > 0 and not completed(run)


def after_the_start(run: Path, delay: float) -> Callable[[], bool]:
    """Seconds after the process began to train."""
    before = starts(run)

    def moment() -> bool:
        if starts(run) == before:
            return False
        time.sleep(delay)
        return True

    return moment


def while_saving(run: Path, later: int, delay: float) -> Callable[[], bool]:
    """Inside a save, seconds after it began, once the newest checkpoint is `later` steps further."""
    goal = max(completed(run), default=0) + later

    def moment() -> bool:
        if max(completed(run), default=0) < goal or not saving(run):
            return False
        time.sleep(delay)
        return saving(run)

    return moment


def progress(run: Path, step: int) -> dict:
    """What the checkpoint says beside its arrays, without the clock."""
    found = read_record(absolute(run / "checkpoints" / str(step)))["progress"]
    return {name: value for name, value in found.items() if name not in MEASURED_ANEW}


def arrays(run: Path, step: int) -> dict[str, bytes]:
    """The bits of every array of a checkpoint, of parameters and of all else, with type and shape."""
    found = {}
    for item in ("params", "rest"):
        path = absolute(run / "checkpoints" / str(step)) / item
        for name, leaf in named_leaves(ocp.StandardCheckpointHandler().restore(path)).items():
            found[f"{item}/{name}"] = (str(leaf.dtype), leaf.shape, leaf.tobytes())
    return found


def measured(run: Path) -> list[str]:
    """Rows of metrics without what differs between two clocks or two processes; no events, the last test only."""
    without = {*MEASURED_ANEW, *COUNTED_BY_PROCESS}
    rows = [
        row
        for row in read_metrics(run)
        if row["kind"] in ("train", "dev") or row["step"] == completed(run)[-1]
    ]
    rows = [row for row in rows if row["kind"] != "event"]
    return [json.dumps({name: value for name, value in row.items() if name not in without}) for row in rows]


def assert_same_run(run: Path, unbroken: Path) -> None:
    """The last checkpoint, the record and the export are those of the unbroken run, bit for bit."""
    step = completed(unbroken)[-1]
    assert completed(run)[-1] == step
    ours, theirs = arrays(run, step), arrays(unbroken, step)
    assert len(theirs) > 20 and ours.keys() == theirs.keys()
    assert [name for name in theirs if ours[name] != theirs[name]] == []
    assert progress(run, step) == progress(unbroken, step)
    assert measured(run) == measured(unbroken)
    for name in ("parameters.npz", "test.txt", "dev.txt"):
        assert (run / name).read_bytes() == (unbroken / name).read_bytes(), name
