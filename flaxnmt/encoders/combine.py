"""Combining the outputs of encoders that read the same source side by side (Hu et al. 2023).

The paper adds them up; learned weights and gates are what it leaves to future work. Each is the plain sum before it
is trained, and of a single encoder the output itself.
"""

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.initializers import partitioned
from flaxnmt.typing import Array, Float

Branch = Float[Array, "*B S D"]


class Sum(nn.Module):
    """The sum of all branches."""

    def __call__(self, branches: Sequence[Branch]) -> Branch:
        return functools.reduce(operator.add, branches)

    def flops(self, d_model: int, rows: int, branches: int) -> int:
        """Of matrix products: none."""
        return 0


class WeightedSum(nn.Module):
    """sum_i w_i y_i with a learned number for each branch, 1 at first.

    Where y_i comes from a norm with a scale and a bias of its own, w_i is a factor of these and adds nothing to what the sum
    can be; it does where one norm stands behind the sum.
    """

    @nn.compact
    def __call__(self, branches: Sequence[Branch]) -> Branch:
        init = partitioned(nn.initializers.ones, None)
        weights = self.param("weights", init, (len(branches),)).astype(branches[0].dtype)
        return Sum(parent=None)([weight * y for weight, y in zip(weights, branches)])

    def flops(self, d_model: int, rows: int, branches: int) -> int:
        """Of matrix products: none."""
        return 0


def branch_gates(
    branches: Sequence[Branch], weights: Float[Array, "I D I"], bias: Float[Array, " I"]
) -> Float[Array, "*B S I"]:
    """I softmax_i(sum_j y_j U_j + b) for I branches: shares that add up to I, float32."""
    logits = bias + sum(y.astype(jnp.float32) @ weight for y, weight in zip(branches, weights))
    return len(branches) * jax.nn.softmax(logits, axis=-1)


class GatedSum(nn.Module):
    """sum_i g_i y_i with a gate for each token and branch, which reads the outputs of all branches; 1 at first."""

    @nn.compact
    def __call__(self, branches: Sequence[Branch]) -> Branch:
        count, d_model = len(branches), branches[0].shape[-1]
        zeros = nn.initializers.zeros
        weights = self.param("weights", partitioned(zeros, None, "embed", None), (count, d_model, count))
        bias = self.param("bias", partitioned(zeros, None), (count,))
        gates = branch_gates(branches, weights, bias).astype(branches[0].dtype)
        return Sum(parent=None)([gates[..., i : i + 1] * y for i, y in enumerate(branches)])

    def flops(self, d_model: int, rows: int, branches: int) -> int:
        """Of matrix products, multiply-adds counted as 2."""
        return 2 * rows * d_model * branches**2
