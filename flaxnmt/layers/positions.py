"""Absolute position encodings: sinusoidal and learned."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from flaxnmt.layers.initializers import partitioned
from flaxnmt.typing import Array, Float, Int


def sinusoids(positions: Int[Array, "..."], d_model: int) -> Float[Array, "... D"]:
    """p_{2i}(k) = sin(k / 10000^{2i/D}), p_{2i+1}(k) = cos(k / 10000^{2i/D}) (Vaswani et al. 2017, 3.5)."""
    rates = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*angles.shape[:-1], -1)[..., :d_model]


class SinusoidalPositions(nn.Module):
    """Sinusoids for arbitrary position ids; no parameters."""

    d_model: int

    def __call__(self, ids: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return sinusoids(ids, self.d_model)


class LearnedPositions(nn.Module):
    """A learned vector a position; ids past the table take its last row.

    Attributes:
      d_model: D.
      length: rows of the table.
    """

    d_model: int
    length: int
    dtype: Any = jnp.float32

    def setup(self):
        init = partitioned(nn.initializers.normal(self.d_model**-0.5), None, "embed")
        self.table = self.param("table", init, (self.length, self.d_model))

    def __call__(self, ids: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return jnp.take(self.table, jnp.minimum(ids, self.length - 1), axis=0).astype(self.dtype)
