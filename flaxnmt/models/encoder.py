"""Encoders: stacks of layers of any kind, by themselves or side by side."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.gates.block import GatedBlock
from flaxnmt.layers.block import Block, layer_norm
from flaxnmt.layers.context import Aux, Context, KeyValues
from flaxnmt.layers.stack import Stack
from flaxnmt.typing import Array, Float, PyTree


class EncoderLayer(nn.Module):
    """Blocks in order, each over the output of the one before: attention then feed-forward, or any others.

    Attributes:
      attention: over the rows themselves.
      mixing: what stands in its place: recurrence, convolution, Fourier transform, expansion.
      context: over the document around (Trankova et al. 2024, fig. 1).
      feed_forward: row by row.
    """

    attention: Block | GatedBlock | None = None
    mixing: Block | GatedBlock | None = None
    context: Block | GatedBlock | None = None
    feed_forward: Block | GatedBlock | None = None

    def blocks(self) -> Iterator[tuple[str, Block | GatedBlock]]:
        """Those that there are, by name."""
        for name in ("attention", "mixing", "context", "feed_forward"):
            if (block := getattr(self, name)) is not None:
                yield name, block

    def __call__(self, x: Float[Array, "*B S D"], context: Context):
        """([*B, S, D], what the blocks report, by name)."""
        reports = {}
        for name, block in self.blocks():
            x, reports[name] = block(x, context)
        return x, reports

    def fill(self, x: Float[Array, "*B S D"], context: Context):
        """([*B, S, D], keys and values of its attention over these rows), of a layer with attention."""
        x, keys = self.attention.extend(x, None, context, lambda _, new: new)
        return self.feed_forward(x, context)[0], keys

    def step(self, x: Float[Array, "*B K D"], cache: KeyValues, context: Context, write):
        """One position of K hypotheses: ([*B, K, D], the cache with that position in it)."""
        x, cache = self.attention.extend(x, cache, context, write)
        return self.feed_forward(x, context)[0], cache


class Encoder(nn.Module):
    """A stack of layers, with a last norm where the layers are pre-norm.

    Attributes:
      stack: of `EncoderLayer`s.
      final_norm: normalise the output.
      reported_as: name of what its layers report.
    """

    stack: Stack
    final_norm: bool
    reported_as: str = "encoder"
    dtype: Any = jnp.float32

    def setup(self):
        if self.final_norm:
            self.norm = layer_norm(self.dtype)

    def run(
        self, x: Float[Array, "*B S D"], context: Context
    ) -> tuple[Float[Array, "*B S D"], tuple[PyTree, ...]]:
        """(output, what each layer reports)."""
        x, reports = self.stack.run(lambda layer, x, _: layer(x, context), x)
        return self.norm(x) if self.final_norm else x, self.stack.per_layer(reports)

    def __call__(self, x: Float[Array, "*B S D"], context: Context) -> tuple[Float[Array, "*B S D"], Aux]:
        y, reports = self.run(x, context)
        return y, Aux.of(self.reported_as, reports, context.capture)

    def outputs(self, x: Float[Array, "*B S D"], context: Context) -> Float[Array, "layers *B S D"]:
        """The input and the output of every layer, before the last norm."""

        def body(layer, x, _):
            y, _ = layer(x, context)
            return y, y

        _, outputs = self.stack.run(body, x)
        return jnp.stack([x, *self.stack.per_layer(outputs)])

    def fill(self, x: Float[Array, "*B S D"], context: Context) -> tuple[Float[Array, "*B S D"], PyTree]:
        """Output, and keys and values of every layer, with which decoding begins."""
        x, caches = self.stack.run(lambda layer, x, _: layer.fill(x, context), x)
        return self.norm(x) if self.final_norm else x, caches

    def step(self, x: Float[Array, "*B K D"], caches: PyTree, context: Context, write):
        """One position: ([*B, K, D], the caches with that position in them)."""
        x, caches = self.stack.run(lambda layer, x, cache: layer.step(x, cache, context, write), x, caches)
        return self.norm(x) if self.final_norm else x, caches


class Branches(nn.Module):
    """Encoders that all read the same embedded source, and one output made of theirs (Hu et al. 2023).

    Attributes:
      branches: the encoders.
      combination: of their outputs, see `flaxnmt.encoders.combine`.
    """

    branches: tuple[Encoder, ...]
    combination: nn.Module

    def __call__(self, x: Float[Array, "*B S D"], context: Context) -> tuple[Float[Array, "*B S D"], Aux]:
        """The layers of all encoders, in order, are those of what is reported."""
        outputs, reports = [], ()
        for branch in self.branches:
            y, report = branch.run(x, context)
            outputs.append(y)
            reports += report
        return self.combination(outputs), Aux.of("encoder", reports, context.capture)
