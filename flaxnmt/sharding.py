"""Meshes, logical axes and the rules that join them.

Parameters and activations name their dimensions with logical axes (`batch, length, embed, mlp, heads,
kv, vocab, layers`); `Rules` says on which mesh axis each of them lies. `use_mesh` enters mesh and rules
together, because either one alone makes every constraint a silent no-op; outside of it `constrain` is the
identity, so that modules need no mesh, and inside an unknown name raises.

Mesh axes are `data, fsdp, model`, of which slices share `data` alone. State is initialised already sharded. Rows of
a batch are a multiple of a constant of the configuration, never of the number of devices.
"""

import contextlib
import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from flaxnmt.errors import ConfigError
from flaxnmt.typing import Int, PyTree

MESH_AXES = ("data", "fsdp", "model")

MeshAxes = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Rules:
    """The mesh axes on which each logical axis lies; None keeps it whole on every device."""

    batch: MeshAxes = ("data", "fsdp")
    length: MeshAxes = None
    embed: MeshAxes = "fsdp"
    mlp: MeshAxes = "model"
    heads: MeshAxes = "model"
    kv: MeshAxes = None
    vocab: MeshAxes = "model"
    layers: MeshAxes = None
    activation: MeshAxes = None
    """The model dimension of activations, which must not follow `embed` onto the axis of the batch."""
    branches: MeshAxes = None
    """Encoders that read the same source; None computes one after the other on every device."""

    def items(self) -> tuple[tuple[str, MeshAxes], ...]:
        return tuple((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))

    def spec(self, names: tuple[str | None, ...]) -> PartitionSpec:
        """Partition spec of an array whose dimensions have these logical names.

        Raises:
          ConfigError: for an unknown name, or two dimensions on one mesh axis.
        """
        table = dict(self.items())
        unknown = [name for name in names if name is not None and name not in table]
        if unknown:
            raise ConfigError(f"unknown logical axes {unknown}: expected some of {sorted(table)}")
        axes = [None if name is None else table[name] for name in names]
        used = [axis for entry in axes for axis in axes_of(entry)]
        if len(set(used)) != len(used):
            raise ConfigError(f"logical axes {names} put two dimensions on one mesh axis: {axes}")
        return PartitionSpec(*axes)


BRANCHES_APART = Rules(batch=MESH_AXES, mlp=None, heads=None, vocab=None, branches="model")
"""Encoders side by side on the devices of the `model` axis, which divides rows everywhere else."""


def make_mesh(data: int = -1, fsdp: int = 1, model: int = 1, devices: list[jax.Device] | None = None) -> Mesh:
    """A (data, fsdp, model) mesh over the devices; -1 takes what the other axes leave.

    Several slices share the data axis alone: only gradients cross the network between them.

    Raises:
      ConfigError: if the sizes do not multiply to the number of devices, `data` does not divide by the slices, or the
        devices cannot be arranged so.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, model]
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise ConfigError(f"mesh {dict(zip(MESH_AXES, sizes))}: sizes are positive and at most one is -1")
    if -1 in sizes:
        sizes[sizes.index(-1)] = max(1, len(devices) // math.prod(size for size in sizes if size != -1))
    if math.prod(sizes) != len(devices):
        raise ConfigError(
            f"mesh {_said(sizes)} needs {math.prod(sizes)} devices and there are {len(devices)}: "
            "change --mesh.data, --mesh.fsdp or --mesh.model so that their product fits"
        )
    return Mesh(arranged(sizes, devices), MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))


def arranged(sizes: Sequence[int], devices: Sequence[jax.Device]) -> np.ndarray:
    """The devices as an array of these sizes, neighbours along the last axes, slices along the first.

    Raises:
      ConfigError: if the first size does not divide by the slices, or the devices cannot be arranged so.
    """
    # Hosts of GPUs have numbers of slices, too, and any axis may cross the network between them.
    numbers = {getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"}
    slices = len(numbers) or 1
    data, *rest = sizes
    if data % slices:
        raise ConfigError(
            f"mesh {_said(sizes)}: {slices} slices share the data axis alone, so make --mesh.data a multiple of {slices}"
        )
    try:
        if slices == 1:
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        within, between = (data // slices, *rest), (slices, *(1 for _ in rest))
        return mesh_utils.create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)
    except (AssertionError, NotImplementedError, ValueError) as error:
        # What JAX raises, by generation, where devices are no whole slice; its messages name every one of them.
        raise ConfigError(
            f"mesh {_said(sizes)}: these {len(devices)} devices make no whole slices of one size"
        ) from error


def _said(sizes: Sequence[int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in zip(MESH_AXES, sizes))


@contextlib.contextmanager
def use_mesh(mesh: Mesh, rules: Rules = Rules()) -> Iterator[Mesh]:
    """Enters mesh and rules together; inside, `constrain` is live."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules.items()):
        yield mesh


