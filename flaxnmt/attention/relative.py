"""Relative positions in attention: the interface, Shaw et al. 2018 and Transformer-XL (Dai et al. 2019).

Ids are arbitrary: words of a document, slots of a cache. Only differences of ids count.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.distances import DistanceScores, sums_by_distance
from flaxnmt.layers.context import Places
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.positions import sinusoids
from flaxnmt.typing import Array, Count, Float, Int


def distance_products(
    query: Float[Array, "*B H Q K"], table: Float[Array, "R #H K"], places: Places
) -> DistanceScores:
    """q r^T / sqrt(K) in float32 for every query and every distance of a table; one for all heads, or one a head."""
    shape = (len(table), query.shape[-3], query.shape[-1])
    scores = jnp.einsum(
        "...hqk,rhk->...hqr",
        query * query.shape[-1] ** -0.5,
        jnp.broadcast_to(table, shape).astype(query.dtype),
        preferred_element_type=jnp.float32,
    )
    return DistanceScores(scores, places)


class AttentionPositions(nn.Module):
    """What an attention may ask of the positions of its queries and keys; here, that they change nothing.

    Attributes:
      adds_values: whether `outputs` adds something, which takes the weights of all pairs.
    """

    @property
    def adds_values(self) -> bool:
        return False

    def keys(self, key: Float[Array, "*B H L K"], ids: Int[Array, "*#B L"]) -> Float[Array, "*B H L K"]:
        """Keys as they are cached."""
        return key

    def queries(self, query: Float[Array, "*B H Q K"], ids: Int[Array, "*#B Q"]) -> Float[Array, "*B H Q K"]:
        """Queries as they are multiplied with keys."""
        return query

    def scores(self, query: Float[Array, "*B H Q K"], places: Places) -> DistanceScores | None:
        """What is added to q k^T / sqrt(K), from the queries as projected, before masks."""
        return None

    def outputs(
        self, y: Float[Array, "*B H Q K"], weights: Float[Array, "*B H Q L"], places: Places
    ) -> Float[Array, "*B H Q K"]:
        """The weighted sums of values, with what positions add to them."""
        return y

    def flops(self, d_model: int, queries: Count, keys: Count) -> Count:
        """Multiply-adds counted as 2 that all this adds for one example, without what all examples share."""
        return 0


class ShawPositions(AttentionPositions):
    """Learned vectors a^K and a^V for clipped distances, added to keys and values (Shaw et al. 2018, eq. 3-5).

    One table for all heads of a layer, as in the paper. They are vectors of positions and not of rows: a gate that
    closes a key does not close them.

    Attributes:
      head_size: K.
      clip: distances of more than this are alike (the paper's k).
      with_values: whether there is a^V; the paper found no difference in BLEU (table 3).
      dtype: of what is added to outputs.
    """

    head_size: int
    clip: int = 16
    with_values: bool = True
    dtype: Any = jnp.float32

    def setup(self):
        if self.clip < 1:
            raise ValueError(f"relative positions are clipped at {self.clip}: give at least 1")
        init = partitioned(nn.initializers.normal(self.head_size**-0.5), None, "kv")
        shape = (2 * self.clip + 1, self.head_size)
        self.key_table = self.param("key_table", init, shape)
        if self.with_values:
            self.value_table = self.param("value_table", init, shape)

    @property
    def adds_values(self) -> bool:
        return self.with_values

    def scores(self, query: Float[Array, "*B H Q K"], places: Places) -> DistanceScores:
        return distance_products(query, self.key_table[:, None], places)

    def outputs(
        self, y: Float[Array, "*B H Q K"], weights: Float[Array, "*B H Q L"], places: Places
    ) -> Float[Array, "*B H Q K"]:
        if not self.with_values:
            return y
        sums = sums_by_distance(weights, places, 2 * self.clip + 1)
        return y + (sums.astype(self.dtype) @ self.value_table.astype(self.dtype)).astype(y.dtype)

    def flops(self, d_model: int, queries: Count, keys: Count) -> Count:
        return 2 * (1 + self.with_values) * queries * (2 * self.clip + 1) * d_model


class TransformerXLPositions(AttentionPositions):
    """Scores ((q + u) k^T + (q + v) (W_{K,r} r_{i-j})^T) / sqrt(K) with sinusoids r (Dai et al. 2019, section 3.3).

    Content, content-relative, global content and global position of Tripp's slides; u, v and W_{K,r} are those of
    a layer.

    Attributes:
      d_model: D, the size of a sinusoid.
      heads: H.
      dtype: of the computation.
    """

    d_model: int
    heads: int
    dtype: Any = jnp.float32

    def setup(self):
        size = self.d_model // self.heads
        inward = partitioned(projection(self.d_model, self.d_model), "embed", "heads", "kv")
        vector = partitioned(nn.initializers.zeros, "heads", "kv")
        self.w_distance = self.param("distance", inward, (self.d_model, self.heads, size))
        self.content_bias = self.param("content_bias", vector, (self.heads, size))
        self.position_bias = self.param("position_bias", vector, (self.heads, size))

    def _plus(self, query: Float[Array, "*B H Q K"], vector: Float[Array, "H K"]) -> Float[Array, "*B H Q K"]:
        return query + vector[:, None].astype(query.dtype)

    def queries(self, query: Float[Array, "*B H Q K"], ids: Int[Array, "*#B Q"]) -> Float[Array, "*B H Q K"]:
        return self._plus(query, self.content_bias)

    def scores(self, query: Float[Array, "*B H Q K"], places: Places) -> DistanceScores:
        # Columns are distances j - i of keys from queries, and r is of i - j.
        waves = sinusoids(jnp.arange(places.span - 1, -places.span, -1), self.d_model).astype(self.dtype)
        table = jnp.einsum("rd,dhk->rhk", waves, self.w_distance.astype(self.dtype))
        return distance_products(self._plus(query, self.position_bias), table, places)

    def flops(self, d_model: int, queries: Count, keys: Count) -> Count:
        return 2 * queries * (2 * keys - 1) * d_model
