"""A cache of keys and values in several arrays, of which those are read that hold something.

There is room for the longest output, and a step in the midst of shorter ones would look at all of it. What is cut out of one
array is copied before it is multiplied; of several arrays the first ones are multiplied as they are.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from flaxnmt.layers.active import if_any
from flaxnmt.layers.context import KeyValues
from flaxnmt.typing import Array, Bool, Int, PyTree

Parts = tuple[KeyValues, ...]


def slots_of(parts: Sequence[Array]) -> list[slice]:
    """Which slots of the line lie in each of these arrays [..., L_i, K]."""
    ends = list(accumulate(part.shape[-2] for part in parts))
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def segments_here() -> int:
    """Into how many parts to divide the room of a cache: on CPUs four, which each step pays with a switch a layer.

    On accelerators, where it has not been measured, one: on GPUs the host may have to choose.
    """
    return 4 if jax.default_backend() == "cpu" else 1


def divided(positions: int, segments: int) -> list[int]:
    """Positions of each of so many segments at most: none is empty, and the first ones have one more than others.

    Raises:
      ValueError: for less than one segment.
    """
    if segments < 1:
        raise ValueError(f"a cache in {segments} segments: give at least 1")
    count = min(positions, segments)
    return [positions // count + (i < positions % count) for i in range(count)]


@struct.dataclass
class Segments:
    """Keys and values of L slots in a line, over several arrays.

    Attributes:
      parts: those of each array, [*B, H, L_i, K].
      used: how many parts, from the first on, hold something; None where there is but one.
    """

    parts: Parts
    used: Int[Array, "*layers"] | None = None

    @classmethod
    def behind(cls, keys: KeyValues, lengths: Sequence[int], scanned: bool = False) -> "Segments":
        """Room for so many slots in each part behind some keys, of which there may be none; of all layers if scanned."""
        if len(lengths) == 1:
            room = [(0, 0)] * (keys.key.ndim - 2) + [(0, *lengths), (0, 0)]
            return cls((jax.tree.map(lambda y: jnp.pad(y, room), keys),))

        def empty(length):
            return jax.tree.map(lambda y: jnp.zeros((*y.shape[:-2], length, y.shape[-1]), y.dtype), keys)

        first = (keys,) if keys.key.shape[-2] else ()
        layers = keys.key.shape[:1] if scanned else ()
        return cls((*first, *map(empty, lengths)), jnp.ones(layers, jnp.int32))

    @property
    def slots(self) -> list[slice]:
        return slots_of([part.key for part in self.parts])

    @property
    def length(self) -> int:
        """L."""
        return self.slots[-1].stop

    def written(self, new: KeyValues, at: Int[Array, ""]) -> "Segments":
        """With new slots from `at` on, all of which lie in one part."""
        if len(self.parts) == 1:
            return self.replace(parts=(jax.tree.map(lambda old, new: _put(old, new, at), *self.parts, new),))
        begins = [some.start for some in self.slots]
        parts = (_written(part, new, at - begin) for part, begin in zip(self.parts, begins, strict=True))
        return Segments(tuple(parts), jnp.sum(at >= jnp.array(begins), dtype=jnp.int32))

    def over_used(self, function: Callable[[Parts], PyTree], active: Bool[Array, "*R"] | None) -> PyTree:
        """function(parts that hold something), whose result is of the same shape for any; zeros if no row is active."""
        if len(self.parts) == 1:
            return if_any(active, function, self.parts)
        programs = [
            lambda parts, count=count: function(parts[:count]) for count in range(1, len(self.parts) + 1)
        ]

        def over(used, parts):
            return lax.switch(used - 1, programs, parts)

        return if_any(active, over, self.used, self.parts)


def _put(old: Array, new: Array, at: Int[Array, ""]) -> Array:
    return lax.dynamic_update_slice_in_dim(old, new, at, axis=-2)


def _written(part: KeyValues, new: KeyValues, at: Int[Array, ""]) -> KeyValues:
    """With new slots from `at` on, if there is room for them there."""
    last = part.key.shape[-2] - new.key.shape[-2]
    if last < 0:
        # Of a source in front of what is written.
        return part
    place = jnp.clip(at, 0, last)

    # To write what stands there costs less than a condition, for which the whole part may be copied.
    def put(old, new):
        there = lax.dynamic_slice_in_dim(old, place, new.shape[-2], axis=-2)
        return _put(old, jnp.where(at == place, new, there), place)

    return jax.tree.map(put, part, new)
