"""A block: a sub-layer with its norm, dropout and skip connection."""

from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.active import picked
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned
from flaxnmt.layers.segments import Segments
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.typing import Array, Count, Float, Int

Norm = Literal["pre", "post", "none"]


def layer_norm(dtype: Any, scale: float = 1.0) -> nn.LayerNorm:
    """Layer normalisation (Ba et al. 2016) with logically partitioned scale, which begins as this, and bias."""
    return nn.LayerNorm(
        epsilon=1e-6,
        dtype=dtype,
        scale_init=partitioned(nn.initializers.constant(scale), "activation"),
        bias_init=partitioned(nn.initializers.zeros, "activation"),
    )


def layer_norm_flops(d_model: int) -> int:
    """Work of a layer norm on one row: mean, difference, variance, division, scale and bias."""
    return 7 * d_model


class Block(nn.Module):
    """x + Dropout(f(LN(x))) (pre-norm) or LN(x + Dropout(f(x))) (post-norm) around any sub-layer f.

    Attributes:
      sublayer: f.
      norm: where the layer norm stands; none leaves it out.
      skip: whether x is added, and...
      skip_scale: ...what the sum is multiplied by.
      dropout: rate on the output of f.
      dtype: of the computation.
    """

    sublayer: SubLayer
    norm: Norm = "pre"
    skip: bool = True
    skip_scale: float = 1.0
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        if self.norm != "none":
            self.layer_norm = layer_norm(self.dtype)
        self.residual_dropout = Dropout(self.dropout)

    def _before(self, x: Float[Array, "*B Q D"]) -> Float[Array, "*B Q D"]:
        return self.layer_norm(x) if self.norm == "pre" else x

    def _after(
        self, x: Float[Array, "*B Q D"], y: Float[Array, "*B Q D"], context: Context
    ) -> Float[Array, "*B Q D"]:
        y = self.residual_dropout(y, context.deterministic)
        if self.skip:
            y = x + y if self.skip_scale == 1 else (x + y) * self.skip_scale
        return self.layer_norm(y) if self.norm == "post" else y

    def keys(self, memory: Float[Array, "*A L D"], context: Context) -> Any:
        """The shared part over a memory that does not change while decoding, to be handed to `__call__`."""
        return self.sublayer.keys(memory, context)

    def __call__(self, x: Float[Array, "*B Q D"], context: Context, shared: Any = None):
        """([*B, Q, D], what the sub-layer captured, or None); without `shared` the rows are their own memory."""
        h = self._before(x)
        shared = self.sublayer.keys(h, context) if shared is None else shared
        y, weights = self.sublayer.rows(h, shared, context)
        return self._after(x, y, context), weights

    def at(self, x: Float[Array, "*B L D"], places: Int[Array, "*B P"], context: Context):
        """As a call whose rows are their own memory, of the rows at these places of each sequence alone."""
        shared = self.sublayer.keys(self._before(x), context)
        return self(picked(x, places), context.of_places(places), shared)

    def extend(self, x: Float[Array, "*B Q D"], cache: KeyValues | Segments | None, context: Context, write):
        """One step of decoding: adds the shared part of the new rows to the cache, then looks at what is visible.

        Args:
          x: the rows of the new position, one a hypothesis.
          cache: keys and values of all positions of all hypotheses; None before the first.
          write: (cache, new) -> cache.

        Returns:
          ([*B, Q, D], the longer cache).
        """
        h = self._before(x)
        cache = write(cache, self.sublayer.keys(h, context.of_new_rows()))
        y, _ = self.sublayer.rows(h, cache, context)
        return self._after(x, y, context), cache

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: int = 1) -> Count:
        """Multiply-adds counted as 2 for one example, as `SubLayer.flops`."""
        return sum(self.sublayer.flops(d_model, queries, keys, sentences))
