"""Checkpoints of a run, the one place that knows Orbax.

A checkpoint has three items: `params`, so that parameters alone can be read back; `rest`, whatever else the
training state holds; and `progress`, a small JSON record with the caller's dictionary, the metric and the
name, type and shape of every array. Arrays carry checksums that are computed on the devices, over global
positions: they do not depend on the mesh, and they catch what file formats let through (missing chunks that
read as zeros, flipped bits, a partial restore).
"""

import contextlib
import functools
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from flaxnmt.errors import RunError, StorageError
from flaxnmt.remote import is_address
from flaxnmt.training.failures import leftovers_unsaid, let_leftovers_end, save_failure, try_read
from flaxnmt.training.integrity import check_layout, checksums, layout, named_leaves, replicated
from flaxnmt.training.retention import LastAndBest, Mode, ranked
from flaxnmt.typing import Params, PyTree

log = logging.getLogger(__name__)
# Orbax tells absl's logger each of its steps, failures included; a user gets our one line instead.
logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)


class DamagedError(Exception):
    """A checkpoint that cannot be read back as it was written; the reason in a few words."""


class Checkpoints:
    """The checkpoints under `directory` (made absolute; `gs://` passes as it is).

    `keep_last` newest and `keep_best` best by metric (`mode` says which way) survive each save. With
    `read_only` nothing is created, cleaned or removed, so that a run can be read while it trains.
    Every process of a distributed run must make the same calls.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        keep_last: int = 2,
        keep_best: int = 1,
        mode: Mode = "max",
        read_only: bool = False,
    ):
        self.directory = absolute(directory)
        self._policy = LastAndBest(max(keep_last, 1), keep_best, mode)
        self._manager = None if read_only else self._open()
        self._saving: int | None = None
        self._quiet = contextlib.ExitStack()
        for step in self._on_disk():
            record = self._record(step)
            self._policy.metrics[step] = record.get("metric")
            if record.get("passing"):
                self._policy.passing.add(step)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            self.finish()
        except RunError as error:
            # An exception that is already under way says more about why the run ends.
            if kind is None:
                raise
            log.warning("%s", error)
        finally:
            if self._manager is not None:
                self._manager.close()

    def steps(self) -> list[int]:
        """Steps with a checkpoint not known to be damaged, oldest first; waits for a save under way."""
        self.finish()
        return [step for step in self._on_disk() if step not in self._policy.damaged]

    def last_steps(self, count: int) -> list[int]:
        """The newest `count` steps, oldest first, without those that were saved in passing."""
        return [step for step in self.steps() if step not in self._policy.passing][-count:]

    def best_steps(self, count: int = 1) -> list[int]:
        """The `count` best steps by metric, best first."""
        metrics = self._policy.metrics
        return ranked({step: metrics.get(step) for step in self.steps()}, self._policy.mode)[:count]

    def save(
        self,
        step: int,
        params: Params,
        rest: PyTree,
        progress: dict,
        metric: float | None = None,
        wait: bool = False,
        passing: bool = False,
    ) -> None:
        """Save in the background (or `wait` for it); of a step that is already saved the record alone is written anew.

        Thus who saves before an evaluation adds its score afterwards. What is saved in `passing`, because somebody asked
        for it, is there to continue from and counts among neither the last nor the best, which are those of a run that
        nobody stops. `progress` is anything JSON can hold. The arrays may be donated as soon as this returns.
        Raises RunError if this save or the one before it failed; older checkpoints are then untouched.
        """
        self.finish()
        if step in self._policy.damaged and step in self._on_disk():
            self._attempt(step, lambda: self._manager.delete(step))
        self._policy.damaged.discard(step)
        if step in self._on_disk():
            # It was saved before it was judged, or in passing at what turned out to be the end.
            if not passing:
                self._policy.passing.discard(step)
            self._policy.metrics[step] = self._policy.metrics.get(step) if metric is None else metric
            self._amend(step, progress)
            return
        trees = {"params": params, "rest": rest}
        arrays = {name: layout(tree) for name, tree in trees.items()}
        record = {"progress": progress, "metric": metric, "passing": passing, "arrays": arrays}
        items = {name: ocp.args.StandardSave(stored_form(tree)) for name, tree in trees.items()}
        composite = ocp.args.Composite(**items, progress=ocp.args.JsonSave(signed(record)))
        self._policy.metrics[step] = metric
        if passing:
            self._policy.passing.add(step)
        self._saving = step
        self._quiet.enter_context(leftovers_unsaid())
        self._attempt(step, lambda: self._manager.save(step, args=composite, force=True))
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the save under way. Raises RunError if it failed."""
        if self._saving is not None:
            self._attempt(self._saving, self._manager.wait_until_finished)
            self._quiet.close()
            self._saving = None

    def restore(
        self, abstract_params: Params, abstract_rest: PyTree
    ) -> tuple[int, Params, PyTree, dict] | None:
        """(step, params, rest, progress) of the newest sound checkpoint, or None where there is none.

        The arguments are trees of `jax.ShapeDtypeStruct` with the shardings wanted now. A damaged checkpoint
        is reported and the one before is taken. Raises RunError if names, types or shapes differ, or if
        there are checkpoints but none can be read.
        """
        abstract = {"params": abstract_params, "rest": abstract_rest}
        reason = ""
        for step in reversed(self.steps()):
            try:
                record, trees = self._read(step, abstract)
                return step, trees["params"], trees["rest"], record["progress"]
            except DamagedError as error:
                reason = str(error)
        if reason:
            raise RunError(
                f"{self.directory}: no checkpoint can be read (last reason: {reason}); "
                "bring back a copy, or remove the directory to begin again"
            )
        return None

    def average(self, steps: Iterable[int], abstract_params: Params) -> tuple[Params, list[int]]:
        """Mean of the parameters at `steps`, read one after the other and summed in float32, and the steps it is of.

        A damaged checkpoint is reported and left out. Raises RunError if none is left.
        """
        total, taken = None, []
        for step in steps:
            try:
                params = self._read(step, {"params": abstract_params})[1]["params"]
            except DamagedError:
                continue
            total = _widen(params) if total is None else _add(total, params)
            taken.append(step)
        if total is None:
            raise RunError(f"{self.directory}: no checkpoint left to average; save some first")
        types = jax.tree.map(lambda leaf: leaf.dtype, abstract_params)
        count = len(taken)
        mean = jax.jit(lambda sums: jax.tree.map(lambda x, dtype: (x / count).astype(dtype), sums, types))
        return mean(total), taken

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            cleanup_tmp_directories=True,
            lightweight_initialize=True,
        )
        return ocp.CheckpointManager(self.directory, options=options)

    def _on_disk(self) -> list[int]:
        return completed(self.directory)

    def _record(self, step: int) -> dict:
        try:
            return read_record(self.directory / str(step))
        except Exception:  # a damaged checkpoint is reported when someone wants to read it
            return {}

    def _amend(self, step: int, progress: dict) -> None:
        if jax.process_index() != 0:
            return
        path, policy = self.directory / str(step), self._policy
        now = {"progress": progress, "metric": policy.metrics[step], "passing": step in policy.passing}
        try:
            write_record(path, read_record(path) | now)
        except Exception as error:
            raise self._unsaved(
                f"{path}: what became known after the save could not be added ({save_failure(error)}); "
                "the checkpoint is as it was"
            ) from None

    def _unsaved(self, message: str) -> RunError:
        """A full disk has to be emptied by somebody; a bucket may answer again."""
        return (StorageError if is_address(self.directory) else RunError)(message)

    def _attempt(self, step: int, action: Callable[[], object]) -> None:
        failure = None
        try:
            action()
        except Exception as error:
            failure = save_failure(error)
            log.debug("saving step %d failed", step, exc_info=True)
        if failure is None:
            return
        # Raised out here, since the error's frames would keep alive what has to be collected.
        let_leftovers_end()
        self._quiet.close()
        self._saving = None
        self._policy.metrics.pop(step, None)
        # What the failed save left on the disk would fill it further; opening anew removes it.
        self._manager = self._open()
        raise self._unsaved(
            f"{self.directory / str(step)}: the checkpoint could not be saved ({failure}); "
            "earlier ones are untouched"
        )

    def _read(self, step: int, abstract: dict[str, PyTree]) -> tuple[dict, dict[str, PyTree]]:
        """The record and the wanted items of a checkpoint, verified.

        Reads through Orbax's handlers rather than its manager: they hold no barrier, so a process that fails
        does not leave the others waiting, and all agree on the outcome afterwards.
        """
        path = self.directory / str(step)

        def attempt(read: Callable[[], dict]) -> dict:
            value, error = try_read(read)
            if jax.process_count() > 1:
                failed = np.flatnonzero(multihost_utils.process_allgather(np.array(error is not None)))
                error = error or (f"it failed on process {failed[0]}" if failed.size else None)
            if error:
                raise DamagedError(error)
            return value

        try:
            record = attempt(lambda: read_record(path))
            for name, tree in abstract.items():
                check_layout(record["arrays"][name], layout(tree), f"{path}, {name}")
            trees = {}
            for name, tree in abstract.items():
                stored = attempt(functools.partial(read_item, path / name, tree))
                trees[name] = verified(stored, tree)
        except DamagedError as error:
            log.warning("%s: damaged checkpoint, left out (%s)", path, error)
            self._policy.damaged.add(step)
            raise
        return record, trees


