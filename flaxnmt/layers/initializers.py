"""Parameter initialisers with logical axes."""

import jax.numpy as jnp
from flax import linen as nn


def partitioned(initializer, *names: str | None):
    """The initialiser whose parameter carries these logical axes, one a dimension."""
    return nn.with_logical_partitioning(initializer, names)


def projection(d_in: int, d_out: int):
    """Xavier uniform (Glorot & Bengio 2010) of a d_in x d_out matrix for a kernel of any rank."""
    bound = (6.0 / (d_in + d_out)) ** 0.5

    def init(key, shape, dtype=jnp.float32):
        return nn.initializers.uniform(2 * bound)(key, shape, dtype) - bound

    return init
