"""One process of a training: what it is made of, from the command line to its exit code."""

import contextlib
import logging
import os
import sys
import traceback
from importlib.util import find_spec

import jax

from experiments.arguments import Arguments, parse
from experiments.bucket import sharing
from experiments.continuing import check, check_corpus, checkpoints_of, has_checkpoint, made_directory
from experiments.history import History
from experiments.initial import (
    at_word_level,
    check_initial,
    exported,
    frozen_parameters,
    initial_params,
    with_segments,
)
from experiments.loop import Loop
from experiments.preflight import join, preflight
from experiments.record import announce, record, with_machine_of
from experiments.report import write_report
from experiments.supervise import LOST, ON
from experiments.tasks import make_task
from flaxnmt.commands import guarded, quiet
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import uses_splash
from flaxnmt.models.families import example_inputs
from flaxnmt.run_directory import (
    PARAMETERS,
    PROFILE,
    RECORD,
    TOKENIZER,
    local_run,
    read_config,
    save_config,
    write_json,
)
from flaxnmt.runtime import keep_freed_memory
from flaxnmt.sharding import (
    BRANCHES_APART,
    Rules,
    check_sharded,
    in_few_words,
    make_mesh,
    owned_rows,
    unbox,
    use_mesh,
)
from flaxnmt.training.checkpoints import Checkpoints
from flaxnmt.training.failures import in_short
from flaxnmt.training.freezing import freeze, frozen_mask, held
from flaxnmt.training.meters import measure_matmul_peak
from flaxnmt.training.objectives import make_objective
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.phases import Phases
from flaxnmt.training.preemption import PREEMPTED, leaving_at_once
from flaxnmt.training.profiling import ProfiledStep
from flaxnmt.training.schedules import make_schedule
from flaxnmt.training.state import TrainState, init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep

OTHERS_GONE = ("Gloo", "UNAVAILABLE", "DEADLINE_EXCEEDED", "coordination service")
"""What JAX's errors say where a process is missed, if it comes to an error of Python."""

log = logging.getLogger("experiments.process")


def main(argv: list[str]) -> int:
    return guarded(lambda: train(parse(argv), argv), debug="--debug" in argv)


def train(arguments: Arguments, argv: list[str]) -> int:
    """Runs, or continues, a training; its exit code."""
    quiet()
    keep_freed_memory()
    if arguments.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", arguments.compilation_cache)
    with Phases() as phases:
        if arguments.processes is not None:
            join(arguments.coordinator, arguments.processes, arguments.process, arguments.joining())
        with leaving_at_once(), contextlib.ExitStack() as until_end:
            return prepare_and_train(arguments, argv, phases, until_end)


