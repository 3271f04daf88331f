"""Trains a translation model: one command from two text files, or a set of documents, to a run directory.

    python -m experiments.train CONFIG --run DIR --train SRC TGT --dev SRC TGT [--section.field value ...]

The same command again continues the run. Exit codes: 0 finished, 2 a mistake to correct, 42 saved and left
because it was asked to stop (SIGTERM or Ctrl-C): start it again.
"""

import dataclasses
import logging
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import tyro

import flaxnmt
from experiments import configs
from experiments.corpora import prepare
from experiments.evaluate import Evaluator
from experiments.initial import initial_params
from experiments.loop import History, Loop
from experiments.report import write_report
from flaxnmt.commands import guarded, quiet
from flaxnmt.config import Config
from flaxnmt.config_io import differences
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.run import CONFIG, RECORD, TOKENIZER, make_model, read_config, save_config, write_json
from flaxnmt.runtime import keep_freed_memory
from flaxnmt.sharding import make_mesh, owned_rows, use_mesh
from flaxnmt.training.checkpoints import Checkpoints
from flaxnmt.training.meters import measure_matmul_peak
from flaxnmt.training.objective import translation_objective
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.schedules import make_schedule
from flaxnmt.training.state import TrainState, init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep
from flaxnmt.translation import Translator

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
    "data.dev",
    "data.test",
    "mesh.data",
    "mesh.fsdp",
    "mesh.model",
    "decoding.batch_size",
)
"""Fields that may differ from those of the run that is continued: none of them touches what was learned."""


@dataclass(frozen=True)
class Arguments:
    run: Path
    """Run directory; an existing one is continued."""
    train: tuple[str, ...] | None = None
    """Training corpus: source and target files, a document file, tfds:NAME or discourse."""
    dev: tuple[str, ...] | None = None
    """Development corpus."""
    test: tuple[str, ...] | None = None
    """Test corpus, scored once at the end."""
    max_steps: int | None = None
    """Updates."""
    max_epochs: int | None = None
    """Passes over the training corpus."""
    max_minutes: float | None = None
    """Wall minutes, all continuations of the run together."""
    seed: int | None = None
    """Of initialisation, data order and dropout."""
    init_from: Path | None = None
    """A run whose parameters the first update starts from, where names and shapes agree."""
    coordinator: str | None = None
    """host:port of the first process, for several processes that find each other by no cluster service."""
    processes: int | None = None
    """How many processes the run has; 0 asks the cluster's own service (TPU pods, Slurm, Kubernetes)."""
    process: int | None = None
    """Which of them this is, from 0."""
    debug: bool = False
    """Show tracebacks."""
    config: Annotated[Config, tyro.conf.arg(name="")] = tyro.MISSING

    def resolved(self) -> Config:
        """The configuration with the short flags in place."""
        config = self.config
        paths = {name: getattr(self, name) for name in ("train", "dev", "test")}
        data = dataclasses.replace(config.data, **{name: value for name, value in paths.items() if value is not None})
        limits = {name: getattr(self, name) for name in ("max_steps", "max_epochs", "max_minutes", "seed")}
        given = {name: value for name, value in limits.items() if value is not None}
        return config.replace(data=data, training=dataclasses.replace(config.training, **given))


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    return guarded(lambda: train(parse(argv)), debug="--debug" in argv)


def parse(argv: list[str]) -> Arguments:
    """Arguments from a command line whose first word names a configuration."""
    if not argv or argv[0].startswith("-"):
        listing = "\n".join(f"  {name}" for name in configs.names())
        print(f"{__doc__}\nConfigurations:\n{listing}\n\nAll fields: python -m experiments.train CONFIG --help")
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    config = configs.load(argv[0])
    return tyro.cli(
        Arguments, args=argv[1:], default=Arguments(run=tyro.MISSING, config=config), config=(tyro.conf.AvoidSubcommands,),
        prog=f"python -m experiments.train {argv[0]}", description=configs.describe(argv[0]),
    )  # fmt: skip


