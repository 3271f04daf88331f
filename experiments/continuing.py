"""Which run a training may continue, and what of an earlier start it may use."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from experiments.exclusive import alone
from flaxnmt.checks.model import check_model
from flaxnmt.checks.options import check_limits, check_ranges, check_used
from flaxnmt.config import Config
from flaxnmt.config_io import differences
from flaxnmt.data.labelled.rows import LabelledRows
from flaxnmt.data.shards import TokenCorpus
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import RunError, UserError
from flaxnmt.run_directory import BUCKET, CHECKPOINTS, CONFIG, PARAMETERS, RECORD, TOKENIZER, read_config
from flaxnmt.training.checkpoints import absolute, completed

MAY_CHANGE = (
    "training.max_steps",
    "training.max_epochs",
    "training.max_minutes",
    "training.evaluate_every",
    "training.checkpoint_every",
    "training.patience",
    "training.log_every",
    "training.tensorboard",
    "training.loss_chunk",
    "training.keep_last",
    "training.keep_best",
    "data.workers",
    "data.test",
    "mesh.data",
    "mesh.fsdp",
    "mesh.model",
    "mesh.branches",
    "decoding.batch_size",
)
"""Fields that may differ from those of the run that is continued: none of them touches what was learned.

Schedules that fall to their end do so with the last step, and the noise of gates may grow until it, so that there
max_steps may not.
"""


def check(config: Config, directory: Path) -> None:
    """Refuses a configuration that cannot be trained, or another one than that of the run it would continue."""
    check_limits(config.training)
    check_ranges(config)
    check_model(config)
    check_used(config)
    learned = has_checkpoint(directory)
    # Without checkpoints inference still uses what was exported, with the vocabulary beside it.
    if not learned and not (directory / PARAMETERS).exists():
        return
    may_change = set(MAY_CHANGE)
    noisy = bool(config.model.budgets) and config.training.budget.noise_steps is None
    if config.optimizer.schedule in ("cosine", "linear") or noisy:
        may_change.remove("training.max_steps")
    changed = [
        line for line in differences(read_config(directory), config) if line.split(":")[0] not in may_change
    ]
    if changed:
        raise RunError(
            f"{directory} was trained with another configuration ({'; '.join(changed)}): "
            "give the same, or another --run directory"
        )
    if learned:
        try:
            Vocabularies.load(directory / TOKENIZER)
        except UserError as error:
            missing = f"{directory / TOKENIZER} is missing" if not (directory / TOKENIZER).is_dir() else error
            raise RunError(f"{missing}: bring it back, as a new one would not fit the checkpoints") from None


def check_corpus(corpus: TokenCorpus | LabelledRows, directory: Path) -> None:
    """Refuses to continue a run on other training pairs than it began with: its place among them would be lost."""
    path = directory / RECORD
    if not has_checkpoint(directory) or not path.exists():
        return
    known = json.loads(path.read_text(encoding="utf-8")).get("training_corpus")
    if known is not None and known != corpus.checksum():
        raise RunError(
            f"{directory}: the training corpus is not the one that this run began with: bring that one back, "
            f"or train in another --run directory with --init-from {directory}"
        )


def has_checkpoint(directory: Path) -> bool:
    """Whether a run directory holds anything that was learned."""
    found = checkpoints_of(directory)
    return found.exists() and bool(completed(found))


def checkpoints_of(directory: Path) -> epath.Path:
    """Where the checkpoints of a run are: in its directory, or on the bucket of which it is a copy."""
    bucket = directory / BUCKET
    return absolute(bucket.read_text(encoding="utf-8") if bucket.exists() else directory) / CHECKPOINTS


@contextlib.contextmanager
def made_directory(directory: Path, config: Config, init_from: Path | None = None) -> Iterator[None]:
    """Makes the run directory, with the vocabulary of the run whose parameters it starts from, if there is one.

    What a start left that came to no checkpoint counts only for the same configuration. Until it is left no other
    training of this machine may come in.

    Raises:
      RunError: if it cannot be made, another training is in it, or it is itself the run to start from.
    """
    if init_from is not None and directory.exists() and init_from.samefile(directory):
        raise RunError(f"--init-from {init_from} is the run directory itself: give another --run")
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(directory, str(directory)))
            for left in directory.glob(f"{PARAMETERS}.tmp*"):
                # Of an export that was killed.
                left.unlink()
            if not has_checkpoint(directory):
                if init_from is not None or not is_saved(config, directory):
                    shutil.rmtree(directory / TOKENIZER, ignore_errors=True)
                    # It would say of whatever vocabulary comes now that it belongs to the start before.
                    (directory / CONFIG).unlink(missing_ok=True)
                if init_from is not None:
                    shutil.copytree(init_from / TOKENIZER, directory / TOKENIZER)
        except OSError as error:
            raise RunError(
                f"{directory}: no run directory can be made there ({error.strerror}); give another --run"
            ) from None
        yield


def is_saved(config: Config, directory: Path) -> bool:
    """Whether the run directory holds this configuration."""
    try:
        return not differences(read_config(directory), config)
    except UserError:
        return False
