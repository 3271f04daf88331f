"""Functions that each device of a mesh runs by itself, on its own part of the arrays.

The compiler divides everything else, and knows no device that does other things than the others: what depends on the
rows that a device has, or is different on different devices, stands in here.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from flaxnmt.sharding import Rules, axes_of, constrain, row_ways
from flaxnmt.typing import PyTree

T = TypeVar("T")
Names = tuple[str | None, ...]


def over_shards(function: Callable[..., T], inputs: Sequence[Names], output: Names) -> Callable[..., T]:
    """The function on the part of each array that a device has.

    For what no compiler divides, such as a kernel, and for what is done in parts that follow from the size of the arrays.
    Outside of `use_mesh`, and where a device is alone, it is the function itself.

    Args:
      function: of trees of arrays, to one.
      inputs: logical axes of each of its arguments, the same for all arrays of a tree.
      output: of its result.
    """
    given = nn.get_logical_axis_rules()
    if not given or jax.sharding.get_abstract_mesh().are_all_axes_manual:
        return function
    rules = Rules(**dict(given))
    specs = tuple(rules.spec(names) for names in inputs)
    return jax.shard_map(function, in_specs=specs, out_specs=rules.spec(output), check_vma=False)


def is_divided() -> bool:
    """Whether the compiler divides arrays over several devices here, each of which then knows a part of the rows."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.size > 1 and not mesh.are_all_axes_manual


def rows_fill(mesh: Mesh | AbstractMesh, rules: Rules = Rules()) -> bool:
    """Whether every device of a mesh of several has rows of its own: no axis divides the work on a row."""
    return 1 < mesh.size == row_ways(mesh, rules)


def each_alone(function: Callable[[PyTree, PyTree], T]) -> Callable[[PyTree, PyTree], T]:
    """function(whole, rows) on the rows of each device, as if there were no other: nothing is sent meanwhile.

    So a device skips and stops by what its own rows need, where a program that the compiler divides would have to ask
    all others. What lies in parts, as parameters do under FSDP, is gathered once before. Outside of `use_mesh`, and
    where devices share the work on a row (a `model` axis), it is the function itself.

    Args:
      function: of what every device needs whole, such as parameters, and of arrays whose first axis has the rows of a
        batch, which divide by the devices; to arrays with such an axis. No row may change another one.
    """
    given = nn.get_logical_axis_rules()
    if not given or not rows_fill(jax.sharding.get_abstract_mesh(), rules := Rules(**dict(given))):
        return function

    by_rows = rules.spec(("batch",))
    alone = _alone(function, axes_of(rules.batch))
    return jax.shard_map(alone, in_specs=(PartitionSpec(), by_rows), out_specs=by_rows, check_vma=False)


def summed_alone(function: Callable[[PyTree, PyTree], T]) -> Callable[[PyTree, PyTree], T]:
    """function(whole, rows) on the rows of each device, its results added up: for sums over the rows of a batch.

    Gradients are added up, too. Where `each_alone` is the function itself, so is this.

    Args:
      function: of what every device needs whole and of arrays whose first axis has the rows of a batch, to sums over
        these rows.
    """
    given = nn.get_logical_axis_rules()
    if not given or not rows_fill(jax.sharding.get_abstract_mesh(), rules := Rules(**dict(given))):
        return function
    axes = axes_of(rules.batch)
    alone = _alone(lambda whole, rows: jax.lax.psum(function(whole, rows), axes), axes)
    specs = {"in_specs": (PartitionSpec(), rules.spec(("batch",))), "out_specs": PartitionSpec()}
    return jax.shard_map(alone, **specs, check_vma=False)


def _alone(function: Callable[..., T], axes: tuple[str, ...]) -> Callable[..., T]:
    """The function where it knows of its mesh only by which axes its rows are a part of those of the batch."""

    def alone(*args):
        with nn.logical_axis_rules((("batch", axes),)):
            return function(*args)

    return alone


def first_row(count: int) -> jax.Array:
    """Where in the batch the `count` rows begin that a device has alone, uint32; 0 where arrays have all rows."""
    alone = jax.sharding.get_abstract_mesh().are_all_axes_manual
    axes = dict(nn.get_logical_axis_rules()).get("batch") if alone else None
    return jnp.asarray(jax.lax.axis_index(axes) * count if axes else 0, jnp.uint32)


def branch_groups() -> int:
    """G, into how many groups the rules divide encoders that read the same source; 1 where one follows the other."""
    axis = dict(nn.get_logical_axis_rules()).get("branches")
    return 1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis]


def side_by_side(
    functions: Sequence[Callable[[PyTree, PyTree], PyTree]], whole: PyTree, rows: PyTree
) -> PyTree:
    """functions[g](whole, rows) for each of the G groups, all at the same time; results [G, B, ...].

    G devices, one of each group, share rows: each computes its function of all of them. What it needs is gathered before
    and gradients are added up afterwards, so that nothing is sent while devices do different things.

    Args:
      functions: G of them, to arrays with a leading axis of rows, of the same shapes.
      whole: what every device needs whole, such as parameters.
      rows: arrays, the first of which has a leading axis of rows, B; of the others those of as many.
    """
    rules = Rules(**dict(nn.get_logical_axis_rules()))
    own = tuple(axis for axis in axes_of(rules.batch) if axis != rules.branches)
    count = len(jax.tree.leaves(rows)[0])
    by_rows = jax.tree.map(
        lambda leaf: PartitionSpec(own) if leaf.ndim and len(leaf) == count else PartitionSpec(), rows
    )

    def mine(whole, rows):
        found = jax.lax.switch(jax.lax.axis_index(rules.branches), functions, whole, rows)
        return jax.tree.map(lambda y: y[None], found)

    specs = {"in_specs": (PartitionSpec(), by_rows), "out_specs": PartitionSpec(rules.branches, own)}
    found = jax.shard_map(_alone(mine, own), **specs, check_vma=False)(whole, rows)
    return jax.tree.map(lambda y: constrain(y, None, "batch", ...), found)