def train(arguments: Arguments) -> int:
    """Runs, or continues, a training; its exit code."""
    quiet()
    keep_freed_memory()
    if arguments.processes is not None:
        known = (arguments.coordinator, arguments.processes or None, arguments.process)
        jax.distributed.initialize(*known)
    config, directory = arguments.resolved(), arguments.run
    check(config, directory)
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model)
    owned_rows(config.data.rows_multiple, mesh)
    began = time.monotonic()
    first = jax.process_index() == 0
    if first and not (directory / CONFIG).exists():
        # Left by a start that failed before the first update, perhaps with other settings.
        shutil.rmtree(directory / TOKENIZER, ignore_errors=True)
    corpora = prepare(config.data, directory, config.training.seed)
    model = make_model(config, corpora.vocabularies)
    training = config.training
    schedule = make_schedule(config.optimizer, config.model.d_model, training.max_steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    chunk = training.loss_chunk if mesh.size == 1 else None
    objective = translation_objective(model, training.label_smoothing, chunk)
    example = jax.numpy.ones((config.data.rows_multiple, 8), jax.numpy.int32)

    def init(key):
        return model.init(key, example, example)

    # One device's peak, measured outside of the mesh: inside, every array belongs to all devices.
    peak = measure_matmul_peak(config.model.dtype) * _units()
    with use_mesh(mesh):
        shapes, shardings = state_shardings(init, optimizer, training.ema is not None, mesh)
        larger = "min" if training.metric == "loss" else "max"
        keep = max(training.keep_last, training.average_count if training.average == "last" else 1)
        best = max(training.keep_best, training.average_count if training.average == "best" else 0)
        with Checkpoints(directory / "checkpoints", keep, best, larger) as checkpoints:
            state, history = restored(checkpoints, shapes, shardings)
            if state is None:
                state = init_state(init, optimizer, training.ema is not None, shardings, training.seed)
                if arguments.init_from is not None:
                    state = initial_params(state, arguments.init_from, shardings)
            step = CompiledStep(
                TrainStep(objective, optimizer, schedule, training.seed, training.ema), shardings, training.accumulate
            )
            translator = Translator(model, state.params, corpora.vocabularies, config.decoding, mesh)
            evaluator = Evaluator(objective, translator, corpora, training.evaluate_translations)
            if first:
                save_config(directory, config)
                write_json(directory / RECORD, record(config, mesh, state, corpora, peak))
            history.seconds += time.monotonic() - began
            code = Loop(config, directory, corpora, step, evaluator, checkpoints, mesh, peak).run(state, history)
    if first and code == 0:
        write_report(directory)
    return code


def check(config: Config, directory: Path) -> None:
    """Refuses a configuration without an end, or another one than that of the run it would continue."""
    training = config.training
    if training.max_steps is None and training.max_epochs is None and training.max_minutes is None and not training.patience:
        raise ConfigError("training has no end: give --max-steps, --max-epochs, --max-minutes or --training.patience")
    if not (directory / CONFIG).exists():
        return
    changed = [line for line in differences(read_config(directory), config) if line.split(":")[0] not in MAY_CHANGE]
    if changed:
        raise RunError(
            f"{directory} was trained with another configuration ({'; '.join(changed)}): "
            "give the same, or another --run directory"
        )


def restored(checkpoints: Checkpoints, shapes: TrainState, shardings: TrainState) -> tuple[TrainState | None, History]:
    """State and history of the newest sound checkpoint; (None, a new history) where there is none."""
    abstract = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding), shapes, shardings
    )
    rest = {"opt_state": abstract.opt_state, "ema": abstract.ema, "bad": abstract.bad, "step": abstract.step}
    found = checkpoints.restore(abstract.params, rest)
    if found is None:
        return None, History()
    _, params, rest, progress = found
    progress.pop("step")
    return TrainState(rest["step"], params, rest["opt_state"], rest["ema"], rest["bad"]), History(**progress)


def record(config: Config, mesh, state: TrainState, corpora, peak: float) -> dict:
    """What `run.json` says of a run."""
    device = jax.devices()[0]
    return {
        "command": " ".join(["python -m experiments.train", *sys.argv[1:]]),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "training_pairs": corpora.train.pairs,
        "skipped_lines": corpora.train.skipped.too_long + corpora.train.skipped.empty,
        "batches_per_epoch": len(corpora.train),
        "shapes": str(corpora.train.plan),
        "tokenizer": corpora.vocabularies.hash,
        "vocabulary": [corpora.vocabularies.source.vocab_size, corpora.vocabularies.target.vocab_size],
        "devices": f"{jax.device_count()} x {device.device_kind}",
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        "matmul_peak_gflops": round(peak / 1e9, 1),
        "host": f"{platform.processor() or platform.machine()}, Python {platform.python_version()}",
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of everything that a result depends on."""
    from importlib.metadata import version

    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "sentencepiece", "sacrebleu", "numpy")
    return {"flaxnmt": flaxnmt.__version__} | {name: version(name) for name in names}


def _units() -> int:
    """Devices whose peaks add up; virtual ones on a CPU share its cores."""
    return 1 if jax.default_backend() == "cpu" else jax.device_count()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
