"""Position-wise feed-forward network (Vaswani et al. 2017, eq. 2)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.active import on_active
from flaxnmt.layers.context import Context
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.linear import biased, linear
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Count, Float


class FeedForward(SubLayer):
    """activation(x W_1 + b_1) W_2 + b_2 for each row.

    Attributes:
      d_model: D.
      hidden: F, the inner dimension.
      dropout: rate after the activation.
      activation: between the two products.
      dtype: of the computation; parameters are float32.
      parts: of how many such networks side by side this is one: the weights of all begin as those of one network.
    """

    d_model: int
    hidden: int
    dropout: float = 0.0
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    dtype: Any = jnp.float32
    parts: int = 1

    def setup(self):
        d_model, hidden, zeros = self.d_model, self.hidden, nn.initializers.zeros
        whole = hidden * self.parts
        self.w_in = self.param(
            "w_in", partitioned(projection(d_model, whole), "embed", "mlp"), (d_model, hidden)
        )
        self.b_in = self.param("b_in", partitioned(zeros, "mlp"), (hidden,))
        self.w_out = self.param(
            "w_out", partitioned(projection(whole, d_model), "mlp", "embed"), (hidden, d_model)
        )
        self.b_out = self.param("b_out", partitioned(zeros, "activation"), (d_model,))
        self.hidden_dropout = Dropout(self.dropout)

    def rows(self, x: Float[Array, "*B Q D"], shared: None, context: Context):
        w_in, b_in, w_out, b_out = (
            w.astype(self.dtype) for w in (self.w_in, self.b_in, self.w_out, self.b_out)
        )

        def network(x):
            hidden = self.activation(biased(linear(x.astype(self.dtype), w_in), b_in))
            hidden = constrain(hidden, "batch", ..., "length", "mlp")
            y = biased(linear(self.hidden_dropout(hidden, context.deterministic), w_out), b_out)
            return constrain(y, "batch", ..., "length", "activation")

        return on_active(network, x, context.active), None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        return 0, 4 * queries * d_model * self.hidden
