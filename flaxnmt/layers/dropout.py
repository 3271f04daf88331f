"""Dropout whose bits are a hash of (key, global index).

The key carries seed, step and site, so the mask is the same on every mesh, for any number of processes and
after every restart. A counter hash fuses with the surrounding element-wise code, where a general random
generator writes its bits to memory first.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from flaxnmt.each_device import first_row
from flaxnmt.typing import Array, Float, PRNGKeyArray, UInt

LARGE = 2**16
"""Elements of a row from which on a batch may have more than 2^32 of them."""


def _lowbias32(bits: UInt[Array, "..."], between: UInt[Array, "..."] | int = 0) -> UInt[Array, "..."]:
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) + jnp.uint32(between)
    bits = bits * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def hash_bits(
    key: UInt[Array, " words"], shape: tuple[int, ...], row: UInt[Array | np.ndarray, ""] | int = 0
) -> UInt[Array, "..."]:
    """32 uniform bits for each position of an array of this shape, which begins at this row of a larger one.

    The counter is mixed by the multiply-xorshift finaliser "lowbias32" (C. Wellons, hash-prospector, 2018),
    keyed before and between its two rounds. The key is mixed first, because the words of neighbouring seeds
    differ by one, and masks under such words would be shifted copies of each other.
    """
    first = _lowbias32(_lowbias32(key[0]) + key[-1])
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    if strides[0] >= LARGE:
        # The counter has 32 bits, and begins anew: each time under another key.
        rows_each = max(2**32 // strides[0], 1)
        index = jax.lax.broadcasted_iota(jnp.uint32, (shape[0], *(1,) * (len(shape) - 1)), 0)
        first = first + _lowbias32((index + jnp.uint32(row)) // jnp.uint32(rows_each))
    second = _lowbias32(first + key[0])
    counter = first + jnp.uint32(row) * jnp.uint32(strides[0] & 0xFFFFFFFF)
    for axis, stride in enumerate(strides):
        index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        counter = counter + index * jnp.uint32(stride & 0xFFFFFFFF)
    return _lowbias32(counter, second)


def hash_normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Independent draws from N(0, 1), float32, from the bits of `hash_bits`.

    The middle of one of 2^23 equal intervals of (0, 1), through the inverse of the normal distribution.
    """
    bits = hash_bits(jax.random.key_data(key).reshape(-1), shape, first_row(shape[0])) >> 9
    return jax.scipy.special.ndtri((bits.astype(jnp.float32) + 0.5) / 2**23)


def _scaled(x, key, row, rate):
    keep = hash_bits(key, x.shape, row) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros((), x.dtype))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x, key, row, rate):
    return _scaled(x, key, row, rate)


# The backward pass hashes again: cheaper than writing and reading a mask of the size of x.
_dropout.defvjp(
    lambda x, key, row, rate: (_scaled(x, key, row, rate), (key, row)),
    lambda rate, place, cotangent: (
        _scaled(cotangent, *place, rate),
        *(np.zeros(leaf.shape, jax.dtypes.float0) for leaf in place),
    ),
)


def dropout(x: Float[Array, "..."], rate: float, key: PRNGKeyArray) -> Float[Array, "..."]:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate)."""
    row = first_row(x.shape[0])
    return _dropout(x, jax.random.key_data(key).reshape(-1), row, rate)


class Dropout(nn.Module):
    """Dropout with the rng stream `dropout`; the identity where `deterministic` or the rate is zero."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool) -> Float[Array, "..."]:
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))