def absolute(directory: str | os.PathLike) -> epath.Path:
    """Local paths made absolute, as Orbax wants them; URLs (`gs://...`) as they are."""
    directory = os.fspath(directory)
    return epath.Path(directory if "://" in directory else os.path.abspath(directory))


def completed(directory: epath.Path) -> list[int]:
    """Steps whose save was completed, oldest first; Orbax writes elsewhere and renames (on gs:// adds a marker)."""
    return sorted(found.step for found in ocp.path.step.standard_name_format().find_all(directory))


def read_record(path: epath.Path) -> dict:
    """The JSON record of the checkpoint at `path`. Raises DamagedError if it is not what was saved."""
    stored = ocp.JsonCheckpointHandler().restore(path / "progress", args=ocp.args.JsonRestore())
    if record_checksum(stored["record"]) != stored["checksum"]:
        raise DamagedError("the progress record is not what was saved")
    return stored["record"]


def write_record(path: epath.Path, record: dict) -> None:
    """Puts another JSON record into the checkpoint at `path`, all of it or nothing."""
    file = path / "progress" / "metadata"
    partial = file.with_name("metadata.partial")
    partial.write_text(json.dumps(signed(record)))
    partial.replace(file)


def signed(record: dict) -> dict:
    """A record as it is stored, with its checksum."""
    return {"record": record, "checksum": record_checksum(record)}


