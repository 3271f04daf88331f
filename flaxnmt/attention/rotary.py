"""Rotary positions: queries and keys are turned by angles that grow with their position (Su et al. 2021)."""

import jax.numpy as jnp
import numpy as np

from flaxnmt.attention.relative import AttentionPositions
from flaxnmt.typing import Array, Float, Int


def rotate(
    x: Float[Array, "*B H L K"], ids: Int[Array, "*#B L"], base: float = 10000.0
) -> Float[Array, "*B H L K"]:
    """Turns the plane of features (i, i + K/2) of a row at position m by the angle m base^{-2i/K}.

    Then q k^T depends on a pair of positions by their difference alone. The first half of a head is paired with the
    second, as in GPT-NeoX and Llama; the paper pairs neighbours (2i, 2i + 1), which is the same up to the order of
    the features of W^Q and W^K. Angles are float32.

    Raises:
      ValueError: for an odd head size.
    """
    size = x.shape[-1]
    if size % 2:
        raise ValueError(f"rotary positions turn pairs of features, and heads have {size}")
    rates = jnp.asarray(base ** (-np.arange(0, size, 2) / size), jnp.float32)
    angles = ids[..., None, :, None].astype(jnp.float32) * rates
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class RotaryPositions(AttentionPositions):
    """Queries and keys rotated by their positions; no parameters. Keys are cached as they were rotated.

    Attributes:
      base: of the angles, whose longest period is 2 pi base^{1 - 2/K}.
    """

    base: float = 10000.0

    def keys(self, key: Float[Array, "*B H L K"], ids: Int[Array, "*#B L"]) -> Float[Array, "*B H L K"]:
        return rotate(key, ids, self.base)

    def queries(self, query: Float[Array, "*B H Q K"], ids: Int[Array, "*#B Q"]) -> Float[Array, "*B H Q K"]:
        return rotate(query, ids, self.base)
