"""Encodings of sentences: one vector for all words of a sentence.

Each module here maps (words [*B, M, D], mask [*B, M]) to [*B, D], so that one can stand for another: as the
encoder of a sentence, or as the merge of two nodes of a tree (M = 2). A sentence without words is zeros, and
passes no gradient.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.dot_product import MASKED
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float


def _softmax_over_words(scores: Float[Array, "*B M F"], mask: Bool[Array, "*B M"]) -> Float[Array, "*B M F"]:
    """float32 weights that sum to one over the words of each sentence, all zero where there is no word."""
    seen = mask[..., None]
    weights = jax.nn.softmax(jnp.where(seen, scores.astype(jnp.float32), MASKED), axis=-2)
    return jnp.where(seen, weights, 0.0)


def source2token(
    query: Float[Array, " K"],
    key: Float[Array, "*B M K"],
    value: Float[Array, "*B M V"],
    mask: Bool[Array, "*B M"],
) -> Float[Array, "*B V"]:
    """softmax(q k^T / sqrt(K)) v over the words of a sentence, for one query that all sentences share.

    Attention(q, S W^K, S W^V) of Trankova et al. 2024, eq. 2; scores and softmax in float32, the result in the
    dtype of the values.
    """
    scale = query.shape[0] ** -0.5
    scores = jnp.einsum("...mk,k->...m", key, query * scale, preferred_element_type=jnp.float32)
    weights = _softmax_over_words(scores[..., None], mask)[..., 0]
    return jnp.einsum("...m,...mv->...v", weights.astype(value.dtype), value)


def multi_dimensional(
    scores: Float[Array, "*B M D"], value: Float[Array, "*B M D"], mask: Bool[Array, "*B M"]
) -> Float[Array, "*B D"]:
    """Each feature of the result weighs the words by a softmax of its own (Shen et al. 2018, section 3.1)."""
    return jnp.sum(_softmax_over_words(scores, mask) * value, axis=-2).astype(value.dtype)


class Source2Token(nn.Module):
    """Attention(q, S W^K, S W^V) W^O with one learned query q (Trankova et al. 2024, eq. 2), without biases.

    Attributes:
      d_model: D.
      key_size: K, of the query and the keys; D if None.
      value_size: V, of the values; D if None.
      dtype: of the computation; parameters and softmax are float32.
    """

    d_model: int
    key_size: int | None = None
    value_size: int | None = None
    dtype: Any = jnp.float32

    def setup(self):
        d_model, k, v = self.d_model, self.key_size or self.d_model, self.value_size or self.d_model
        # As wide as the queries that a projection makes of normed rows, so that words differ from the start.
        self.query = self.param("query", partitioned(nn.initializers.normal(1.0), "kv"), (k,))
        self.w_key = self.param("key", partitioned(projection(d_model, k), "embed", "kv"), (d_model, k))
        self.w_value = self.param("value", partitioned(projection(d_model, v), "embed", "kv"), (d_model, v))
        self.w_out = self.param("out", partitioned(projection(v, d_model), "kv", "embed"), (v, d_model))

    def __call__(self, x: Float[Array, "*B M D"], mask: Bool[Array, "*B M"]) -> Float[Array, "*B D"]:
        x, query, w_key, w_value, w_out = (
            array.astype(self.dtype) for array in (x, self.query, self.w_key, self.w_value, self.w_out)
        )
        key, value = (constrain(x @ kernel, "batch", ..., "length", "kv") for kernel in (w_key, w_value))
        return constrain(source2token(query, key, value, mask) @ w_out, "batch", ..., "activation")

    def flops(self, sentences: Count, words: Count) -> Count:
        """Matrix products for that many sentences of that many words, multiply-adds counted as 2, forward pass."""
        k, v = self.key_size or self.d_model, self.value_size or self.d_model
        return 2 * sentences * (words * (k + v) * (self.d_model + 1) + v * self.d_model)


class MultiDimensionalSource2Token(nn.Module):
    """The words' own vectors, weighted by softmax(W_2^T ELU(W_1^T x + b_1)) feature by feature.

    The multi-dimensional source2token attention of DiSAN (Shen et al. 2018, section 3.2). Their bias after W_2 adds
    the same to every word of a feature, which a softmax over words takes out again; it is left out.

    Attributes:
      d_model: D.
      dtype: of the computation; parameters and softmax are float32.
    """

    d_model: int
    dtype: Any = jnp.float32

    def setup(self):
        square, kernel = (self.d_model, self.d_model), projection(self.d_model, self.d_model)
        self.w_in = self.param("w_in", partitioned(kernel, "embed", "mlp"), square)
        self.b_in = self.param("b_in", partitioned(nn.initializers.zeros, "mlp"), square[:1])
        self.w_out = self.param("w_out", partitioned(kernel, "mlp", "embed"), square)

    def __call__(self, x: Float[Array, "*B M D"], mask: Bool[Array, "*B M"]) -> Float[Array, "*B D"]:
        x, w_in, b_in, w_out = (array.astype(self.dtype) for array in (x, self.w_in, self.b_in, self.w_out))
        hidden = constrain(jax.nn.elu(x @ w_in + b_in), "batch", ..., "length", "mlp")
        scores = constrain(hidden @ w_out, "batch", ..., "length", "activation")
        return constrain(multi_dimensional(scores, x, mask), "batch", ..., "activation")

    def flops(self, sentences: Count, words: Count) -> Count:
        """As of `Source2Token`; the weighted sum is element-wise and not counted."""
        return 4 * sentences * words * self.d_model**2


class MeanPooling(nn.Module):
    """The mean of the words; no parameters.

    Attributes:
      d_model: D.
      dtype: of the result.
    """

    d_model: int
    dtype: Any = jnp.float32

    def __call__(self, x: Float[Array, "*B M D"], mask: Bool[Array, "*B M"]) -> Float[Array, "*B D"]:
        total = jnp.sum(jnp.where(mask[..., None], x, 0), axis=-2, dtype=jnp.float32)
        words = jnp.sum(mask, axis=-1, dtype=jnp.float32)[..., None]
        return (total / jnp.maximum(words, 1)).astype(self.dtype)

    def flops(self, sentences: Count, words: Count) -> Count:
        """As of `Source2Token`: none, since a sum is no matrix product."""
        return 0
