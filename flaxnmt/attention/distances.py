"""Scores that depend on how far a key is from a query: from one score a distance to one score a pair, and back.

A query has a score for each distance j - i from -c to c, R = 2 c + 1 of them, and keys farther away have those at the
ends (the clipping of Shaw et al. 2018, section 3.1). So the products of Q queries with their relative positions are
one [Q, R] matrix, and nothing of the size Q x L x K is ever made.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from flaxnmt.layers.context import Places
from flaxnmt.typing import Array, Float, Int


def column_of_distance(
    query: Int[Array, "*#B Q 1"], key: Int[Array, "*#B #Q L"], columns: int
) -> Int[Array, "*#B Q L"]:
    """The column of the distance j - i of a key at j from a query at i, out of R."""
    farthest = columns // 2
    return jnp.clip(key - query, -farthest, farthest) + farthest


def shift(by_distance: Float[Array, "*B H Q R"], keys: int) -> Float[Array, "*B H Q L"]:
    """`of_pairs` for queries 0, 1, 2, ... and keys 0, 1, 2, ...: row i moves by i, without a look-up.

    With a column of padding, rows that are read as if they were one shorter move by one each (the relative shift of
    Dai et al. 2019, appendix B).
    """
    *lead, queries, columns = by_distance.shape
    farthest = columns // 2
    left, right = queries - 1 - farthest, keys - 1 - farthest
    needed = by_distance[..., max(-left, 0) : columns - max(-right, 0)]
    sides = [(0, 0)] * (needed.ndim - 1)
    needed = jnp.pad(needed, [*sides, (max(left, 0), max(right, 0))], mode="edge")
    width = needed.shape[-1]
    line = jnp.pad(needed, [*sides, (0, 1)]).reshape(*lead, -1)
    return line[..., queries - 1 : queries - 1 + queries * width].reshape(*lead, queries, width)[..., :keys]


def of_pairs(by_distance: Float[Array, "*B H Q R"], places: Places) -> Float[Array, "*B H Q L"]:
    """by_distance[..., q, j - i] for query q at i and every key, at j."""
    if places.consecutive:
        return shift(by_distance, places.key.shape[-1])
    column = column_of_distance(
        places.query[..., None, :, None], places.key[..., None, None, :], by_distance.shape[-1]
    )
    column = column.reshape((1,) * (by_distance.ndim - column.ndim) + column.shape)
    return jnp.take_along_axis(by_distance, column, axis=-1, mode="promise_in_bounds")


def sums_by_distance(
    weights: Float[Array, "*B H Q L"], places: Places, columns: int
) -> Float[Array, "*B H Q {columns}"]:
    """Sums of the weights of the keys at each distance: the transpose of `of_pairs`."""
    by_distance = jax.ShapeDtypeStruct((*weights.shape[:-1], columns), weights.dtype)
    (sums,) = jax.linear_transpose(partial(of_pairs, places=places), by_distance)(weights)
    return sums


@struct.dataclass
class DistanceScores:
    """What positions add to scores: for each query a score a distance, and where queries and keys stand."""

    scores: Float[Array, "*B H Q R"]
    places: Places

    def of_pairs(self) -> Float[Array, "*B H Q L"]:
        return of_pairs(self.scores, self.places)
