"""The Transformer encoder."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.block import Block, layer_norm
from flaxnmt.layers.context import Aux, Context
from flaxnmt.layers.stack import Stack
from flaxnmt.typing import Array, Float


class EncoderLayer(nn.Module):
    """Blocks in order, each over the output of the one before: attention then feed-forward, or any others.

    Attributes:
      attention: over the rows themselves.
      feed_forward: row by row.
      context: between the two, over the document around (Trankova et al. 2024, fig. 1); None leaves it out.
    """

    attention: Block
    feed_forward: Block
    context: Block | None = None

    def __call__(self, x: Float[Array, "*B S D"], context: Context):
        """([*B, S, D], what the blocks report, by name)."""
        reports = {}
        x, reports["attention"] = self.attention(x, context)
        if self.context is not None:
            x, reports["context"] = self.context(x, context)
        x, reports["feed_forward"] = self.feed_forward(x, context)
        return x, reports


class Encoder(nn.Module):
    """A stack of layers, with a last norm where the layers are pre-norm.

    Attributes:
      stack: of `EncoderLayer`s.
      final_norm: normalise the output.
    """

    stack: Stack
    final_norm: bool
    dtype: Any = jnp.float32

    def setup(self):
        if self.final_norm:
            self.norm = layer_norm(self.dtype)

    def __call__(self, x: Float[Array, "*B S D"], context: Context) -> tuple[Float[Array, "*B S D"], Aux]:
        x, reports = self.stack.run(lambda layer, x, _: layer(x, context), x)
        return self.norm(x) if self.final_norm else x, Aux.of("encoder", reports, context.capture)
