"""What a layer knows of its rows beyond their vectors, and what it reports beside its output."""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from flaxnmt.typing import Array, Bool, Float, Int, PyTree


def positions_of(shape: tuple[int, ...]) -> Int[Array, "1 length"]:
    """0, 1, 2, ... for the last dimension of a [*B, length] array."""
    return jnp.arange(shape[-1], dtype=jnp.int32)[None]


@struct.dataclass
class Places:
    """Where queries and keys stand in their sequences.

    Attributes:
      query: index of each query.
      key: index of each key.
      span: distances are below it, in either direction.
      consecutive: as in `Context`.
    """

    query: Int[Array, "*#B Q"]
    key: Int[Array, "*#B L"]
    span: int = struct.field(pytree_node=False)
    consecutive: bool = struct.field(pytree_node=False, default=False)

    def first(self, keys: int) -> "Places":
        """Of so many keys."""
        return self.replace(key=self.key[..., :keys])


@struct.dataclass
class Gating:
    """How gates are in training (Bapna et al. 2020, eq. 1 and 3).

    Attributes:
      noise: its scale; None for none.
      open: all gates are, whatever their value, which counts without noise; never if None.
      decided: gates are decisions, as in inference, which say nothing to their control networks; never if None.
      counted: of each example, whether its gates count as what they would decide; else, or if None, as their value.
    """

    noise: Float[Array, ""] | None = None
    open: Bool[Array, ""] | None = None
    decided: Bool[Array, ""] | None = None
    counted: Bool[Array, " B"] | None = None


@struct.dataclass
class Context:
    """Facts about queries and keys, the same for all layers of a stack.

    Attributes:
      query_mask: [*B, Q], False at padding; None where there is none.
      key_mask: [*B, L], False at padding; None where there is none.
      query_positions: [*B or 1, Q], index of each query in its sequence; None for 0, 1, 2, ...
      key_positions: [*B or 1, L], index of each key; likewise.
      consecutive: both are the same run of consecutive numbers wherever there is no padding, so that distances need no
        look-up.
      span: distances of keys from queries are below it, in either direction; the number of keys if None.
      visible: [*B, Q, L], True where a query may look at a key, beside what the other fields say; within a sentence
        only, attention over documents leaves it out.
      bias: [*B, H, Q, L], or what broadcasts to it, added to the scores; within a sentence only, too.
      causal: a query looks only at keys whose position is not above its own; attention over documents refuses it.
      active: [*B, Q] in `rows` or [*B, L] in `keys`, True where a result is wanted; None where all are. Elsewhere a
        sub-layer may leave out its work: keys and values are zeros there, and outputs are not looked at.
      key_gate: [*B, L], a factor of the keys and values of each row of the memory; None for 1.
      gating: how gates are in training; soft and without noise if None.
      deterministic: no dropout, and gates are decisions.
      skip: rows that a gate decides against are not computed, in place of being multiplied by 0.
      capture: report attention weights and gates.
    """

    query_mask: Bool[Array, "*B Q"] | None = None
    key_mask: Bool[Array, "*B L"] | None = None
    query_positions: Int[Array, "*#B Q"] | None = None
    key_positions: Int[Array, "*#B L"] | None = None
    visible: Bool[Array, "*B Q L"] | None = None
    bias: Float[Array, "*#B #H #Q L"] | None = None
    active: Bool[Array, "*B R"] | None = None
    key_gate: Float[Array, "*B L"] | None = None
    gating: Gating | None = None
    causal: bool = struct.field(pytree_node=False, default=False)
    consecutive: bool = struct.field(pytree_node=False, default=False)
    span: int | None = struct.field(pytree_node=False, default=None)
    deterministic: bool = struct.field(pytree_node=False, default=True)
    skip: bool = struct.field(pytree_node=False, default=False)
    capture: bool = struct.field(pytree_node=False, default=False)

    def attention_mask(self, queries: int, keys: int) -> Bool[Array, "*#B 1 #Q L"] | None:
        """True where one of that many queries may look at a key, to broadcast to [*B, H, Q, L]; None where all may."""
        masks = []
        if self.key_mask is not None:
            masks.append(self.key_mask[..., None, None, :])
        if self.visible is not None:
            masks.append(self.visible[..., None, :, :])
        if self.causal:
            places = self.places(queries, keys)
            masks.append(places.key[..., None, None, :] <= places.query[..., None, :, None])
        return functools.reduce(jnp.logical_and, masks) if masks else None

    def places(self, queries: int, keys: int) -> Places:
        """Where that many queries and keys stand."""
        query, key = (
            # No leading axis: rows without one, such as those under `vmap`, stay so.
            jnp.arange(count, dtype=jnp.int32) if given is None else given
            for given, count in ((self.query_positions, queries), (self.key_positions, keys))
        )
        unsaid = self.query_positions is None and self.key_positions is None
        return Places(query, key, self.span or keys, self.consecutive or unsaid)

    def of_new_rows(self) -> "Context":
        """For the keys of the rows of a step of decoding, which join those of the steps before."""
        return self.replace(key_positions=self.query_positions, visible=None, bias=None)

    def of_places(self, places: Int[Array, "*B P"]) -> "Context":
        """For the queries at these places of each sequence, over the same keys."""

        def taken(rows):
            return None if rows is None else jnp.take_along_axis(rows, places, axis=-1)

        pairs, bias = places[..., None], self.bias
        if bias is not None and bias.ndim > 1 and bias.shape[-2] > 1:
            bias = bias.reshape(*(1,) * (pairs.ndim + 1 - bias.ndim), *bias.shape)
            bias = jnp.take_along_axis(bias, pairs[..., None, :, :], axis=-2)
        return self.replace(
            query_mask=taken(self.query_mask),
            query_positions=places if self.query_positions is None else taken(self.query_positions),
            visible=None if self.visible is None else jnp.take_along_axis(self.visible, pairs, axis=-2),
            bias=bias,
            active=taken(self.active),
            consecutive=False,
        )

    def of_documents(self, batch: int) -> "Context":
        """What holds of each row and key, with those of a document in one line: [B, -1] in place of [B, N, M].

        What is `visible` is of the words of a sentence, and left out.

        Raises:
          ValueError: if it is causal, since words would then see those behind them, or has a bias, which is of pairs of
            words of a sentence.
        """
        if self.causal:
            raise ValueError(
                "attention over documents is not causal: what it knows of a sentence is of all its words"
            )
        if self.bias is not None:
            raise ValueError("attention over documents takes no bias: its pairs are not those of a sentence")

        def flat(rows):
            return None if rows is None else rows.reshape(batch, -1)

        return Context(
            query_mask=flat(self.query_mask),
            key_mask=flat(self.key_mask),
            query_positions=flat(self.query_positions),
            key_positions=flat(self.key_positions),
            active=flat(self.active),
            key_gate=flat(self.key_gate),
            deterministic=self.deterministic,
            skip=self.skip,
            capture=self.capture,
        )


