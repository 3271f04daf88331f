"""What a run says of itself: in `run.json`, and on the terminal before it begins."""

import json
import logging
import platform
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import jax
from etils import epath
from jax.sharding import Mesh

import flaxnmt
from experiments import host
from experiments.tasks.task import Task
from flaxnmt.config import Config
from flaxnmt.training.state import TrainState

log = logging.getLogger(__name__)

MACHINE = ("devices", "processes", "mesh", "matmul_peak_gflops", "host", "versions")
"""What a record says of where the updates were made."""


def record(
    mesh: Mesh, state: TrainState, task: Task, peak: float, argv: list[str], frozen: list[str]
) -> dict:
    """What `run.json` says of a run."""
    device = jax.devices()[0]
    return {
        "command": " ".join(["python -m experiments.train", *argv]),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "frozen": frozen,
        "training_pairs": task.train.pairs,
        "training_corpus": task.corpus.checksum(),
        "skipped_lines": task.train.skipped.too_long + task.train.skipped.empty,
        "batches_per_epoch": len(task.train),
        "shapes": str(task.train.plan),
        "tokenizer": task.vocabularies.hash,
        "vocabulary": [task.vocabularies.source.vocab_size, task.vocabularies.target.vocab_size],
        "devices": f"{jax.device_count()} x {device.device_kind}",
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        "matmul_peak_gflops": round(peak / 1e9, 1),
        "host": f"{host.cpu()}, {len(host.cores())} cores, Python {platform.python_version()}",
        "versions": versions(),
    }


def with_machine_of(path: Path, found: dict) -> dict:
    """A record with the machine of the earlier one, where there is one: training ended there."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found | {name: before[name] for name in MACHINE if name in before}


def announce(
    config: Config, directory: Path | epath.Path, mesh: Mesh, state: TrainState, task: Task, best: str
) -> None:
    """Says what is about to be trained, on what, and from where; `best` is the score to beat, if there is one."""
    train = task.train
    shapes = ", ".join(f"{bucket.rows} x {bucket.sizes}" for bucket in train.plan.buckets)
    log.info(
        "data: %s %s in %s batches an epoch of rows x %s %s",
        f"{train.pairs:,}", task.examples, len(train), task.sizes, shapes,
    )  # fmt: skip
    if train.skipped.too_long or train.skipped.empty:
        log.info("left out: %s", train.skipped)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    sizes = dict.fromkeys(
        f"{side.vocab_size:,}" for side in (task.vocabularies.source, task.vocabularies.target)
    )
    log.info(
        "model: %s parameters, vocabulary %s (%s)",
        f"{count:,}",
        " and ".join(sizes),
        config.data.tokenizer.kind,
    )
    device = jax.devices()[0].device_kind
    axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)
    log.info("devices: %d x %s%s", jax.device_count(), device, f" as {axes}" if axes else "")
    if state.step:
        log.info("continues %s from step %d%s", directory, state.step, f", best {best}" if best else "")


def versions() -> dict[str, str]:
    """Of everything that a result depends on."""
    names = (
        "jax",
        "jaxlib",
        "flax",
        "optax",
        "orbax-checkpoint",
        "grain",
        "sentencepiece",
        "sacrebleu",
        "numpy",
    )
    # The TPU runtime is there on TPUs only, and not everybody has WordPiece vocabularies.
    found = {name: version(name) for name in ("tokenizers", "libtpu") if find_spec(name) is not None}
    return {"flaxnmt": flaxnmt.__version__ + commit()} | {name: version(name) for name in names} | found


def commit(root: Path = Path(__file__).parent.parent) -> str:
    """As git has it: "+g1a2b3c4", with ".dirty" where files have changed since, as in PEP 440; "" outside of a checkout."""
    # Where it is installed, git would speak of whatever repository is around.
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    describe = ("describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=.dirty")
    said = subprocess.run(("git", "-C", str(root), *describe), capture_output=True, text=True)
    return f"+g{said.stdout.strip()}" if said.returncode == 0 else ""
