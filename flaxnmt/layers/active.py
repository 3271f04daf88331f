"""Computing a function of rows for some of the rows, and in the time of some of the rows.

Shapes are static under jit. So the active rows are brought to the front, and one of seventeen programs is run: for no
row, a sixteenth of all, two sixteenths, up to all. Pieces that add up to any number of sixteenths would be five programs
to compile, but every product of matrices has its costs before the first row, and there would be several for one.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from flaxnmt.each_device import is_divided
from flaxnmt.typing import Array, Bool, Float, Int, PyTree

PARTS = 16

FEWEST = 8
"""Rows of the smallest part: fewer save microseconds, and each size is another program to compile."""


def on_active(
    function: Callable[[Float[Array, "*R D"]], PyTree],
    x: Float[Array, "*R D"],
    active: Bool[Array, "*R"] | None,
) -> PyTree:
    """function(x) where a row is active, and zeros elsewhere; without `active` function(x) as it is.

    The function must take each row by itself: [..., R, D] to arrays [..., R, *rest]. It is computed for as many
    rows as are active, rounded up to a sixteenth of all, at least to 8, and not at all where there are none. It rests on
    `lax.switch`, which under `vmap` runs all programs: leave `active` out there. Where the compiler divides rows over
    several devices, and those of one cannot be counted without asking the others, all are computed; inside
    `flaxnmt.each_device.each_alone` every device counts its own.
    """
    if active is None:
        return function(x)
    if is_divided():
        return jax.tree.map(lambda y: _where(active, y), function(x))
    rows, flags = x.reshape(-1, x.shape[-1]), active.reshape(-1)
    unit = max(-(-flags.size // PARTS), FEWEST)
    sizes = [*range(0, flags.size, unit), flags.size]
    rank = jnp.cumsum(flags) - 1
    # Where nothing is active any row serves, since nobody reads what becomes of it.
    front = jnp.zeros(flags.size, jnp.int32)
    front = front.at[jnp.where(flags, rank, flags.size)].set(
        jnp.arange(flags.size, dtype=jnp.int32), mode="drop"
    )
    shapes = jax.eval_shape(function, rows[None])

    def program(size: int):
        def nothing():
            return jax.tree.map(lambda y: jnp.zeros((flags.size, *y.shape[2:]), y.dtype), shapes)

        def whole():
            return jax.tree.map(lambda y: _where(flags, y[0]), function(rows[None]))

        def some():
            y = function(rows.at[front[:size]].get(mode="promise_in_bounds")[None])
            back = jnp.clip(rank, 0, size - 1)
            return jax.tree.map(lambda y: _where(flags, y[0].at[back].get(mode="promise_in_bounds")), y)

        return {0: nothing, flags.size: whole}.get(size, some)

    y = lax.switch(-(-flags.sum() // unit), [program(size) for size in sizes])
    return jax.tree.map(lambda y: y.reshape(*active.shape, *y.shape[1:]), y)


def picked(x: Float[Array, "*B L D"], places: Int[Array, "*B P"]) -> Float[Array, "*B P D"]:
    """The rows at these places of each sequence."""
    return jnp.take_along_axis(x, places[..., None], axis=-2)


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
