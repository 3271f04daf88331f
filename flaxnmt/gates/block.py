"""A block whose sub-layers are gated: each row decides whether it goes through them (Bapna et al. 2020).

With `Context.skip` this is not computed of what gates decide against:

- by row, in sixteenths of all rows of a batch (`on_active`), where the compiler does not divide them: projections of
  queries and outputs, feed-forward networks, convolutions, the selector of Static Expansion; projections of keys and
  values, by the gate of their own row;
- for a whole batch, where none of its rows is on (`if_any`): scores and weighted sums of an attention without a kernel;
  where rows are their own memory and nothing is cached, as in an encoder, also the whole shared part of a sub-layer
  (recurrence, transform, expansion, encodings of sentences and what is projected of them, a tree). Over another memory,
  and in decoding, rows that are to come may want it.

Always computed are norms and control networks, the choice of sentences, and the backward expansion. `Use` counts by row
what is by row, scores too, keys and values by their gates, and what else is shared wherever a row of the example is on;
so it may say less than was computed.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.gates.control import ControlNetwork, control_flops, decided, hard_gate, soft_gate
from flaxnmt.layers.block import layer_norm, layer_norm_flops
from flaxnmt.layers.context import Context, Gating, Use
from flaxnmt.layers.dropout import Dropout, hash_normal
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.typing import Array, Bool, Count, Float

OUTPUT_SCALE = 0.1
"""Of output norms at the beginning, whatever the sub-layers in front of them say. At 1 the sum of all blocks covers the words
for hundreds of updates, and at 0.5 the same model still learns more slowly than one without these norms."""


@struct.dataclass
class Gate:
    """The m gates of each row.

    Attributes:
      factor: of the outputs of the sub-layers.
      counted: in what the example uses; its gradient closes or opens the gate.
    """

    factor: Float[Array, "*B Q m"]
    counted: Float[Array, "*B Q m"]


@struct.dataclass
class GatedKeys:
    """The shared part of each of m sub-layers over a memory of L rows.

    Attributes:
      shared: as `SubLayer.keys` gives it, a tuple over the sub-layers.
      gate: of each row of the memory; None where no sub-layer gates its keys.
      rows: rows of the memory that are not padding, for each example; None where nobody counts its work.
      sentences: of each document, those of the memory that have such rows; None where an example is one sentence.
      on: their gates, added up.
    """

    shared: tuple[Any, ...]
    gate: Gate | None = None
    rows: Float[Array, " B"] | None = None
    sentences: Float[Array, " B"] | None = None
    on: Float[Array, "B m"] | None = None


def examples_of(rows: Float[Array, "*B Q m"]) -> tuple[int, int]:
    """How many examples or documents these are, and rows of each; without an axis of examples it is one."""
    *axes, queries, _ = rows.shape
    return (axes[0], math.prod(axes[1:]) * queries) if axes else (1, queries)


def count(mask: Bool[Array, "*B Q"] | None, rows: Float[Array, "*B Q D"]) -> Float[Array, " B"]:
    """Rows of each example, or of each document, that are not padding."""
    if mask is None:
        examples, each = examples_of(rows)
        return jnp.full(examples, each, jnp.float32)
    return mask.reshape(examples_of(rows)).sum(-1, dtype=jnp.float32)


def count_sentences(
    mask: Bool[Array, "*B Q"] | None, rows: Float[Array, "*B Q D"]
) -> Float[Array, " B"] | None:
    """Sentences of each document [B, N, Q, D] that have rows which are not padding; None of what is no document."""
    if rows.ndim != 4:
        return None
    return count(None if mask is None else mask.any(-1), rows[:, :, 0])


def total(gate: Float[Array, "*B Q m"]) -> Float[Array, "B m"]:
    """Sums of the gates of each example over its rows."""
    return gate.reshape(*examples_of(gate), gate.shape[-1]).sum(1)


def largest(gate: Float[Array, "*B Q m"]) -> Float[Array, "B m"]:
    """The largest gates of each example over its rows, 0 without any."""
    return gate.reshape(*examples_of(gate), gate.shape[-1]).max(1, initial=0)


def _keys(sublayer: SubLayer, memory, context: Context):
    return sublayer.keys(memory, context)


def _no_keys(sublayer: SubLayer, memory, context: Context):
    # The compiler computes nothing of what only gives its shapes.
    return jax.tree.map(jnp.zeros_like, sublayer.keys(memory, context))


class GatedBlock(nn.Module):
    """x + Dropout(sum_j G_j(x) LN_j(f_j(LN'_j(x)))): m sub-layers side by side, each behind its own gate (eq. 12-15).

    One attention (m = 1) or the m parts of a feed-forward network. A sub-layer that `gates_keys` has a second
    gate on the keys and values of each row of its memory, which other rows then see as zeros. Where `Context` is
    deterministic gates are decisions, and with its `skip` what they decide against is left out where it can be (see the
    module); in training they are as its `gating` says, with noise by the rng stream `dropout`. It stands where a `Block`
    stands, in cached decoding with one attention.

    As a module by itself, `GatedBlock(512, tuple(FeedForward(512, 512) for _ in range(4)), hidden=64)(x,
    Context(query_mask=mask))` is (output, `Use`).

    Attributes:
      d_model: D.
      sublayers: f_j, each a module of its own, since one that stands twice shares its parameters; for eq. 15 feed-forward
        networks of inner size F / m.
      hidden: d_h of the control networks.
      control_scale: factor of their logits.
      normed_outputs: whether the output of each sub-layer is normalised in front of its gate; else LN_j is left out.
      dropout: rate on the sum.
      dtype: of the computation.
    """

    d_model: int
    sublayers: tuple[SubLayer, ...]
    hidden: int
    control_scale: float = 1.0
    normed_outputs: bool = True
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        gates = len(self.sublayers)
        self.input_norms = [layer_norm(self.dtype) for _ in self.sublayers]
        if self.normed_outputs:
            self.output_norms = [layer_norm(self.dtype, scale=OUTPUT_SCALE) for _ in self.sublayers]
        self.control = ControlNetwork(self.d_model, self.hidden, gates, self.control_scale, self.dtype)
        if self.gates_keys:
            self.key_control = ControlNetwork(
                self.d_model, self.hidden, gates, self.control_scale, self.dtype
            )
        self.residual_dropout = Dropout(self.dropout)

    def added_flops(self, queries: Count, keys: Count) -> Count:
        """What a block without gates does not do: products of control networks, and all norms of rows but one.

        Norms within control networks, and of keys, are no part of it: less than 1% of a layer of d 128, 0.2% of d 512.
        """
        control = control_flops(self.d_model, self.hidden, len(self.sublayers))
        norms = len(self.sublayers) * (2 if self.normed_outputs else 1) - 1
        return queries * (control + norms * layer_norm_flops(self.d_model)) + (
            keys * control if self.gates_keys else 0
        )

    @property
    def gates_keys(self) -> bool:
        return any(sublayer.gates_keys for sublayer in self.sublayers)

    def _gate(self, control: ControlNetwork, x: Float[Array, "*B Q D"], mask, context: Context) -> Gate:
        """In (0, 1) in training, else 0 or 1; 0 at padding."""
        logits = control(x)
        if context.deterministic:
            counted = gate = hard_gate(logits).astype(jnp.float32)
        else:
            gating = context.gating or Gating()
            noise, scale = None, 0.0 if gating.noise is None else gating.noise
            if gating.noise is not None:
                noise = hash_normal(self.make_rng("dropout"), logits.shape)
            if gating.open is not None:
                scale = jnp.where(gating.open, 0.0, scale)
            gate = counted = soft_gate(logits, noise, scale)
            if gating.open is not None:
                gate = jnp.where(gating.open, 1.0, gate)
            if gating.decided is not None:
                gate = jnp.where(gating.decided, hard_gate(logits).astype(gate.dtype), gate)
            if gating.counted is not None:
                by_decision = jnp.reshape(gating.counted, (-1, *(1,) * (logits.ndim - 1)))
                counted = jnp.where(by_decision, decided(logits, counted), counted)
        if mask is None:
            return Gate(gate, counted)
        return Gate(*(jnp.where(mask[..., None], values, 0) for values in (gate, counted)))

    def _skips(self, sublayer: SubLayer, context: Context) -> bool:
        return context.skip and context.deterministic and sublayer.rowwise

    def _shared(self, sublayer: SubLayer, memory, context: Context, wanted: Bool[Array, "*B Q"] | None):
        """`SubLayer.keys`; zeros, at no cost, if it is not wanted by any row."""
        if wanted is None or type(sublayer).keys is SubLayer.keys or self.is_initializing():
            return sublayer.keys(memory, context)
        return nn.cond(wanted.any(), _keys, _no_keys, sublayer, memory, context)

    def _memory_keys(self, x, memories, mask, context: Context, rows: Gate | None = None) -> GatedKeys:
        """Shared parts of the sub-layers over a memory each; `x` is what the control network reads.

        `rows` are the gates of all rows that will ever look at it, where they are known.
        """
        gate = self._gate(self.key_control, x, mask, context) if self.gates_keys else None
        shared = []
        for j, (sublayer, memory) in enumerate(zip(self.sublayers, memories, strict=True)):
            here = context
            if sublayer.gates_keys and self._skips(sublayer, context):
                here = context.replace(active=gate.factor[..., j] > 0)
            elif sublayer.gates_keys:
                here = context.replace(key_gate=gate.factor[..., j])
            wanted = None if rows is None or not context.skip else rows.factor[..., j] > 0
            shared.append(self._shared(sublayer, memory, here, wanted))
        on = None if gate is None else total(gate.counted)
        return GatedKeys(tuple(shared), gate, count(mask, x), count_sentences(mask, x), on)

    def keys(self, memory: Float[Array, "*A L D"], context: Context) -> GatedKeys:
        """As `Block.keys`: over a memory that does not change while decoding."""
        return self._memory_keys(memory, [memory] * len(self.sublayers), context.key_mask, context)

    def _rows(self, x, inputs, shared: tuple[Any, ...], context: Context, gate: Gate | None = None):
        """The gated sum, its gates, which may be known, and what the sub-layers captured."""
        if gate is None:
            gate = self._gate(self.control, x, context.query_mask, context)
        y, captured = jnp.zeros((), self.dtype), []
        for j, (sublayer, h) in enumerate(zip(self.sublayers, inputs, strict=True)):
            factor = gate.factor[..., j : j + 1]
            here = context.replace(active=factor[..., 0] > 0) if self._skips(sublayer, context) else context
            part, seen = sublayer.rows(h, shared[j], here)
            part = self.output_norms[j](part) if self.normed_outputs else part
            y += factor.astype(self.dtype) * part
            captured.append(seen)
        return self.residual_dropout(y, context.deterministic), gate, captured

    def __call__(self, x: Float[Array, "*B Q D"], context: Context, shared: GatedKeys | None = None):
        """([*B, Q, D], `Use` or, over keys that nobody counts, None); without `shared` the rows are their own memory."""
        inputs = [norm(x) for norm in self.input_norms]
        gate = None
        if shared is None:
            if context.deterministic:
                # In training noise is drawn for the gates of keys first, as it was for all runs so far.
                gate = self._gate(self.control, x, context.query_mask, context)
            mask = context.query_mask if context.key_mask is None else context.key_mask
            shared = self._memory_keys(x, inputs, mask, context, gate)
        y, gate, captured = self._rows(x, inputs, shared.shared, context, gate)
        return x + y, None if shared.rows is None else self._use(x, gate, shared, context, captured)

    def extend(self, x: Float[Array, "*B Q D"], cache: Any, context: Context, write):
        """As `Block.extend`: keys of gated-off rows are cached as zeros. ValueError for several sub-layers side by side."""
        if len(self.sublayers) > 1:
            raise ValueError(
                f"a step of decoding adds to the keys of one sub-layer, not of {len(self.sublayers)}"
            )
        inputs = [norm(x) for norm in self.input_norms]
        new = self._memory_keys(x, inputs, context.query_mask, context.of_new_rows())
        cache = write(cache, new.shared[0])
        y, _, _ = self._rows(x, inputs, (cache,), context)
        return x + y, cache

    def _use(self, x, gate: Gate, shared: GatedKeys, context: Context, captured) -> Use:
        """FLOPs of each example: what its gates let through, and all there is."""
        # Of a document the work is that of all its sentences.
        sentences = 1 if shared.sentences is None else shared.sentences
        queries, keys = count(context.query_mask, x), shared.rows
        rows_on, most_on = total(gate.counted), largest(gate.counted)
        used, full = self.added_flops(queries, keys), jnp.zeros_like(queries)
        for j, sublayer in enumerate(self.sublayers):
            of_keys, of_rows = sublayer.flops(self.d_model, queries, keys, sentences)
            # A shared part without a gate of its own is needed as soon as a row is on. Of soft gates the largest says how
            # much, since a sum of them, cut at 1, has no gradient that would close it.
            gated = sublayer.key_flops(self.d_model, keys) if sublayer.gates_keys else 0
            full += of_keys + of_rows
            used += (of_keys - gated) * most_on[:, j] + of_rows * rows_on[:, j] / jnp.maximum(queries, 1)
            if sublayer.gates_keys:
                used += gated * shared.on[:, j] / jnp.maximum(keys, 1)
        if not context.capture:
            return Use(used, full)
        gates = {"rows": gate.factor} | ({} if shared.gate is None else {"keys": shared.gate.factor})
        return Use(used, full, gates, captured[0] if len(captured) == 1 else tuple(captured))

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: int = 1) -> Count:
        """As `Block.flops`, with all gates open, control networks and additional norms counted."""
        return self.added_flops(queries, keys) + sum(
            sum(sublayer.flops(d_model, queries, keys, sentences)) for sublayer in self.sublayers
        )
