"""Moving averages of parameters, and the guard that drops an update with a non-finite loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flaxnmt.typing import Array, Bool, Float, Int, PyTree


def ema_update(average: PyTree, params: PyTree, decay: float, step: Int[Array, ""] | int) -> PyTree:
    """average + (1 - d) (params - average), where d is `decay` once `step` updates are enough for it.

    Before that d is (1 + step) / (10 + step), as in TensorFlow's ExponentialMovingAverage, so that the
    initial values do not linger for 1 / (1 - decay) updates.
    """
    step = jnp.asarray(step, jnp.float32)
    weight = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
    # In this form an average of what does not change is exactly that.
    return jax.tree.map(lambda x, a: a + weight.astype(a.dtype) * (x - a), params, average)


class BadSteps(NamedTuple):
    """Dropped updates: since the start of the run, and since the last update that was kept."""

    total: Int[Array, ""]
    in_a_row: Int[Array, ""]

    @classmethod
    def zero(cls) -> "BadSteps":
        return cls(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def keep_if_finite(
    values: tuple[Float[Array, ""], ...], new: PyTree, old: PyTree, bad: BadSteps
) -> tuple[PyTree, BadSteps]:
    """`new` if all `values` (loss, gradient norm) are finite, else `old`, and the new counters.

    A select, not a branch: it fuses into the loops that compute `new`, and no device waits for the host.
    """
    finite: Bool[Array, ""] = jnp.all(jnp.isfinite(jnp.stack(values)))
    state = jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, old)
    missed = 1 - finite.astype(jnp.int32)
    return state, BadSteps(bad.total + missed, (bad.in_a_row + 1) * missed)
