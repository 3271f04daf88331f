"""Several processes of one run on this machine, and what they leave."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tiny_runs import start

from flaxnmt.training.metrics import read_metrics


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def places(count: int) -> list[list[str]]:
    """The options that tell each of `count` processes where it belongs."""
    address = f"127.0.0.1:{free_port()}"
    return [["--coordinator", address, "--processes", str(count), "--process", str(i)] for i in range(count)]


@contextlib.contextmanager
def training(
    commands: list[list[str]], devices: int = 1, variables: dict[str, str] | None = None
) -> Iterator[list[subprocess.Popen]]:
    """Processes that train, each with its arguments and so many devices; none of them is left at the end."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"} | (variables or {})
    with contextlib.ExitStack() as stack:
        processes = []
        for command in commands:
            processes.append(start("experiments.train", *command, variables=flags))
            stack.callback(processes[-1].communicate)
            stack.callback(processes[-1].kill)
        yield processes


def wait_for(moment: Callable[[], bool], processes: list[subprocess.Popen]) -> None:
    """Until a moment that must come while all of the processes live."""
    deadline = time.monotonic() + 240
    while not moment():
        assert time.monotonic() < deadline
        ended = next((process for process in processes if process.poll() is not None), None)
        assert ended is None, f"exit code {ended.returncode}\n{ended.stderr.read()[-3000:]}"
        time.sleep(0.005)


def ends(processes: list[subprocess.Popen], seconds: float = 30) -> tuple[list[int], list[str]]:
    """Exit codes and error streams of processes that must all have ended within these seconds."""
    deadline = time.monotonic() + seconds
    streams = [process.communicate(timeout=max(deadline - time.monotonic(), 0.1))[1] for process in processes]
    return [process.returncode for process in processes], streams


def newest(run: Path) -> int:
    """Step of the last checkpoint that is whole."""
    return max((int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def rows(run: Path, kind: str) -> dict[int, dict]:
    """Rows of metrics by step."""
    return {row["step"]: row for row in read_metrics(run) if row["kind"] == kind}


def child(pid: int) -> int:
    """The process that a process has started."""
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def ends_soon(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process that the system has killed is gone: it dies when it is its turn, which takes a moment."""
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
