"""Token embeddings, and logits from the same table."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.active import on_active
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Float, Int


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def whole_rows(table: Float[Array, "V D"], axis: str | None = "vocab") -> Float[Array, "V D"]:
    """A table of which no row is cut, with a gradient that lies as parameters do; `axis` is that of the rows."""
    return constrain(table, axis, "activation")


# The gradient of the constraint alone would be whole rows, too.
whole_rows.defvjp(
    lambda table, axis: (whole_rows(table, axis), None),
    lambda axis, _, cotangent: (constrain(cotangent, axis, "embed"),),
)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def look_up(
    table: Float[Array, "V D"], ids: Int[Array, "*B L"], dtype: Any, axis: str | None = "vocab"
) -> Float[Array, "*B L D"]:
    """The rows of a table in a type of computation, with a gradient that is summed in the type of the table.

    What moves between devices, where the table lies in parts, is already of the smaller type.
    """
    # Whole rows, since a gather of rows cut over the devices of the batch would replicate its result.
    return jnp.take(whole_rows(table.astype(dtype), axis), ids, axis=0)


def _look_up_forward(table, ids, dtype, axis):
    return look_up(table, ids, dtype, axis), (table, ids)


def _look_up_backward(dtype, axis, residuals, cotangent):
    table, ids = residuals
    zeros = constrain(jnp.zeros_like(table), axis, "activation")
    gradient = zeros.at[ids].add(cotangent.astype(table.dtype))
    return constrain(gradient, axis, "embed"), None


look_up.defvjp(_look_up_forward, _look_up_backward)


class TokenTable(nn.Module):
    """The V x D table that an input, an output or several of them share (Press & Wolf 2017).

    Drawn from N(0, 1/D), so that an embedding scaled by sqrt(D) and a logit both start with unit variance; or, where
    embeddings are not `scaled`, from N(0, 0.02^2) as in BERT (Devlin et al. 2019), whose logits are as small.

    Attributes:
      vocab_size: V.
      d_model: D.
      scaled: whether embeddings are multiplied by sqrt(D).
      zeros: whether it begins as zeros, as marks do that say nothing before they are learned.
      axis: logical axis of its rows; None where they are few, and stay together on every device.
      dtype: of the computation; the table and logits are float32.
    """

    vocab_size: int
    d_model: int
    scaled: bool = True
    zeros: bool = False
    axis: str | None = "vocab"
    dtype: Any = jnp.float32

    def setup(self):
        deviation = 0.0 if self.zeros else self.d_model**-0.5 if self.scaled else 0.02
        init = partitioned(nn.initializers.normal(deviation), self.axis, "embed")
        self.table = self.param("table", init, (self.vocab_size, self.d_model))

    def embed(self, ids: Int[Array, "*B L"]) -> Float[Array, "*B L D"]:
        """Rows of the table, times sqrt(D) where they are scaled."""
        rows = look_up(self.table, ids, self.dtype, self.axis)
        return rows * self.d_model**0.5 if self.scaled else rows

    def logits(
        self, x: Float[Array, "*B D"], active: Bool[Array, "*B"] | None = None
    ) -> Float[Array, "*B V"]:
        """x E^T in float32; zeros where a row is not `active`."""
        # Whole rows here too: of rows cut over the devices of the batch a compiler would add up partial logits.
        table = whole_rows(self.table.astype(self.dtype), self.axis)
        product = partial(jnp.einsum, "...d,vd->...v", preferred_element_type=jnp.float32)
        y = on_active(lambda rows: product(rows, table), x.astype(self.dtype), active)
        return constrain(y, "batch", ..., "length", "vocab")


class Embedding(nn.Module):
    """Token embedding plus position embedding, and what else is to be added, then dropout.

    Attributes:
      tokens: the table, possibly shared with other embeddings.
      positions: a module from position ids to vectors that broadcast against [*B, L, D], or None.
      dropout: rate on the sum.
      norm: of the sum, before dropout, or None.
    """

    tokens: TokenTable
    positions: nn.Module | None
    dropout: float = 0.0
    norm: nn.Module | None = None

    def setup(self):
        self.sum_dropout = Dropout(self.dropout)

    def __call__(
        self,
        ids: Int[Array, "*B L"],
        positions: Int[Array, "..."],
        deterministic: bool,
        marks: Float[Array, "*A D"] | None = None,
        others: Float[Array, "*B L D"] | None = None,
    ) -> Float[Array, "*B L D"]:
        """Embeddings of padded ids.

        Args:
          ids: of tokens.
          positions: ids as the module `positions` takes them, such as [*B or 1, L].
          deterministic: no dropout.
          marks: added to every token of an example [B, D], or of a sentence of it [B, N, D].
          others: added to each token.
        """
        x = self.tokens.embed(ids)
        if marks is not None:
            between = (1,) * (x.ndim - marks.ndim)
            x = x + marks.reshape(*marks.shape[:-1], *between, marks.shape[-1])
        if self.positions is not None:
            x = x + self.positions(positions).astype(x.dtype)
        if others is not None:
            x = x + others
        if self.norm is not None:
            x = self.norm(x)
        x = self.sum_dropout(x, deterministic)
        return constrain(x, "batch", ..., "length", "activation")
