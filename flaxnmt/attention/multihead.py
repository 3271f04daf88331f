"""Multi-head attention (Vaswani et al. 2017, section 3.2.2)."""

from typing import Any

import jax
import jax.numpy as jnp

from flaxnmt.attention.dot_product import attend, attention_scores
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Float


class MultiHeadAttention(SubLayer):
    """softmax(Q K^T / sqrt(K)) V over H heads of size D / H, and the output projection, without biases.

    As a module by itself: `MultiHeadAttention(d_model=512, heads=8)(x, memory, Context(key_mask=mask))`.

    Attributes:
      d_model: D.
      heads: H; divides D.
      dropout: rate on the attention weights.
      dtype: of the computation; parameters and softmax are float32.
    """

    d_model: int
    heads: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        if self.d_model % self.heads:
            raise ValueError(f"{self.heads} heads do not divide the model dimension {self.d_model}")
        shape = (self.d_model, self.heads, self.d_model // self.heads)
        inward = partitioned(projection(self.d_model, self.d_model), "embed", "heads", "kv")
        outward = partitioned(projection(self.d_model, self.d_model), "heads", "kv", "embed")
        self.w_query = self.param("query", inward, shape)
        self.w_key = self.param("key", inward, shape)
        self.w_value = self.param("value", inward, shape)
        self.w_out = self.param("out", outward, shape[1:] + shape[:1])
        self.weights_dropout = Dropout(self.dropout)

    def _heads(self, x: Float[Array, "*B L D"], kernel: Float[Array, "D H K"]) -> Float[Array, "*B H L K"]:
        y = jnp.einsum("...ld,dhk->...hlk", x.astype(self.dtype), kernel.astype(self.dtype))
        return constrain(y, "batch", ..., "heads", "length", "kv")

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> KeyValues:
        return KeyValues(self._heads(memory, self.w_key), self._heads(memory, self.w_value))

    def rows(self, x: Float[Array, "*B Q D"], shared: KeyValues, context: Context):
        scores = attention_scores(self._heads(x, self.w_query), shared.key, context.attention_mask())
        weights = jax.nn.softmax(scores, axis=-1)
        y = attend(self.weights_dropout(weights, context.deterministic), shared.value)
        y = jnp.einsum("...hqk,hkd->...qd", y, self.w_out.astype(self.dtype))
        return constrain(y, "batch", ..., "length", "activation"), weights if context.capture else None

    def flops(self, d_model: int, queries: int, keys: int, sentences: int = 1) -> tuple[int, int]:
        return 4 * keys * d_model**2, 4 * queries * d_model * (d_model + keys // sentences)
