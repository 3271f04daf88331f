"""The Transformer encoder."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.block import Block, layer_norm
from flaxnmt.layers.context import Aux, Context
from flaxnmt.layers.stack import Stack
from flaxnmt.typing import Array, Float


class EncoderLayer(nn.Module):
    """Blocks in order, each over the output of the one before: attention then feed-forward, or any others."""

    attention: Block
    feed_forward: Block

    def __call__(self, x: Float[Array, "B S D"], context: Context):
        x, weights = self.attention(x, context)
        x, _ = self.feed_forward(x, context)
        return x, weights


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

    def __call__(self, x: Float[Array, "B S D"], context: Context) -> tuple[Float[Array, "B S D"], Aux]:
        x, maps = self.stack.run(lambda layer, x, _: layer(x, context), x)
        return self.norm(x) if self.final_norm else x, Aux({"encoder": maps} if context.capture else {})
