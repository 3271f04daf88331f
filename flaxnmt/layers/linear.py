"""x W for many rows, with a gradient of W that CPUs compute at the speed of the other products.

Gradients are those of reverse mode; a custom one has no forward mode (`jax.jvp`).
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from flaxnmt.typing import Array, Float


@jax.custom_vjp
def linear(x: Float[Array, "*B I"], weights: Float[Array, "I O"]) -> Float[Array, "*B O"]:
    """x @ weights for every row."""
    return x @ weights


def _forward(x, weights):
    return x @ weights, (x, weights)


def _backward(residuals, cotangent):
    x, weights = residuals
    return cotangent @ weights.T, weight_gradient(x, cotangent)


linear.defvjp(_forward, _backward)


@jax.custom_vjp
def biased(y: Float[Array, "*B O"], bias: Float[Array, " O"]) -> Float[Array, "*B O"]:
    """y + bias for every row, with a gradient of the bias that is a product, too."""
    return y + bias


def _biased_forward(y, bias):
    return y + bias, None


def _biased_backward(_, cotangent):
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    return cotangent, lax.platform_dependent(rows, cpu=_sum_of_rows_on_cpu, default=_sum_of_rows)


biased.defvjp(_biased_forward, _biased_backward)


def _sum_of_rows(rows):
    return rows.sum(0)


def _sum_of_rows_on_cpu(rows):
    # A sum over the leading dimension runs on one core, and a product on all.
    return jnp.ones((1, len(rows)), rows.dtype).dot(rows)[0]


def weight_gradient(x: Float[Array, "*B I"], cotangent: Float[Array, "*B O"]) -> Float[Array, "I O"]:
    """sum over rows of x^T cotangent: the gradient of the weights of `linear`."""
    rows, cotangents = (y.reshape(-1, y.shape[-1]) for y in (x, cotangent))
    return lax.platform_dependent(rows, cotangents, cpu=_over_rows_on_cpu, default=_over_rows)


def _over_rows(rows, cotangents):
    return rows.T @ cotangents


def _over_rows_on_cpu(rows, cotangents):
    # Summing over the leading dimension of both operands, XLA's CPU kernels lose up to half of their speed, by machine and
    # shape, so the narrower operand is really transposed first; barriers and a layout keep XLA from folding that away.
    if rows.shape[1] <= cotangents.shape[1]:
        return _transposed(rows) @ cotangents
    return lax.optimization_barrier(_transposed(cotangents) @ rows).T


def _transposed(x):
    # The layout makes it one pass: where a barrier alone held the transposed array, XLA would copy it twice.
    return with_layout_constraint(lax.optimization_barrier(x).T, Layout((0, 1)))
