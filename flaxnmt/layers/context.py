"""What a layer knows of its rows beyond their vectors, and what it reports beside its output."""

import functools

import jax.numpy as jnp
from flax import struct

from flaxnmt.typing import Array, Bool, Float, Int, PyTree


@struct.dataclass
class Context:
    """Facts about queries and keys, the same for all layers of a stack.

    Attributes:
      query_mask: [*B, Q], False at padding; None where there is none.
      key_mask: [*B, L], False at padding; None where there is none.
      query_positions: [B or 1, Q], index of each query in its sequence.
      key_positions: [B or 1, L], index of each key.
      visible: [*B, Q, L], True where a query may look at a key, beside what the other fields say.
      causal: a query looks only at keys whose position is not above its own.
      deterministic: no dropout.
      capture: report attention weights.
    """

    query_mask: Bool[Array, "*B Q"] | None = None
    key_mask: Bool[Array, "*B L"] | None = None
    query_positions: Int[Array, "#B Q"] | None = None
    key_positions: Int[Array, "#B L"] | None = None
    visible: Bool[Array, "*B Q L"] | None = None
    causal: bool = struct.field(pytree_node=False, default=False)
    deterministic: bool = struct.field(pytree_node=False, default=True)
    capture: bool = struct.field(pytree_node=False, default=False)

    def attention_mask(self) -> Bool[Array, "*#B 1 #Q L"] | None:
        """True where a query may look at a key, broadcast against [*B, H, Q, L]; None where all may."""
        masks = []
        if self.key_mask is not None:
            masks.append(self.key_mask[..., None, None, :])
        if self.visible is not None:
            masks.append(self.visible[..., None, :, :])
        if self.causal:
            masks.append(self.key_positions[..., None, None, :] <= self.query_positions[..., None, :, None])
        return functools.reduce(jnp.logical_and, masks) if masks else None


@struct.dataclass
class KeyValues:
    """Keys and values of an attention, [..., H, L, K]; also the form in which a decoder caches them."""

    key: Float[Array, "*B H L K"]
    value: Float[Array, "*B H L K"]


@struct.dataclass
class Aux:
    """What a block reports beside its output.

    Attributes:
      maps: by the name of the stack what its layers captured: a dictionary by the name of the block, such as
        attention weights [*B, H, Q, L], for each layer in a tuple, or, if scanned, stacked on a leading axis.
        Empty unless captured.
    """

    maps: dict[str, PyTree] = struct.field(default_factory=dict)


def positions_of(shape: tuple[int, ...]) -> Int[Array, "1 length"]:
    """0, 1, 2, ... for the last dimension of a [*B, length] array."""
    return jnp.arange(shape[-1], dtype=jnp.int32)[None]