@struct.dataclass
class KeyValues:
    """Keys and values of an attention, [..., H, L, K]; also the form in which a decoder caches them."""

    key: Float[Array, "*B H L K"]
    value: Float[Array, "*B H L K"]


@struct.dataclass
class Use:
    """What a gated block reports of one forward pass.

    Attributes:
      used: FLOPs of each example that its gates let through, in expectation where they are soft; the networks that
        control them are part of it.
      full: FLOPs of each example with all gates open, without those networks.
      gates: of each row, by name, [*B, Q, m]; None unless captured.
      captured: what its sub-layer captured, or None.
    """

    used: Float[Array, " B"]
    full: Float[Array, " B"]
    gates: dict[str, Float[Array, "*B Q m"]] | None = None
    captured: PyTree = None


@struct.dataclass
class Aux:
    """What a stack reports beside its output.

    Attributes:
      maps: by the name of the stack what its layers captured: for each layer, in a tuple, a dictionary by the name
        of the block, such as attention weights [*B, H, Q, L]. Empty unless captured.
      gates: likewise, of gated blocks alone.
      used: FLOPs of each example that gates let through, and...
      full: ...those of all that they could; None where no block is gated.
    """

    maps: dict[str, PyTree] = struct.field(default_factory=dict)
    gates: dict[str, PyTree] = struct.field(default_factory=dict)
    used: Float[Array, " B"] | None = None
    full: Float[Array, " B"] | None = None

    def use(self, examples: int) -> Float[Array, " B"]:
        """Share of the full computation of each example that was used, 1 where nothing is gated."""
        if self.used is None:
            return jnp.ones(examples)
        return self.used / jnp.maximum(self.full, 1)

    @classmethod
    def of(cls, stack: str, layers: Sequence[Mapping[str, PyTree]], *, capture: bool) -> "Aux":
        """From what the blocks of each layer of a stack reported, by name."""
        uses = [out for layer in layers for out in layer.values() if isinstance(out, Use)]
        used, full = (
            sum(works) if works else None
            for works in ([use.used for use in uses], [use.full for use in uses])
        )
        if not capture:
            return cls(used=used, full=full)
        maps = tuple(
            {name: out.captured if isinstance(out, Use) else out for name, out in layer.items()}
            for layer in layers
        )
        gates = tuple(
            {name: out.gates for name, out in layer.items() if isinstance(out, Use)} for layer in layers
        )
        return cls({stack: maps}, {stack: gates} if uses else {}, used, full)


def packed_positions(packed: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """0, 1, 2, ... from the beginning of each document, of sequences into which documents are packed by their number."""
    places = positions_of(packed.shape)
    opens = jnp.diff(packed, axis=-1, prepend=-1) != 0
    return places - jax.lax.cummax(jnp.where(opens, places, 0), axis=packed.ndim - 1)
