"""The programs of a run, compiled for a TPU slice on a machine without one: by libtpu's XLA, ahead of time."""

import importlib.util
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flaxnmt.config import Config
from flaxnmt.errors import ConfigError
from tpu.hlo import Collective, collectives
from tpu.slices import Slice

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # libtpu asks the metadata server of a TPU machine who it is; there is none.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    # Nobody holds a TPU here, so that several plans may be made at once.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the sources and of the targets of a batch."""


@dataclass(frozen=True)
class Program:
    """What the compiler says of a program, in bytes on one device.

    Attributes:
      arguments: parameters, optimizer and batch.
      parameters: of these the parameters.
      temporaries: activations and everything else that lives for a step.
      outputs: results that do not lie where arguments lay.
      code: the program itself.
      collectives: by kind.
      touched: bytes that operations read and write, as XLA counts them; a scanned body counts once.
    """

    arguments: int
    parameters: int
    temporaries: int
    outputs: int
    code: int
    collectives: dict[str, Collective]
    touched: float

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries + self.outputs + self.code


class DoesNotFit(ConfigError):
    """The compiler found no room in the memory of a device.

    Attributes:
      used: bytes that the program needs; 0 where the compiler does not say.
    """

    def __init__(self, message: str, used: int = 0):
        super().__init__(message)
        self.used = used


def prepare_environment() -> None:
    """Lets libtpu compile here; before JAX starts.

    Raises:
      ConfigError: without libtpu.
    """
    os.environ.update(ENVIRONMENT)
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError("planning needs the TPU compiler: make tpu-install, or pip install 'jax[tpu]'")


def topology_devices(slice_: Slice, slices: int) -> list:
    """The devices of so many slices, which exist for the compiler alone.

    Raises:
      ConfigError: for a topology that the compiler does not know.
    """
    from jax.experimental import topologies

    options = {} if slices == 1 else {"num_slices": slices}
    try:
        description = topologies.get_topology_desc(slice_.libtpu, "tpu", **options)
    except Exception as error:
        raise ConfigError(
            f"the compiler knows no {slice_.libtpu} ({str(error).splitlines()[0]}): give another --slice or --topology"
        ) from error
    return list(description.devices)


