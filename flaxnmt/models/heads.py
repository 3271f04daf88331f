"""What is read off the output of an encoder: masked tokens, a class, labels, the ends of an answer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.block import layer_norm
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.embedding import TokenTable
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.typing import Array, Bool, Float


def first_row(
    hidden: Float[Array, "*B L D"], mask: Bool[Array, "*B L"] | None = None
) -> Float[Array, "*B D"]:
    """The first row of each text, that of [CLS]."""
    return hidden[..., 0, :]


def mean_row(hidden: Float[Array, "*B L D"], mask: Bool[Array, "*B L"] | None = None) -> Float[Array, "*B D"]:
    """The mean of the rows of each text that are not padding (False), all of them without a mask; zeros of none."""
    mask = jnp.ones(hidden.shape[:-1], bool) if mask is None else mask
    total = jnp.where(mask[..., None], hidden, 0).astype(jnp.float32).sum(-2)
    return (total / jnp.maximum(mask.sum(-1, keepdims=True), 1)).astype(hidden.dtype)


class Affine(nn.Module):
    """x W + b.

    Attributes:
      inputs, outputs: its sizes.
      dtype: of the computation.
    """

    inputs: int
    outputs: int
    dtype: Any = jnp.float32

    def setup(self):
        shape = self.inputs, self.outputs
        self.kernel = self.param("kernel", partitioned(projection(*shape), "activation", None), shape)
        self.bias = self.param("bias", partitioned(nn.initializers.zeros, None), shape[1:])

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        return x.astype(self.dtype) @ self.kernel.astype(self.dtype) + self.bias.astype(self.dtype)


class MaskedTokens(nn.Module):
    """Logits of the vocabulary: LN(GELU(h W + b)) E^T + c (Devlin et al. 2019), with the table E of the embedding.

    Attributes:
      tokens: the table.
      d_model: D.
      dtype: of the computation; logits are float32.
    """

    tokens: TokenTable
    d_model: int
    dtype: Any = jnp.float32

    def setup(self):
        self.transform = Affine(self.d_model, self.d_model, self.dtype)
        self.norm = layer_norm(self.dtype)
        zeros = partitioned(nn.initializers.zeros, "vocab")
        self.bias = self.param("bias", zeros, (self.tokens.vocab_size,))

    def __call__(
        self,
        hidden: Float[Array, "*B D"],
        deterministic: bool = True,
        mask: Bool[Array, "..."] | None = None,
    ) -> Float[Array, "*B V"]:
        """Of every row by itself, whichever are padding."""
        y = jax.nn.gelu(self.transform(hidden), approximate=False)
        return self.tokens.logits(self.norm(y)) + self.bias


class Classes(nn.Module):
    """Logits of a text, from one row of it: tanh(h W + b) U + c (Devlin et al. 2019, with h the first row).

    Attributes:
      classes: to choose from.
      d_model: D.
      pool: from output and mask to the row; `mean_row` where the first row does not know the whole text.
      dropout: rate on what is classified.
      dtype: of the computation; logits are float32.
    """

    classes: int
    d_model: int
    pool: Callable[..., Array] = first_row
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        self.pooler = Affine(self.d_model, self.d_model, self.dtype)
        self.output = Affine(self.d_model, self.classes)
        self.pooled_dropout = Dropout(self.dropout)

    def __call__(
        self,
        hidden: Float[Array, "*B L D"],
        deterministic: bool = True,
        mask: Bool[Array, "*B L"] | None = None,
    ) -> Float[Array, "*B C"]:
        pooled = jnp.tanh(self.pooler(self.pool(hidden, mask)))
        return self.output(self.pooled_dropout(pooled, deterministic))


class Labels(nn.Module):
    """Logits of every token: h U + c; two of them, transposed, are the logits of where an answer begins and ends.

    Attributes:
      labels: to choose from.
      d_model: D.
      dropout: rate on what is classified.
    """

    labels: int
    d_model: int
    dropout: float = 0.0

    def setup(self):
        self.output = Affine(self.d_model, self.labels)
        self.token_dropout = Dropout(self.dropout)

    def __call__(
        self,
        hidden: Float[Array, "*B L D"],
        deterministic: bool = True,
        mask: Bool[Array, "*B L"] | None = None,
    ) -> Float[Array, "*B L C"]:
        """Of every token by itself, whichever are padding."""
        return self.output(self.token_dropout(hidden, deterministic))
