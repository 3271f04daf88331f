"""Token embeddings, and logits from the same table."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Float, Int


class TokenTable(nn.Module):
    """The V x D table that an input, an output or several of them share (Press & Wolf 2017).

    Drawn from N(0, 1/D), so that an embedding scaled by sqrt(D) and a logit both start with unit variance.
    """

    vocab_size: int
    d_model: int
    dtype: Any = jnp.float32

    def setup(self):
        init = partitioned(nn.initializers.normal(self.d_model**-0.5), "vocab", "embed")
        self.table = self.param("table", init, (self.vocab_size, self.d_model))

    def embed(self, ids: Int[Array, "*B L"]) -> Float[Array, "*B L D"]:
        """Rows of the table times sqrt(D)."""
        # Whole rows, since a gather of rows cut over the devices of the batch would replicate its result.
        table = constrain(self.table, "vocab", "activation")
        return jnp.take(table, ids, axis=0).astype(self.dtype) * self.d_model**0.5

    def logits(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T V"]:
        """x E^T in float32."""
        table = self.table.astype(self.dtype)
        y = jnp.einsum("...d,vd->...v", x.astype(self.dtype), table, preferred_element_type=jnp.float32)
        return constrain(y, "batch", ..., "length", "vocab")


class Embedding(nn.Module):
    """Token embedding plus position embedding, and what else is to be added, then dropout.

    Attributes:
      tokens: the table, possibly shared with other embeddings.
      positions: a module from position ids to vectors that broadcast against [*B, L, D], or None.
      dropout: rate on the sum.
    """

    tokens: TokenTable
    positions: nn.Module | None
    dropout: float = 0.0

    def setup(self):
        self.sum_dropout = Dropout(self.dropout)

    def __call__(
        self,
        ids: Int[Array, "*B L"],
        positions: Int[Array, "..."],
        deterministic: bool,
        marks: Float[Array, "*A D"] | None = None,
    ) -> Float[Array, "*B L D"]:
        """`marks` are added to every token of an example [B, D], or of a sentence of it [B, N, D]."""
        x = self.tokens.embed(ids)
        if marks is not None:
            between = (1,) * (x.ndim - marks.ndim)
            x = x + marks.reshape(*marks.shape[:-1], *between, marks.shape[-1])
        if self.positions is not None:
            x = x + self.positions(positions).astype(x.dtype)
        x = self.sum_dropout(x, deterministic)
        return constrain(x, "batch", ..., "length", "activation")