def make_planned_mesh(config: Config, slice_: Slice, slices: int):
    """The mesh of the configuration over all devices; several slices share the data axis alone.

    Raises:
      ConfigError: for sizes that do not multiply to the devices.
    """
    import numpy as np
    from jax.experimental import mesh_utils
    from jax.sharding import AxisType, Mesh

    from flaxnmt.sharding import MESH_AXES, make_mesh

    devices, wanted = topology_devices(slice_, slices), config.mesh
    if slices == 1:
        return make_mesh(wanted.data, wanted.fsdp, wanted.model, devices)
    per_slice = len(devices) // slices
    data = wanted.data
    if data == -1:
        data = len(devices) // (wanted.fsdp * wanted.model)
    if data * wanted.fsdp * wanted.model != len(devices) or data % slices:
        raise ConfigError(
            f"mesh data {data} x fsdp {wanted.fsdp} x model {wanted.model}: {slices} slices of {per_slice} devices share "
            "the data axis, which must be a multiple of them"
        )
    grid = mesh_utils.create_hybrid_device_mesh(
        (data // slices, wanted.fsdp, wanted.model), (slices, 1, 1), devices=np.asarray(devices)
    )
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def rules_of(config: Config):
    """By which a training lies on its mesh."""
    from flaxnmt.sharding import BRANCHES_APART, Rules

    return BRANCHES_APART if config.mesh.branches else Rules()


def train_step(config: Config, mesh, shape: Shape) -> tuple[Callable, tuple, int]:
    """The training step of a run: (jitted, arguments as shapes with shardings, bytes of parameters on a device)."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    from flaxnmt.models.families import batch_shapes, example_inputs, module
    from flaxnmt.training.objectives import make_objective
    from flaxnmt.training.optimizers import make_optimizer
    from flaxnmt.training.schedules import make_schedule
    from flaxnmt.training.state import state_shardings
    from flaxnmt.training.step import CompiledStep, TrainStep

    training, vocabulary = config.training, config.data.tokenizer.vocab_size
    model = module(config.model, vocabulary, vocabulary)
    schedule = make_schedule(config.optimizer, config.model.d_model, training.max_steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    chunk = training.loss_chunk if mesh.size == 1 else None
    objective = make_objective(model, training, chunk)

    def init(key):
        return model.init(key, *example_inputs(config.model, config.data.rows_multiple))

    rules = rules_of(config)
    shapes, shardings = state_shardings(init, optimizer, training.ema is not None, mesh, rules)
    step = TrainStep(objective, optimizer, schedule, training.seed, training.ema)
    by_rows = NamedSharding(mesh, rules.spec(("batch",)))

    def placed(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state = jax.tree.map(placed, shapes, shardings)
    batch = {
        name: jax.ShapeDtypeStruct(size, jnp.int32, sharding=by_rows)
        for name, size in batch_shapes(config.model, *shape).items()
    }
    return CompiledStep(step, shardings)._whole, (state, batch), bytes_of(state.params)


def beam_step(config: Config, mesh, shape: Shape) -> tuple[Callable, tuple, int]:
    """One position of the beam search of a run, as `train_step`; rows of the search lie over the data axes."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from flaxnmt.models.families import example_inputs, module
    from flaxnmt.sharding import Rules, tree_shardings, unbox

    vocabulary, beams = config.data.tokenizer.vocab_size, config.decoding.beam_size
    model = module(config.model, vocabulary, vocabulary)
    source, target = shape
    boxed = jax.eval_shape(
        lambda: model.init(jax.random.key(0), *example_inputs(config.model, config.data.rows_multiple))[
            "params"
        ]
    )

    def placed(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    params = jax.tree.map(placed, unbox(boxed), tree_shardings(boxed, mesh))
    rows = math.prod(source[:-1])

    def start(params, source):
        return model.apply({"params": params}, source, beams, target[-1], method="start")

    cache = jax.eval_shape(start, params, jax.ShapeDtypeStruct(source, jnp.int32))

    def by_rows(leaf):
        # The rows are the first axis, or the second where layers are scanned.
        axis = next((i for i, size in enumerate(leaf.shape[:2]) if size in (rows, source[0])), None)
        spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, *Rules().spec(("batch",)))
        return placed(leaf, NamedSharding(mesh, spec))

    tokens = by_rows(jax.ShapeDtypeStruct((rows, beams), jnp.int32))
    position = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))

    def step(params, cache, tokens, position):
        return model.apply({"params": params}, cache, tokens, position, method="step")

    inputs = params, jax.tree.map(by_rows, cache), tokens, position
    return jax.jit(step, donate_argnums=1), inputs, bytes_of(params)


def bytes_of(placed) -> int:
    """Of a tree of shapes with shardings, on one device."""
    import jax

    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(placed)
    )


def compile_program(jitted: Callable, arguments: tuple[Any, ...], parameters: int) -> Program:
    """Compiles for the devices of the arguments.

    Raises:
      DoesNotFit: where the compiler finds no room.
    """
    try:
        compiled = jitted.lower(*arguments).compile()
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(*_exhausted(str(error))) from error
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return Program(
        arguments=memory.argument_size_in_bytes,
        parameters=parameters,
        temporaries=memory.temp_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        collectives=collectives(compiled.as_text()),
        touched=cost.get("bytes accessed", 0.0),
    )


def _exhausted(message: str) -> tuple[str, int]:
    """The compiler's words on memory in one line, and the bytes that it wanted."""
    said = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", message)
    if said is None:
        return message.splitlines()[0], 0
    scale = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return (
        f"needs {said[1]}{said[2]} of {said[3]}{said[4]} of memory on each device",
        int(float(said[1]) * scale[said[2]]),
    )
