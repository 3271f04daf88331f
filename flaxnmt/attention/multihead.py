"""Multi-head attention (Vaswani et al. 2017, section 3.2.2)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.dot_product import attend, attention_scores
from flaxnmt.layers.active import if_any, on_active
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.linear import linear
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float


class MultiHeadAttention(SubLayer):
    """softmax(Q K^T / sqrt(K)) V over H heads of size D / H, and the output projection.

    As a module by itself: `MultiHeadAttention(d_model=512, heads=8)(x, memory, Context(key_mask=mask))`.

    Attributes:
      d_model: D.
      heads: H; divides D.
      dropout: rate on the attention weights.
      biases: add one in each projection.
      dtype: of the computation; parameters and softmax are float32.
    """

    gates_keys: ClassVar[bool] = True

    d_model: int
    heads: int
    dropout: float = 0.0
    biases: bool = False
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
        self.b_query = self.b_keys = self.b_out = ()
        if self.biases:
            zeros = partitioned(nn.initializers.zeros, "heads", "kv")
            self.b_query = (self.param("query_bias", zeros, shape[1:]),)
            self.b_keys = tuple(self.param(f"{name}_bias", zeros, shape[1:]) for name in ("key", "value"))
            zeros = partitioned(nn.initializers.zeros, "activation")
            self.b_out = (self.param("out_bias", zeros, shape[:1]),)
        self.weights_dropout = Dropout(self.dropout)

    def _heads(
        self,
        x: Float[Array, "*B L D"],
        *kernels: Float[Array, "D H K"],
        biases: tuple[Float[Array, "H K"], ...] = (),
        active: Bool[Array, "*B L"] | None = None,
    ) -> tuple[Float[Array, "*B H L K"], ...]:
        """Projections of x, zeros where a row is not active."""
        matrices = [kernel.astype(self.dtype).reshape(self.d_model, -1) for kernel in kernels]
        added = [bias.astype(self.dtype).ravel() for bias in biases]

        def project(x):
            rows = [linear(x, matrix) for matrix in matrices]
            return [y + bias for y, bias in zip(rows, added, strict=True)] if added else rows

        rows = on_active(project, x.astype(self.dtype), active)
        shape = x.shape[:-1] + kernels[0].shape[1:]
        heads = [jnp.swapaxes(y.reshape(shape), -3, -2) for y in rows]
        return tuple(constrain(y, "batch", ..., "heads", "length", "kv") for y in heads)

    def _output(
        self, heads: Float[Array, "*B H Q K"], active: Bool[Array, "*B Q"] | None = None
    ) -> Float[Array, "*B Q D"]:
        """The output projection, zeros where a row is not active."""
        matrix = self.w_out.astype(self.dtype).reshape(-1, self.d_model)
        rows = jnp.swapaxes(heads, -3, -2)
        rows = rows.reshape(*rows.shape[:-2], -1)

        def project(rows):
            y = linear(rows, matrix)
            return y + self.b_out[0].astype(self.dtype) if self.b_out else y

        y = on_active(project, rows, active)
        return constrain(y, "batch", ..., "length", "activation")

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> KeyValues:
        kernels = self.w_key, self.w_value
        keys = KeyValues(*self._heads(memory, *kernels, biases=self.b_keys, active=context.active))
        if context.key_gate is None:
            return keys
        gate = context.key_gate[..., None, :, None]
        return jax.tree.map(lambda y: y * gate.astype(y.dtype), keys)

    def rows(self, x: Float[Array, "*B Q D"], shared: KeyValues, context: Context):
        (query,) = self._heads(x, self.w_query, biases=self.b_query, active=context.active)

        def look(query, shared, mask):
            weights = jax.nn.softmax(attention_scores(query, shared.key, mask), axis=-1)
            return attend(self.weights_dropout(weights, context.deterministic), shared.value), weights

        y, weights = if_any(context.active, look, query, shared, context.attention_mask())
        return self._output(y, context.active), weights if context.capture else None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: int = 1) -> tuple[Count, Count]:
        return 4 * keys * d_model**2, 4 * queries * d_model * (d_model + keys // sentences)
