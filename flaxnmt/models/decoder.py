"""The Transformer decoder: all positions at once, or one at a time over a cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.gates.block import GatedKeys
from flaxnmt.layers.block import Block, layer_norm
from flaxnmt.layers.context import Aux, Context
from flaxnmt.layers.segments import Segments
from flaxnmt.layers.stack import Stack
from flaxnmt.typing import Array, Float, PyTree

Shared = dict[str, PyTree]


class DecoderLayer(nn.Module):
    """Attention over the target so far, attention over the source, feed-forward.

    Attributes:
      attention, cross_attention, feed_forward: blocks in their order.
      context: before the feed-forward, over the document of the source (Trankova et al. 2024, fig. 1); None
        leaves it out.
    """

    attention: Block
    cross_attention: Block
    feed_forward: Block
    context: Block | None = None

    def __call__(self, x: Float[Array, "*B T D"], shared: Shared, target: Context, source: Context):
        """([*B, T, D], what the blocks report, by name)."""
        reports = {}
        x, reports["attention"] = self.attention(x, target)
        x = self._source(x, shared, source, reports)
        x, reports["feed_forward"] = self.feed_forward(x, target)
        return x, reports

    def _source(self, x, shared: Shared, source: Context, reports: dict):
        x, reports["cross"] = self.cross_attention(x, source, shared=shared["cross"])
        if self.context is not None:
            x, reports["context"] = self.context(x, source, shared=shared["context"])
        return x

    def source_keys(self, memory: Float[Array, "*B S D"], source: Context) -> Shared:
        """What the blocks need of the source, such as keys and values [*B, H, S, K], computed once a sentence."""
        shared = {"cross": self.cross_attention.keys(memory, source)}
        if self.context is not None:
            shared["context"] = self.context.keys(memory, source)
        return shared

    def step(
        self,
        x: Float[Array, "*B K D"],
        cache: Segments,
        shared: Shared,
        target: Context,
        source: Context,
        write,
    ):
        """One position of K hypotheses a sentence, which are rows of one attention; the source is not tiled."""
        x, cache = self.attention.extend(x, cache, target, write)
        x = self._source(x, shared, source, {})
        x, _ = self.feed_forward(x, target)
        return x, cache


class Decoder(nn.Module):
    """A stack of layers, with a last norm where the layers are pre-norm.

    Attributes:
      stack: of `DecoderLayer`s.
      final_norm: normalise the output.
      dtype: of the computation.
    """

    stack: Stack
    final_norm: bool
    dtype: Any = jnp.float32

    def setup(self):
        if self.final_norm:
            self.norm = layer_norm(self.dtype)

    def _finish(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T D"]:
        return self.norm(x) if self.final_norm else x

    def __call__(
        self, x: Float[Array, "*B T D"], memory: Float[Array, "*B S D"], target: Context, source: Context
    ) -> tuple[Float[Array, "*B T D"], Aux]:
        """All positions at once, given the encoder's output: (output, what the layers report)."""

        def body(layer, x, _):
            return layer(x, layer.source_keys(memory, source), target, source)

        x, reports = self.stack.run(body, x)
        return self._finish(x), Aux.of("decoder", self.stack.per_layer(reports), capture=target.capture)

    def source_keys(self, memory: Float[Array, "*B S D"], source: Context) -> Any:
        """`DecoderLayer.source_keys` of every layer, to be kept while decoding: without what counts work."""
        keys = self.stack.map(lambda layer: layer.source_keys(memory, source))
        return jax.tree.map(
            lambda of: GatedKeys(of.shared) if isinstance(of, GatedKeys) else of,
            keys,
            is_leaf=lambda of: isinstance(of, GatedKeys),
        )

    def step(
        self,
        x: Float[Array, "*B K D"],
        caches: Any,
        shared: Any,
        target: Context,
        source: Context,
        write: Callable,
    ):
        """One position: ([*B, K, D], the caches with that position in them)."""

        def body(layer, x, per_layer):
            return layer.step(x, *per_layer, target, source, write)

        per_layer = (caches, shared) if self.stack.scan else tuple(zip(caches, shared))
        x, caches = self.stack.run(body, x, per_layer)
        return self._finish(x), caches
