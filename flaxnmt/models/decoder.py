"""The Transformer decoder: all positions at once, or one at a time over a cache."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.block import Block, layer_norm
from flaxnmt.layers.context import Aux, Context, KeyValues
from flaxnmt.layers.stack import Stack
from flaxnmt.typing import Array, Float


class DecoderLayer(nn.Module):
    """Attention over the target so far, attention over the source, feed-forward."""

    attention: Block
    cross_attention: Block
    feed_forward: Block

    def __call__(self, x: Float[Array, "B T D"], cross: KeyValues, target: Context, source: Context):
        x, weights = self.attention(x, target)
        x, cross_weights = self.cross_attention(x, source, shared=cross)
        x, _ = self.feed_forward(x, target)
        return x, (weights, cross_weights)

    def source_keys(self, memory: Float[Array, "B S D"], source: Context) -> KeyValues:
        """Keys and values of the source, [B, H, S, K], computed once a sentence."""
        return self.cross_attention.keys(memory, source)

    def step(
        self,
        x: Float[Array, "B K D"],
        cache: KeyValues,
        cross: KeyValues,
        target: Context,
        source: Context,
        write,
    ):
        """One position of K hypotheses a sentence, which are rows of one attention; the source is not tiled."""
        x, cache = self.attention.extend(x, cache, target, write)
        x, _ = self.cross_attention(x, source, shared=cross)
        x, _ = self.feed_forward(x, source)
        return x, cache


class Decoder(nn.Module):
    """A stack of layers, with a last norm where the layers are pre-norm."""

    stack: Stack
    final_norm: bool
    dtype: Any = jnp.float32

    def setup(self):
        if self.final_norm:
            self.norm = layer_norm(self.dtype)

    def _finish(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.norm(x) if self.final_norm else x

    def __call__(
        self, x: Float[Array, "B T D"], memory: Float[Array, "B S D"], target: Context, source: Context
    ) -> tuple[Float[Array, "B T D"], Aux]:
        def body(layer, x, _):
            return layer(x, layer.source_keys(memory, source), target, source)

        x, maps = self.stack.run(body, x)
        return self._finish(x), Aux({"decoder": maps} if target.capture else {})

    def source_keys(self, memory: Float[Array, "B S D"], source: Context) -> Any:
        """Keys and values of the source for every layer."""
        return self.stack.map(lambda layer: layer.source_keys(memory, source))

    def step(
        self,
        x: Float[Array, "B K D"],
        caches: Any,
        cross: Any,
        target: Context,
        source: Context,
        write: Callable,
    ):
        """One position: ([B, K, D], the caches with that position in them)."""

        def body(layer, x, per_layer):
            return layer.step(x, *per_layer, target, source, write)

        per_layer = (caches, cross) if self.stack.scan else tuple(zip(caches, cross))
        x, caches = self.stack.run(body, x, per_layer)
        return self._finish(x), caches