def constrain(x: jax.Array, *names: Any) -> jax.Array:
    """Constrains the dimensions of `x` to their logical axes; `...` stands for dimensions that have none.

    Outside of `use_mesh` it is the identity, so that modules serve in projects without a mesh, and so it is where a
    device is alone (`each_alone`); inside, an unknown name raises rather than leaving the dimension unsharded.
    """
    if not nn.get_logical_axis_rules() or jax.sharding.get_abstract_mesh().are_all_axes_manual:
        return x
    if ... in names:
        gap = names.index(...)
        names = (*names[:gap], *(None,) * (x.ndim - len(names) + 1), *names[gap + 1 :])
    return nn.with_logical_constraint(x, names, fallback=nn.spmd.RulesFallback.RAISE_ERROR)


def compiler_options(mesh: Mesh) -> dict[str, str] | None:
    """What the compiler is told of a program on this mesh, as `jax.jit` takes it.

    With FSDP on TPUs weights are gathered whole before a product. XLA would else gather them in parts, in loops for which
    it copies operands and results: `python -m tpu.plan transformer_base --slice v5e-16 --model.scan --mesh.data 1
    --mesh.fsdp 16` then needs 0.4 GiB more on each device.
    """
    if mesh.shape["fsdp"] == 1 or mesh.devices.flat[0].platform != "tpu":
        return None
    return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": str(2**20)}


def axes_of(axes: MeshAxes) -> tuple[str, ...]:
    """The mesh axes of one logical axis."""
    return (axes,) if isinstance(axes, str) else axes or ()


