"""Trains a translation model: one command from two text files, or a set of documents, to a run directory.

    python -m experiments.train CONFIG --run DIR --train SRC TGT --dev SRC TGT [--section.field value ...]

The same command again continues the run. Exit codes: 0 finished, 2 a mistake to correct, 42 saved and left
because it was asked to stop (SIGTERM or Ctrl-C): start it again.
"""

import contextlib
import dataclasses
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import tyro
from tyro.conf import DisallowNone

from experiments import configs
from experiments.continuing import check, check_corpus, has_checkpoint, make_directory
from experiments.corpora import prepare
from experiments.evaluate import Evaluator
from experiments.initial import check_initial, exported, frozen_parameters, initial_params
from experiments.loop import History, Loop
from experiments.record import announce, record
from experiments.report import write_report
from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.config import BudgetLossConfig, Config, TrainingConfig
from flaxnmt.errors import ConfigError
from flaxnmt.run import CHECKPOINTS, RECORD, make_model, make_translator, save_config, write_json
from flaxnmt.runtime import keep_freed_memory
from flaxnmt.sharding import make_mesh, owned_rows, unbox, use_mesh
from flaxnmt.training.checkpoints import Checkpoints
from flaxnmt.training.freezing import freeze, frozen_mask, held
from flaxnmt.training.meters import measure_matmul_peak
from flaxnmt.training.objective import translation_objective
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.preemption import PREEMPTED
from flaxnmt.training.schedules import make_schedule
from flaxnmt.training.state import TrainState, init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep

log = logging.getLogger("experiments.train")

Files = Annotated[DisallowNone[tuple[str, ...] | None], tyro.conf.arg(metavar="SRC [TGT]")]


@dataclass(frozen=True)
class Arguments:
    run: Path
    """Run directory; an existing one is continued."""
    train: Files = None
    """Training corpus: source and target files, a document file, tfds:NAME or discourse."""
    dev: Files = None
    """Development corpus."""
    test: Files = None
    """Test corpus, scored once at the end."""
    max_steps: DisallowNone[int | None] = None
    """Updates."""
    max_epochs: DisallowNone[int | None] = None
    """Passes over the training corpus."""
    max_minutes: DisallowNone[float | None] = None
    """Wall minutes, all continuations of the run together."""
    seed: DisallowNone[int | None] = None
    """Of initialisation, data order and dropout."""
    init_from: DisallowNone[Path | None] = None
    """A run whose parameters the first update starts from, where names agree, and whose vocabulary is used."""
    coordinator: DisallowNone[str | None] = None
    """HOST:PORT of the first process, for several processes without a cluster service."""
    processes: DisallowNone[int | None] = None
    """How many processes the run has; 0 asks the cluster's own service (TPU pods, Slurm, Kubernetes)."""
    process: DisallowNone[int | None] = None
    """Which of them this is, from 0."""
    debug: bool = False
    """Show tracebacks."""
    config: Annotated[Config, tyro.conf.arg(name="")] = tyro.MISSING

    def resolved(self) -> Config:
        """The configuration with the short flags in place."""
        config = self.config
        paths = {name: getattr(self, name) for name in ("train", "dev", "test")}
        data = dataclasses.replace(
            config.data, **{name: value for name, value in paths.items() if value is not None}
        )
        limits = {name: getattr(self, name) for name in ("max_steps", "max_epochs", "max_minutes", "seed")}
        given = {name: value for name, value in limits.items() if value is not None}
        return config.replace(data=data, training=dataclasses.replace(config.training, **given))


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    return guarded(lambda: train(parse(argv), argv), debug="--debug" in argv)


def parse(argv: list[str]) -> Arguments:
    """Arguments from a command line whose first word names a configuration."""
    if not argv or argv[0].startswith("-"):
        listing = "\n".join(f"  {name}" for name in configs.names())
        print(
            f"{__doc__}\nConfigurations:\n{listing}\n\nAll fields: python -m experiments.train CONFIG --help"
        )
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    config = configs.load(argv[0])

    def read() -> Arguments:
        return tyro.cli(
            Arguments,
            args=argv[1:],
            default=Arguments(run=tyro.MISSING, config=config),
            config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
            prog=f"python -m experiments.train {argv[0]}",
            description=configs.describe(argv[0]),
        )

    return parsed(read, argv)


def train(arguments: Arguments, argv: list[str]) -> int:
    """Runs, or continues, a training; its exit code."""
    began = time.monotonic()
    quiet()
    keep_freed_memory()
    join_processes(arguments.coordinator, arguments.processes, arguments.process)
    with leaving_at_once():
        return prepare_and_train(arguments, argv, began)


