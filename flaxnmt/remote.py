"""Files at addresses, such as gs://bucket/directory/file, and copies of them on this machine.

What is mapped into memory, or read by libraries that know files alone, has to be local. Copies lie in a temporary
directory, and are made again only where size or time of what they are of has changed.
"""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flaxnmt.errors import DataError, UserError

if TYPE_CHECKING:
    from etils import epath

FILE = "file://"
"""A directory that is treated as a bucket: to try what would lie on one."""
BLOCK = 1 << 24
TICK = 2.0
"""Seconds; addresses tell times in whole ones, so that a file of the last moments may change and look the same."""


def is_address(name: str | os.PathLike) -> bool:
    """Whether a file or directory is named by an address."""
    return "://" in os.fspath(name)


def located(address: str) -> "epath.Path":
    """What an address names."""
    from etils import epath
    from fsspec.config import conf

    # Other processes write there too, and gcsfs would go on telling what it has listed once.
    conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return epath.Path(address.removeprefix(FILE).rstrip("/"))


@contextlib.contextmanager
def reaching(address: str, error: type[UserError]) -> Iterator[None]:
    """Makes one line of whatever is raised inside: what libraries of clouds raise has no common type.

    Raises:
      error: with what to do.
    """
    try:
        yield
    except UserError:
        raise
    except ImportError as missing:
        raise error(f"{address}: pip install 'flaxnmt[gcs]' to use buckets ({missing})") from None
    except Exception as reason:
        said = (str(reason).splitlines() or [type(reason).__name__])[0]
        raise error(
            f"{address}: the bucket cannot be reached ({said}); see its name and who may use it, and on your own machine "
            "gcloud auth application-default login"
        ) from None


def local_directory(kind: str, address: str) -> Path:
    """Where files of an address are kept on this machine: among the temporary ones, of this user alone.

    Raises:
      OSError: where there can be no such directory.
    """
    mine = Path(tempfile.gettempdir(), f"flaxnmt-{os.getuid()}")
    mine.mkdir(mode=0o700, parents=True, exist_ok=True)
    if mine.stat().st_uid != os.getuid():
        raise OSError(errno.EPERM, "it belongs to somebody else", str(mine))
    return mine / kind / address.replace("://", "/").strip("/")


def files_below(directory: "epath.Path", without: Iterable["epath.Path"] = ()) -> Iterator["epath.Path"]:
    """All files of a directory and of those in it, but for the directories `without`.

    Raises:
      FileNotFoundError: where there is no such directory.
    """
    without = set(without)
    for path in directory.iterdir():
        # Consoles mark empty folders by an object with the name of the folder.
        if path == directory or path in without:
            continue
        if path.is_dir():
            yield from files_below(path, without)
        else:
            yield path


def copy(source: "epath.Path | Path", target: "epath.Path | Path") -> None:
    """Copies a file from or to an address."""
    from etils import epath

    target.parent.mkdir(parents=True, exist_ok=True)
    with epath.Path(source).open("rb") as reader, epath.Path(target).open("wb") as writer:
        shutil.copyfileobj(reader, writer, BLOCK)


def bring_file(address: str) -> Path:
    """A copy of a file, with its name.

    Raises:
      DataError: where there is none, it is empty, or cannot be read.
    """
    with reaching(address, DataError):
        check_file(address)
        target = local_directory("copies", address)
        _bring(located(address), target)
    return target


def check_file(address: str) -> None:
    """Sees that there is a file, without reading it.

    Raises:
      DataError: where there is none, or it is empty.
    """
    with reaching(address, DataError):
        try:
            status = located(address).stat()
        except FileNotFoundError:
            raise DataError(f"{address} does not exist, or you may not see it") from None
        if status.is_directory:
            raise DataError(f"{address} is a folder, a file was expected")
        if not status.length:
            raise DataError(f"{address} is empty")


def bring(directory: str, names: Iterable[str], error: type[UserError]) -> Path:
    """A local directory with the files and folders of these names, as they are at the address; or are not.

    Raises:
      error: where it cannot be read.
    """
    with reaching(directory, error):
        source, target = located(directory), local_directory("copies", directory)
        for name in names:
            try:
                whole = source / name
                found = list(files_below(whole)) if whole.stat().is_directory else [whole]
            except FileNotFoundError:
                found = []
            wanted = {target / path.relative_to(source).as_posix(): path for path in found}
            for path in [target / name, *(target / name).rglob("*")]:
                if path.is_file() and path not in wanted:
                    path.unlink()
            for path, there in wanted.items():
                _bring(there, path)
    return target


def _bring(source: "epath.Path", target: Path) -> None:
    """Copies a file unless it is there already; one that others read meanwhile stays whole."""
    status = source.stat()
    if target.is_file():
        here = target.stat()
        if (here.st_size, int(here.st_mtime)) == (status.length, int(status.mtime)):
            return
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        copy(source, partial)
        stamp = status.mtime if time.time() - status.mtime > TICK else 0
        os.utime(partial, (stamp, stamp))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
