"""Encoders: stacks of layers of any kind, by themselves or side by side."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.each_device import branch_groups, side_by_side
from flaxnmt.errors import ConfigError
from flaxnmt.gates.block import GatedBlock, count, count_sentences
from flaxnmt.layers.block import Block, layer_norm
from flaxnmt.layers.context import Aux, Context
from flaxnmt.layers.segments import Segments
from flaxnmt.layers.stack import Stack
from flaxnmt.typing import Array, Count, Float, Int, PyTree


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

    def at(self, x: Float[Array, "*B S D"], places: Int[Array, "*B P"], context: Context):
        """As a call, of the rows at these places alone, [*B, P, D]; of a layer with attention, without gates."""
        x, weights = self.attention.at(x, places, context)
        x, hidden = self.feed_forward(x, context.of_places(places))
        return x, {"attention": weights, "feed_forward": hidden}

    def fill(self, x: Float[Array, "*B S D"], context: Context):
        """([*B, S, D], keys and values of its attention over these rows), of a layer with attention."""
        x, keys = self.attention.extend(x, None, context, lambda _, new: new)
        return self.feed_forward(x, context)[0], keys

    def step(self, x: Float[Array, "*B K D"], cache: Segments, context: Context, write):
        """One position of K hypotheses: ([*B, K, D], the cache with that position in it)."""
        x, cache = self.attention.extend(x, cache, context, write)
        return self.feed_forward(x, context)[0], cache


class Encoder(nn.Module):
    """A stack of layers, with a last norm where the layers are pre-norm.

    Attributes:
      stack: of `EncoderLayer`s.
      final_norm: normalise the output.
      reported_as: name of what its layers report.
      dtype: of the computation.
    """

    stack: Stack
    final_norm: bool
    reported_as: str = "encoder"
    dtype: Any = jnp.float32

    def setup(self):
        if self.final_norm:
            self.norm = layer_norm(self.dtype)

    @property
    def gated(self) -> bool:
        """Whether some of its blocks are, so that they report their work."""
        return any(
            isinstance(block, GatedBlock) for layer in self.stack.layers for _, block in layer.blocks()
        )

    def flops(self, d_model: int, rows: Count, sentences: Count = 1) -> Count:
        """Multiply-adds counted as 2 for one example of that many rows, all gates open."""
        layers = self.stack.layers * self.stack.repeats
        blocks = [block for layer in layers for _, block in layer.blocks()]
        return sum(block.flops(d_model, rows, rows, sentences) for block in blocks)

    def run(
        self, x: Float[Array, "*B S D"], context: Context, places: Int[Array, "*B P"] | None = None
    ) -> tuple[Float[Array, "*B R D"], tuple[PyTree, ...]]:
        """(output, what each layer reports)."""

        def body(layer, x, places):
            return layer(x, context) if places is None else layer.at(x, places, context)

        last = None if places is None else (*(None,) * (len(self.stack.layers) - 1), places)
        x, reports = self.stack.run(body, x, last)
        return self.norm(x) if self.final_norm else x, self.stack.per_layer(reports)

    def __call__(
        self, x: Float[Array, "*B S D"], context: Context, places: Int[Array, "*B P"] | None = None
    ) -> tuple[Float[Array, "*B R D"], Aux]:
        """Output of all rows or, with `places`, of those that stand there in each sequence, and what is reported.

        The last layer, which has attention and no gates and is not scanned, then computes those rows alone, and
        keys and values of all.
        """
        y, reports = self.run(x, context, places)
        return y, Aux.of(self.reported_as, reports, capture=context.capture)

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

    Where the rules of a mesh divide `branches` into G groups, encoder i is computed by the devices of group i mod G while
    others compute other encoders; elsewhere, and where maps are captured, one after the other by every device.

    Attributes:
      branches: the encoders.
      combination: of their outputs, see `flaxnmt.encoders.combine`.
      final_norm: normalise what they become together.
      dtype: of the computation.
    """

    branches: tuple[Encoder, ...]
    combination: nn.Module
    final_norm: bool = False
    dtype: Any = jnp.float32

    def setup(self):
        if self.final_norm:
            self.norm = layer_norm(self.dtype)

    def __call__(self, x: Float[Array, "*B S D"], context: Context) -> tuple[Float[Array, "*B S D"], Aux]:
        """The layers of all encoders, in order, are those of what is reported."""
        groups = branch_groups()
        if groups > 1 and not context.capture and not self.is_initializing():
            return self._side_by_side(x, context, groups)
        outputs, reports = [], ()
        for branch in self.branches:
            y, report = branch.run(x, context)
            outputs.append(y)
            reports += report
        aux = Aux.of("encoder", reports, capture=context.capture)
        return self._together(outputs), self._with_ungated(aux, x, context)

    def _together(self, outputs: list[Float[Array, "*B S D"]]) -> Float[Array, "*B S D"]:
        y = self.combination(outputs)
        return self.norm(y) if self.final_norm else y

    def _with_ungated(self, aux: Aux, x: Float[Array, "*B S D"], context: Context) -> Aux:
        """Where some encoders have gates, the others have their work in what is used, too."""
        if aux.used is None:
            return aux
        sentences = count_sentences(context.query_mask, x)
        sizes = x.shape[-1], count(context.query_mask, x), 1 if sentences is None else sentences
        work = sum(branch.flops(*sizes) for branch in self.branches if not branch.gated)
        return aux.replace(used=aux.used + work, full=aux.full + work)

    def _side_by_side(self, x: Float[Array, "*B S D"], context: Context, groups: int):
        if groups > len(self.branches):
            raise ConfigError(
                f"--mesh.branches with --mesh.model {groups}: there are {len(self.branches)} encoders side by side "
                "(--model.encoder.branches), so that some devices would have none"
            )
        # Scopes belong to the trace outside: inside, each encoder is a module by itself, with the same keys.
        modules, variables = zip(*(branch.unbind() for branch in self.branches), strict=True)
        rngs = [dict(branch.scope.rngs) for branch in self.branches]
        most = -(-len(modules) // groups)
        gated = any(branch.gated for branch in self.branches)

        def group(first: int):
            def function(whole, rows):
                outputs, reports = [], ()
                for i in range(first, len(modules), groups):
                    y, report = modules[i].apply(whole[0][i], *rows, rngs=whole[1][i], method="run")
                    outputs.append(y)
                    reports += report
                outputs += [jnp.zeros_like(outputs[0])] * (most - len(outputs))
                aux = Aux.of("encoder", reports, capture=False)
                if gated and aux.used is None:
                    none = jnp.zeros(len(rows[0]))
                    aux = Aux(used=none, full=none)
                return jnp.stack(outputs, axis=1), aux.used, aux.full

            return function

        found = side_by_side([group(first) for first in range(groups)], (variables, rngs), (x, context))
        outputs, *work = found
        used, full = (None if flops is None else flops.sum(0) for flops in work)
        outputs = [outputs[i % groups, :, i // groups] for i in range(len(modules))]
        return self._together(outputs), self._with_ungated(Aux(used=used, full=full), x, context)