def prepare_and_train(arguments: Arguments, argv: list[str], began: float) -> int:
    """`train` within its cluster; `began` is when the process did, by the monotonic clock."""
    config, directory = arguments.resolved(), arguments.run
    check(config, directory)
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model)
    owned_rows(config.data.rows_multiple, mesh)
    begins = arguments.init_from is not None and not has_checkpoint(directory)
    initial = exported(arguments.init_from) if begins else None
    first = jax.process_index() == 0
    if first:
        make_directory(directory, config, arguments.init_from)
    corpora = prepare(config, directory)
    check_corpus(corpora.corpus, directory)
    model = make_model(config, corpora.vocabularies)
    training = config.training
    schedule = make_schedule(config.optimizer, config.model.d_model, training.max_steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    chunk = training.loss_chunk if mesh.size == 1 else None
    objective = minimised = translation_objective(
        model, training.label_smoothing, chunk, budget_loss(training)
    )

    def init(key):
        return model.init(key, *example_inputs(config))

    frozen = []
    if training.freeze:
        params = unbox(jax.eval_shape(init, jax.random.key(0))["params"])
        frozen = frozen_parameters(training.freeze, params, initial, directory)
        mask = frozen_mask(params, frozen)
        optimizer, minimised = freeze(optimizer, mask), held(objective, mask)

    # One device's peak, measured outside of the mesh: inside, every array belongs to all devices.
    peak = measure_matmul_peak(config.model.dtype) * _units()
    with use_mesh(mesh):
        shapes, shardings = state_shardings(init, optimizer, training.ema is not None, mesh)
        if initial is not None:
            check_initial(initial, shapes.params, arguments.init_from)
        larger = "min" if training.metric == "loss" else "max"
        keep = max(training.keep_last, training.average_count if training.average == "last" else 1)
        best = max(training.keep_best, training.average_count if training.average == "best" else 0)
        with Checkpoints(directory / CHECKPOINTS, keep, best, larger) as checkpoints:
            state, history = restored(checkpoints, shapes, shardings)
            if state is None:
                state = init_state(init, optimizer, training.ema is not None, shardings, training.seed)
                if initial is not None:
                    state = initial_params(state, initial, shardings)
            step = CompiledStep(
                TrainStep(minimised, optimizer, schedule, training.seed, training.ema),
                shardings,
                training.accumulate,
            )
            translator = make_translator(config, model, state.params, corpora.vocabularies, mesh)
            evaluator = Evaluator(objective, translator, corpora, training.evaluate_translations)
            if first:
                save_config(directory, config)
                write_json(directory / RECORD, record(mesh, state, corpora, peak, argv, frozen))
                announce(config, directory, mesh, state, corpora, history.describe(training.metric))
            history.seconds += time.monotonic() - began
            code = Loop(config, directory, corpora, step, evaluator, checkpoints, mesh, peak).run(
                state, history
            )
    if first and code == 0:
        log.info("report: %s", write_report(directory))
        log.info("to translate: flaxnmt translate --run %s --input FILE", directory)
    return code


def example_inputs(config: Config) -> tuple[jax.Array, ...]:
    """A source and a target of the smallest shape, to make parameters with."""
    shape = (config.data.rows_multiple, 2, 8) if config.model.is_document else (config.data.rows_multiple, 8)
    ids = jax.numpy.ones(shape, jax.numpy.int32)
    paragraphs = jax.numpy.zeros(shape[:2], jax.numpy.int32)
    return (ids, ids, True, paragraphs) if config.model.is_document else (ids, ids)


def join_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Makes this process one of several, where the command line says so.

    Raises:
      ConfigError: for half of what is needed, or where the others are not to be found.
    """
    if processes is None:
        if coordinator is not None or process is not None:
            raise ConfigError("--coordinator and --process belong to several processes: give --processes too")
        return
    if processes and (coordinator is None or process is None or not 0 <= process < processes):
        raise ConfigError(
            f"{processes} processes need --coordinator HOST:PORT and --process from 0 to {processes - 1}"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator, processes or None, process)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of the run did not find each other ({str(error).splitlines()[0]})"
        ) from error


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """While there is nothing to save, SIGTERM leaves with the exit code that asks to be started again.

    The loop replaces this by a save. With several processes JAX owns the signal.
    """
    if jax.distributed.is_initialized() or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_):
        raise SystemExit(PREEMPTED)

    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def restored(
    checkpoints: Checkpoints, shapes: TrainState, shardings: TrainState
) -> tuple[TrainState | None, History]:
    """State and history of the newest sound checkpoint; (None, a new history) where there is none."""
    abstract = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    rest = {"opt_state": abstract.opt_state, "ema": abstract.ema, "bad": abstract.bad, "step": abstract.step}
    found = checkpoints.restore(abstract.params, rest)
    if found is None:
        return None, History()
    _, params, rest, progress = found
    progress.pop("step")
    return TrainState(rest["step"], params, rest["opt_state"], rest["ema"], rest["bad"]), History(**progress)


def budget_loss(training: TrainingConfig) -> BudgetLossConfig:
    """With the end of the noise on gates, which is that of the training where nothing else is said."""
    steps = training.budget.noise_steps or training.max_steps
    return dataclasses.replace(training.budget, noise_steps=steps)


def _units() -> int:
    """Devices whose peaks add up; virtual ones on a CPU share its cores."""
    return 1 if jax.default_backend() == "cpu" else jax.device_count()


if __name__ == "__main__":
    sys.exit(main())
