"""Several processes on the trials of one sweep: each takes what no other has, on cores of its own."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from flaxnmt.training.preemption import PREEMPTED

MOMENT = 0.2
"""Seconds between two looks at the jobs."""


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether this process has the file to itself until it leaves; the system gives back what a killed one had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if not _is_at(file, path):
            # Its owner has removed it since it was opened, and another process may hold the next one of this name.
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether an open file is still the one of its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def cores() -> set[int]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def keep_to(process: int, share: set[int]) -> None:
    """Keeps a process, and what it will start, to these cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process, share)


def shares(cores: Sequence[int], jobs: int) -> list[set[int]]:
    """Cores of each job, as equal as can be; more jobs than cores go round."""
    if jobs >= len(cores):
        return [{cores[job % len(cores)]} for job in range(jobs)]
    return [set(cores[job::jobs]) for job in range(jobs)]


def run_jobs(command: Sequence[str], jobs: int) -> int:
    """Runs so many copies of a command of Python, each on its share of the cores; their exit code.

    Where one fails the others are stopped, to be continued later. A signal that asks to stop is passed on.
    """
    running: list[subprocess.Popen] = []

    def stop(*_) -> None:
        for process in running:
            process.terminate()

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for share in shares(sorted(cores()), jobs):
            # In a session of its own, so that Ctrl-C reaches it once, from here.
            process = subprocess.Popen([sys.executable, *command], start_new_session=True)
            running.append(process)
            keep_to(process.pid, share)
        codes: list[int] = []
        while running:
            time.sleep(MOMENT)
            ended = [process for process in running if process.poll() is not None]
            running = [process for process in running if process not in ended]
            codes += [process.returncode for process in ended]
            if any(process.returncode for process in ended):
                stop()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    # That others were stopped says less than why.
    return next((code for code in codes if code not in (0, PREEMPTED)), max(codes))