def prepare_and_train(
    arguments: Arguments, argv: list[str], phases: Phases, until_end: contextlib.ExitStack
) -> int:
    """`train` within its cluster."""
    config, window = arguments.resolved(), arguments.window()
    shared = until_end.enter_context(sharing(arguments.run, jax.process_index()))
    directory = shared.local
    expected = arguments.expected()
    if arguments.processes is not None or expected.processes or expected.devices is not None:
        # A process that finds itself alone, too: others may be alone beside it, in the same run directory.
        preflight(config, shared.address, expected, arguments.joining())
    check(config, directory)
    if uses_splash(config.model) and jax.default_backend() != "tpu":
        raise ConfigError("--model.document.kernel splash needs a TPU: give --model.document.kernel xla here")
    if config.training.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError("--training.tensorboard needs tensorboardX: pip install 'flaxnmt[tensorboard]'")
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model)
    rules = BRANCHES_APART if config.mesh.branches else Rules()
    owned_rows(config.data.rows_multiple, mesh, rules)
    training = config.training
    schedule = make_schedule(config.optimizer, config.model.d_model, training.max_steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    begins = arguments.init_from is not None and not has_checkpoint(directory)
    source = local_run(arguments.init_from, PARAMETERS, TOKENIZER) if begins else None
    initial = None
    if source is not None:
        initial = with_segments(exported(source), read_config(source).model)
        initial = at_word_level(initial, config.model)
    first = jax.process_index() == 0
    if first:
        until_end.enter_context(made_directory(directory, config, source))
    task = make_task(config, directory, shared.bring)
    check_corpus(task.corpus, directory)
    objective = minimised = make_objective(task.model, training, mesh)

    def init(key):
        return task.model.init(key, *example_inputs(config.model, config.data.rows_multiple))

    frozen = []
    if training.freeze:
        params = unbox(jax.eval_shape(init, jax.random.key(0))["params"])
        frozen = frozen_parameters(training.freeze, params, initial, directory)
        mask = frozen_mask(params, frozen)
        optimizer, minimised = freeze(optimizer, mask), held(objective, mask)

    # One device's peak, measured outside of the mesh: inside, every array belongs to all devices.
    peak = measure_matmul_peak(config.model.dtype) * _units()
    with use_mesh(mesh, rules):
        whole = check_sharded(jax.eval_shape(init, jax.random.key(0))["params"], mesh, rules)
        if whole and first:
            log.info("whole on every device: %s", in_few_words(whole))
        shapes, shardings = state_shardings(init, optimizer, training.ema is not None, mesh, rules)
        if initial is not None:
            check_initial(initial, shapes.params, arguments.init_from)
        larger = "min" if training.metric == "loss" else "max"
        keep = max(training.keep_last, training.average_count if training.average == "last" else 1)
        best = max(training.keep_best, training.average_count if training.average == "best" else 0)
        with (
            Checkpoints(checkpoints_of(directory), keep, best, larger) as checkpoints,
            contextlib.ExitStack() as stack,
        ):
            with phases.within("restore"):
                state, history = restored(checkpoints, shapes, shardings)
            phases.resume(history.phases)
            if state is None:
                state = init_state(init, optimizer, training.ema is not None, shardings, training.seed)
                if initial is not None:
                    state = initial_params(state, initial, shardings)
            step = CompiledStep(
                TrainStep(minimised, optimizer, schedule, training.ema),
                shardings,
                training.seed,
                training.accumulate,
            )
            evaluator = task.evaluator(objective, state.params, mesh)
            loop = Loop(config, shared, task, step, evaluator, checkpoints, mesh, peak, phases)
            over = loop.is_over(int(state.step), history)
            if first:
                found = record(mesh, state, task, peak, argv, frozen)
                save_config(directory, config)
                write_json(directory / RECORD, with_machine_of(directory / RECORD, found) if over else found)
                announce(config, shared.address, mesh, state, task, history.describe(training.metric))
            if window is not None and first:
                loop.step = stack.enter_context(
                    ProfiledStep(step, window, directory / PROFILE, int(state.step))
                )
            code = loop.run(state, history)
    if first and code == 0:
        log.info("report: %s", shared.address / write_report(directory).name)
        log.info("%s", task.use.format(run=shared.address))
    shared.save(must=True)
    return code


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
    seconds = progress.pop("seconds", 0.0)
    history = History(**progress)
    # A checkpoint from before phases were counted.
    history.phases = history.phases or {"step": seconds}
    return TrainState(rest["step"], params, rest["opt_state"], rest["ema"], rest["bad"]), history


def _units() -> int:
    """Devices whose peaks add up; virtual ones on a CPU share its cores."""
    return 1 if jax.default_backend() == "cpu" else jax.device_count()


def of_lost_process(error: BaseException | None) -> BaseException | None:
    """The error of JAX that says that a process is missed: this one, or what it came of, such as on the way out."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) and any(sign in str(error) for sign in OTHERS_GONE):
            return error
        error = error.__cause__ or error.__context__
    return None


def run_supervised(argv: list[str]) -> None:
    """`main` as the child of a supervisor: where it fails it leaves at once, and does not wait for the others.

    At a regular end JAX waits until all have come as far, which they never would.
    """
    try:
        code = main(argv)
    except Exception as error:
        lost = of_lost_process(error)
        if lost is not None and "--debug" not in argv:
            print(f"error: another process was lost ({in_short(lost)}): {ON}", file=sys.stderr)
        else:
            traceback.print_exc()
        code = 1 if lost is None else LOST
    if code not in (0, PREEMPTED):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run_supervised(sys.argv[1:])
