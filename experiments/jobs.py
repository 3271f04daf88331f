"""Processes of their own: several on the trials of one sweep, each on its cores, and one for what holds a device."""

import contextlib
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TextIO, TypeVar

from experiments import host
from flaxnmt.commands import quiet
from flaxnmt.errors import RunError
from flaxnmt.runtime import keep_freed_memory
from flaxnmt.training.preemption import PREEMPTED

T = TypeVar("T")

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


def keep_to(process: int, share: set[int]) -> None:
    """Keeps a process, and what it will start, to these cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process, share)


def shares(cores: Sequence[int], jobs: int) -> list[set[int]]:
    """Cores of each job, as equal as can be; more jobs than cores go round."""
    if jobs >= len(cores):
        return [{cores[job % len(cores)]} for job in range(jobs)]
    return [set(cores[job::jobs]) for job in range(jobs)]


def apart(function: Callable[..., T], *arguments) -> T:
    """What a function returns in a fresh process: its memory, and the accelerator that it uses, are given back with it.

    Raises:
      RunError: where that process is killed; what the function raises otherwise.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise RunError(
                f"the process of {function.__name__} was killed: was there memory enough?"
            ) from None
        except BaseException:
            # Also where this process is asked to stop.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _prepare() -> None:
    quiet()
    keep_freed_memory()


def run_jobs(command: Sequence[str], jobs: int) -> int:
    """Runs so many copies of a command of Python, each on its share of the cores; their exit code.

    What they find is left to whoever started them to print. Where one fails the others are stopped, to be continued later.
    A signal that asks to stop is passed on.
    """
    running: list[subprocess.Popen] = []
    asked: set[subprocess.Popen] = set()

    def stop(*_) -> None:
        # Once each: a process of Python that is about to end, and no longer handles signals, would die of a second one.
        for process in set(running) - asked:
            asked.add(process)
            process.terminate()

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for share in shares(sorted(host.cores()), jobs):
            # In a session of its own, so that Ctrl-C reaches it once, from here.
            process = subprocess.Popen(
                [sys.executable, *command], start_new_session=True, stdout=subprocess.DEVNULL
            )
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
