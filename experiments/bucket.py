"""A run directory on a bucket: checkpoints lie there, everything else is worked on locally and copied.

Arrays that are mapped into memory, and files that grow line by line, have to be local. Each process has a directory of
its own for them, which it fills from the bucket when it starts; the first process brings back what has changed with
every checkpoint. So a run goes on from the bucket alone, on whatever hosts.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from etils import epath
from jax.experimental import multihost_utils

from experiments.exclusive import alone
from flaxnmt.errors import RunError, StorageError
from flaxnmt.remote import copy, files_below, is_address, local_directory, located, reaching
from flaxnmt.run_directory import BUCKET, CHECKPOINTS

PAUSES = (1.0, 5.0)
"""Seconds before a bucket is tried again, which now and then does not answer."""

log = logging.getLogger(__name__)


class Shared:
    """What the processes of a run share: their run directory, as it is.

    Attributes:
      local: the directory to work in.
      address: where all processes reach it.
    """

    def __init__(self, local: Path, address: epath.Path | Path | None = None):
        self.local, self.address = local, local if address is None else address

    def bring(self) -> None:
        """Makes what the first process wrote visible to all; every process must call it."""

    def save(self, must: bool = False) -> None:
        """Brings what has changed to where all processes reach it; where it `must` not, the next time may do it."""

    def fetch(self, name: str) -> None:
        """Makes the newest file of this name visible here, once the first process has saved it."""


class Bucket(Shared):
    """The same on a bucket, of which `local` has copies."""

    def __init__(self, address: epath.Path, local: Path):
        super().__init__(local, address)
        self._known: dict[Path, tuple[float, int]] = {}
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir(parents=True)
        (local / BUCKET).write_text(str(address), encoding="utf-8")
        self._pull()

    def bring(self) -> None:
        if jax.process_index() == 0:
            # At the start the address, or the right to write there, may be a mistake.
            self._retried(RunError)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("files of the run are on the bucket")
        if jax.process_index() != 0:
            with reaching(str(self.address), RunError):
                self._pull()

    def save(self, must: bool = False) -> None:
        if jax.process_index() != 0:
            return
        try:
            self._retried(StorageError)
        except StorageError as error:
            if must:
                raise
            log.warning("%s; goes on, and tries again with the next checkpoint", error)

    def _retried(self, error: type[RunError]) -> None:
        for pause in PAUSES:
            with contextlib.suppress(RunError), reaching(str(self.address), RunError):
                return self._push()
            time.sleep(pause)
        with reaching(str(self.address), error):
            self._push()

    def _push(self) -> None:
        for path in sorted(path for path in self.local.rglob("*") if path.is_file()):
            status = path.stat()
            stamp = (status.st_mtime, status.st_size)
            if path.name != BUCKET and self._known.get(path) != stamp:
                copy(path, self._there(path))
                self._known[path] = stamp
        # A vocabulary of another kind has another name, and the one before it would be found first.
        for path in [path for path in self._known if not path.exists()]:
            self._there(path).unlink(missing_ok=True)
            del self._known[path]

    def fetch(self, name: str) -> None:
        copy(self.address / name, self.local / name)

    def _there(self, path: Path) -> epath.Path:
        """Where a file of the local directory is on the bucket."""
        return self.address / path.relative_to(self.local).as_posix()

    def _pull(self) -> None:
        try:
            found = list(files_below(self.address, [self.address / CHECKPOINTS]))
        except FileNotFoundError:
            found = []
        for path in found:
            target = self.local / path.relative_to(self.address).as_posix()
            copy(path, target)
            status = target.stat()
            self._known[target] = (status.st_mtime, status.st_size)


@contextlib.contextmanager
def sharing(run: str, process: int) -> Iterator[Shared]:
    """`share`, whose local copies belong to this process alone until it is left.

    Raises:
      RunError: also where another training of this machine is at work on the bucket.
    """
    with contextlib.ExitStack() as stack:
        if is_address(run):
            # Beside the copies, which a start removes.
            copies = _copies(run, process)
            lock = copies.with_name(f"{copies.name}.lock")
            lock.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(lock, run))
        yield share(run, process)


def share(run: str, process: int) -> Shared:
    """The run directory that a command names: a local one, or an address such as gs://bucket/directory.

    Raises:
      RunError: where the bucket cannot be read.
    """
    if not is_address(run):
        return Shared(Path(run))
    with reaching(run, RunError):
        return Bucket(located(run), _copies(run, process))


def _copies(run: str, process: int) -> Path:
    return local_directory(f"process{process}", run)