def record_checksum(record: dict) -> int:
    """CRC-32 of a record as JSON."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def stored_form(tree: PyTree) -> dict:
    """What is stored of a tree: its arrays by name, with their checksums."""
    arrays = named_leaves(tree)
    return {"arrays": arrays, "checksums": checksums(list(arrays.values()))}


def read_item(path: epath.Path, abstract: PyTree) -> dict:
    """The stored form of a tree, read onto the shardings of the abstract one."""
    arrays = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or replicated(None))
        for name, leaf in named_leaves(abstract).items()
    }
    everywhere = replicated(next(iter(arrays.values())).sharding if arrays else None)
    target = {
        "arrays": arrays,
        "checksums": jax.ShapeDtypeStruct((len(arrays),), jnp.uint32, sharding=everywhere),
    }
    return ocp.StandardCheckpointHandler().restore(path, args=ocp.args.StandardRestore(target))


def verified(stored: dict, abstract: PyTree) -> PyTree:
    """The tree of a stored form. Raises DamagedError if an array is not what was saved."""
    arrays = stored["arrays"]
    changed = np.flatnonzero(np.asarray(checksums(list(arrays.values()))) != np.asarray(stored["checksums"]))
    if changed.size:
        raise DamagedError(f"{list(arrays)[changed[0]]} is not what was saved, {changed.size} such arrays")
    return jax.tree.unflatten(jax.tree.structure(abstract), [arrays[name] for name in named_leaves(abstract)])


@jax.jit
def _widen(params: Params) -> Params:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)


@functools.partial(jax.jit, donate_argnums=0)
def _add(total: Params, params: Params) -> Params:
    return jax.tree.map(jnp.add, total, params)