def row_ways(mesh: Mesh | AbstractMesh, rules: Rules = Rules()) -> int:
    """The devices that share the rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in axes_of(rules.batch))


def check_rows(rows: int, mesh: Mesh, rules: Rules = Rules()) -> None:
    """Raises ConfigError if the rows do not divide by the devices that share them."""
    ways = row_ways(mesh, rules)
    if rows % ways:
        raise ConfigError(
            f"batches of {rows} rows do not divide by the {ways} devices that share them: make --data.batch-tokens "
            "or --data.rows-multiple a multiple that does, or use a mesh with fewer data and fsdp devices"
        )


def unsharded(boxed: PyTree, mesh: Mesh, rules: Rules = Rules()) -> tuple[list[str], float]:
    """Parameters that every device holds whole, largest first, and their share of all (by the number of values).

    `boxed` are logically partitioned parameters or their shapes.
    """
    found, total = [], 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_boxed):
        shape = leaf.value.shape if is_boxed(leaf) else leaf.shape
        spec = rules.spec(leaf.names) if is_boxed(leaf) else PartitionSpec()
        axes = {axis for entry in spec for axis in axes_of(entry)}
        total += math.prod(shape)
        if all(mesh.shape[axis] == 1 for axis in axes):
            found.append((math.prod(shape), jax.tree_util.keystr(path, simple=True, separator="/")))
    found.sort(reverse=True)
    return [name for _, name in found], sum(size for size, _ in found) / max(total, 1)


MAY_BE_WHOLE = 0.02
"""Share of the parameters that may be whole on every device of a mesh with FSDP: norms and biases."""


def check_sharded(boxed: PyTree, mesh: Mesh, rules: Rules = Rules()) -> list[str]:
    """Names of the parameters that FSDP leaves whole on every device.

    Raises:
      ConfigError: if they are more than a fiftieth of all.
    """
    if mesh.shape["fsdp"] == 1:
        return []
    names, share = unsharded(boxed, mesh, rules)
    if share > MAY_BE_WHOLE:
        raise ConfigError(
            f"--mesh.fsdp {mesh.shape['fsdp']}: {share:.0%} of the parameters would be whole on every device "
            f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}), which is what it is to avoid: a larger model, "
            "or --mesh.fsdp 1"
        )
    return names


def in_few_words(names: Sequence[str]) -> str:
    """Names of parameters with commas; those of several layers as one, with how many they are."""
    counts = Counter(re.sub(r"\blayers_\d+", "layers_*", name) for name in names)
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


def is_boxed(leaf) -> bool:
    """Whether this is a parameter that still carries its logical axes."""
    return isinstance(leaf, nn.LogicallyPartitioned)


def unbox(tree: PyTree) -> PyTree:
    """The tree without logical axes. Unlike `nn.unbox` it adds no constraint, so it works on shapes too."""
    return jax.tree.map(lambda leaf: leaf.value if is_boxed(leaf) else leaf, tree, is_leaf=is_boxed)


def tree_shardings(boxed: PyTree, mesh: Mesh, rules: Rules = Rules()) -> PyTree:
    """NamedShardings for a tree of logically partitioned parameters (as `init` returns them).

    Raises:
      ConfigError: if a dimension does not divide by the devices that share it.
    """

    def sharding(path, leaf):
        spec = rules.spec(leaf.names) if is_boxed(leaf) else PartitionSpec()
        shape = leaf.value.shape if is_boxed(leaf) else leaf.shape
        for size, entry in zip(shape, spec):
            axes = axes_of(entry)
            ways = math.prod(mesh.shape[axis] for axis in axes)
            if size % ways:
                raise ConfigError(
                    f"parameter {jax.tree_util.keystr(path)} of shape {shape}: dimension {size} does not "
                    f"divide by the {ways} devices of mesh axes {axes}"
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, boxed, is_leaf=is_boxed)


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh, rules: Rules = Rules()) -> dict[str, jax.Array]:
    """A global batch out of the rows that each process loaded (`owned_rows`), laid over the axes of `batch`."""
    sharding = NamedSharding(mesh, rules.spec(("batch",)))
    ways = row_ways(mesh, rules)
    # Said, since it could only be inferred where the rows of a process are neighbours.
    own = len(_owned_parts(ways, sharding))

    def placed(rows: np.ndarray) -> jax.Array:
        shape = (len(rows) * ways // own, *rows.shape[1:])
        return jax.make_array_from_process_local_data(sharding, rows, shape)

    return {name: placed(rows) for name, rows in batch.items()}


def owned_rows(rows: int, mesh: Mesh, rules: Rules = Rules()) -> Int[np.ndarray, " own"]:
    """The rows of a global batch that this process loads, in their order.

    They need not be neighbours: a mesh puts the chips of a slice in the order of their links, not of their hosts.

    Raises:
      ConfigError: if the rows do not divide by the devices that share them.
    """
    check_rows(rows, mesh, rules)
    parts = _owned_parts(rows, NamedSharding(mesh, rules.spec(("batch",))))
    return np.concatenate([np.arange(*part) for part in parts])


def _owned_parts(rows: int, sharding: NamedSharding) -> list[tuple[int, int]]:
    """Beginning and end of the runs of rows that devices of this process hold, each once."""
    indices = sharding.addressable_devices_indices_map((rows,)).values()
    return sorted({index[0].indices(rows)[:2] for index in indices})
