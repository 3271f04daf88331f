"""What a run calls in a step, as shapes that lie on the devices of a slice, ready for the compiler."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxnmt.config import Config
from flaxnmt.each_device import rows_fill
from flaxnmt.errors import ConfigError
from flaxnmt.models.families import batch_shapes, example_inputs, module
from flaxnmt.sharding import (
    BRANCHES_APART,
    Rules,
    check_rows,
    check_sharded,
    make_mesh,
    row_ways,
    tree_shardings,
    unbox,
    use_mesh,
)
from flaxnmt.training.objectives import make_objective
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.schedules import make_schedule
from flaxnmt.training.state import state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep
from flaxnmt.typing import PyTree
from tpu.slices import Slice

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the sources and of the targets of a batch."""


@dataclass(frozen=True)
class Call:
    """A jitted function that a run calls.

    Attributes:
      function: under jit.
      arguments: shapes with shardings.
      times: in a step.
      beside: bytes of a device that are held meanwhile and are no argument.
    """

    function: Callable
    arguments: tuple[Any, ...]
    times: int = 1
    beside: int = 0


@dataclass(frozen=True)
class Work:
    """A step of a run: a training step is an update, of one batch or several.

    Attributes:
      calls: in turn.
      params: shapes of the parameters, with shardings.
      rules: by which it lies on its mesh.
      whole: names of parameters that FSDP leaves whole on every device.
    """

    calls: list[Call]
    params: PyTree
    rules: Rules
    whole: list[str]

    @property
    def weights(self) -> int:
        """Bytes of all parameters together."""
        return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in jax.tree.leaves(self.params))


def planned_devices(slice_: Slice, slices: int) -> list[jax.Device]:
    """The devices of so many slices, which exist for the compiler alone.

    Raises:
      ConfigError: for a topology that the compiler does not know.
    """
    options = {} if slices == 1 else {"num_slices": slices}
    options["chip_config_name"] = slice_.generation.compiler
    try:
        description = topologies.get_topology_desc(slice_.libtpu, "tpu", **options)
    except Exception as error:
        raise ConfigError(
            f"the compiler knows no {slice_.libtpu} ({str(error).splitlines()[0]}): give another --slice or --topology"
        ) from error
    return list(description.devices)


def planned_mesh(config: Config, slice_: Slice, slices: int) -> Mesh:
    """The mesh of the configuration over all devices of the slices.

    Raises:
      ConfigError: as `make_mesh`.
    """
    return make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model, planned_devices(slice_, slices))


def train_step(config: Config, mesh: Mesh, shape: Shape) -> Work:
    """An update of a run, from batches of this shape.

    Raises:
      ConfigError: for what a training refuses: rows that do not divide by the devices that share them, too many
        parameters that FSDP leaves whole, or dimensions that do not divide.
    """
    training, vocabulary = config.training, config.data.tokenizer.vocab_size
    rules = BRANCHES_APART if config.mesh.branches else Rules()
    check_rows(config.data.rows_multiple, mesh, rules)
    model = module(config.model, vocabulary, vocabulary)
    schedule = make_schedule(config.optimizer, config.model.d_model, training.max_steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    objective = make_objective(model, training, mesh)

    def init(key):
        return model.init(key, *example_inputs(config.model, config.data.rows_multiple))

    whole = check_sharded(jax.eval_shape(lambda: init(jax.random.key(0)))["params"], mesh, rules)
    # Outside of the mesh, whose devices can run nothing: shapes of an optimizer are found by running its init.
    shapes, shardings = state_shardings(init, optimizer, training.ema is not None, mesh, rules)
    state = jax.tree.map(_placed, shapes, shardings)
    by_rows = NamedSharding(mesh, rules.spec(("batch",)))
    batch = {
        name: jax.ShapeDtypeStruct(size, jnp.int32, sharding=by_rows)
        for name, size in batch_shapes(config.model, *shape).items()
    }
    step = TrainStep(objective, optimizer, schedule, training.ema)
    with use_mesh(mesh, rules):
        called = CompiledStep(step, shardings, training.seed, training.accumulate).calls(state, batch)
    rest = bytes_of((state.opt_state, state.ema, state.bad))
    calls = [
        Call(function, arguments, times, 0 if arguments[0] is state else rest)
        for function, arguments, times in called
    ]
    return Work(calls, state.params, rules, whole)


def beam_step(config: Config, mesh: Mesh, shape: Shape) -> Work:
    """One position of the beam search of a run; rows of the search lie over the data axes.

    Raises:
      ConfigError: for rows that do not divide by the devices that share them.
    """
    vocabulary, beams = config.data.tokenizer.vocab_size, config.decoding.beam_size
    model = module(config.model, vocabulary, vocabulary)
    source, target = shape
    sources = source[0]
    if sources % row_ways(mesh):
        raise ConfigError(
            f"batches of {sources} rows do not divide by the {row_ways(mesh)} devices that share them: make "
            "--decoding.batch-size a multiple of that"
        )
    boxed = jax.eval_shape(
        lambda: model.init(jax.random.key(0), *example_inputs(config.model, config.data.rows_multiple))[
            "params"
        ]
    )
    shardings = tree_shardings(boxed, mesh)
    if rows_fill(mesh):
        # A search gathers them once before, however they lie (`each_alone`).
        shardings = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), shardings)
    params = jax.tree.map(_placed, unbox(boxed), shardings)
    rows = math.prod(source[:-1])

    def start(params, source):
        return model.apply({"params": params}, source, beams, target[-1], method="start")

    cache = jax.eval_shape(start, params, jax.ShapeDtypeStruct(source, jnp.int32))

    def by_rows(leaf):
        # The rows are the first axis, or the second where layers are scanned.
        axis = next((i for i, size in enumerate(leaf.shape[:2]) if size in (rows, sources)), None)
        spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, *Rules().spec(("batch",)))
        return _placed(leaf, NamedSharding(mesh, spec))

    tokens = by_rows(jax.ShapeDtypeStruct((rows, beams), jnp.int32))
    position = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))

    def step(params, cache, tokens, position):
        return model.apply({"params": params}, cache, tokens, position, method="step")

    arguments = params, jax.tree.map(by_rows, cache), tokens, position
    return Work([Call(jax.jit(step, donate_argnums=1), arguments)], params, Rules(), [])


def _placed(leaf, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def bytes_of(placed: PyTree) -> int:
    """Of a tree of shapes with shardings, on one device."""
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(placed)
    )
