"""Computing a function of rows for some of the rows, and in the time of some of the rows.

Shapes are static under jit. So the active rows are brought to the front and computed in pieces of a half, a quarter,
an eighth and a sixteenth of all rows, each of which is computed or not: in sixteenths any number of rows is a sum of
them, and there are five programs to compile and not seventeen.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from flaxnmt.each_device import is_divided
from flaxnmt.typing import Array, Bool, Float, PyTree

PIECES = (8, 4, 2, 1)
"""Sizes of the pieces, in sixteenths of the rows."""

PARTS = 16


def on_active(
    function: Callable[[Float[Array, "*R D"]], PyTree],
    x: Float[Array, "*R D"],
    active: Bool[Array, "*R"] | None,
) -> PyTree:
    """function(x) where a row is active, and zeros elsewhere; without `active` function(x) as it is.

    The function must take each row by itself: [..., R, D] to arrays [..., R, *rest]. It is computed for as many
    rows as are active, rounded up to a sixteenth of all, and not at all where there are none. It rests on
    `lax.cond`, which under `vmap` computes everything. Where the compiler divides rows over several devices, and those
    of one cannot be counted without asking the others, all are computed; inside `flaxnmt.each_device.each_alone` every
    device counts its own.
    """
    if active is None:
        return function(x)
    if is_divided():
        return jax.tree.map(lambda y: _where(active, y), function(x))
    rows, flags = x.reshape(-1, x.shape[-1]), active.reshape(-1)
    unit = -(-flags.size // PARTS)
    parts = -(-flags.sum() // unit)

    def whole():
        return jax.tree.map(lambda y: _where(flags, y[0]), function(rows[None]))

    def some():
        return _pieces(function, rows, flags, parts, unit)

    y = lax.cond(parts * unit >= flags.size, whole, some)
    return jax.tree.map(lambda y: y.reshape(*active.shape, *y.shape[1:]), y)


def _pieces(function, rows: Float[Array, "R D"], flags: Bool[Array, " R"], parts: Array, unit: int) -> PyTree:
    """`on_active` for fewer than all rows: of `parts` units of rows."""
    count = flags.size
    rank = jnp.cumsum(flags) - 1
    places = jnp.where(flags, rank, PARTS * unit)
    # Where nothing is active any row serves, since nobody reads what becomes of it.
    front = jnp.zeros(PARTS * unit, jnp.int32).at[places].set(jnp.arange(count, dtype=jnp.int32), mode="drop")
    shapes = jax.eval_shape(function, rows[None])
    compact = jax.tree.map(lambda y: jnp.zeros((PARTS * unit, *y.shape[2:]), y.dtype), shapes)
    start = jnp.zeros((), parts.dtype)
    for piece in PIECES:
        taken = parts & piece

        def compute(compact, start, size=piece * unit):
            index = lax.dynamic_slice_in_dim(front, start, size)
            computed = function(rows.at[index].get(mode="promise_in_bounds")[None])
            return jax.tree.map(
                lambda whole, y: lax.dynamic_update_slice_in_dim(whole, y[0], start, 0), compact, computed
            )

        compact = lax.cond(taken > 0, compute, lambda compact, start: compact, compact, start)
        start += taken * unit
    back = jnp.maximum(rank, 0)
    return jax.tree.map(lambda y: _where(flags, y.at[back].get(mode="promise_in_bounds")), compact)


def if_any(active: Bool[Array, "*R"] | None, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """function(*args) if any row is active, else zeros of its shapes, at no cost."""
    if active is None:
        return function(*args)
    shapes = jax.eval_shape(function, *args)

    def zeros(*_):
        return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), shapes)

    return lax.cond(active.any(), function, zeros, *args)


def _where(active: Bool[Array, "*R"], y: Array) -> Array:
    return jnp.where(active.reshape(*active.shape, *(1,) * (y.ndim - active.ndim)), y, 0)
