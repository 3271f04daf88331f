"""What a decoder keeps between two steps, and how it follows the hypotheses of a beam."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from flaxnmt.typing import Array, Bool, Int, PyTree


class DecodeCache(NamedTuple):
    """State of a decoder: `per_beam` leaves [B, K, ...] move with the hypotheses, `shared` [B, ...] never do.

    K is the number of hypotheses of a row. States of a recurrence belong into `per_beam`. Encoder keys and
    masks belong into `shared`, and so do the keys and values of self-attention where the model reads them
    through `ancestors` (below), which saves copying them at every step.
    """

    per_beam: PyTree
    shared: PyTree


Step = Callable[[DecodeCache, Array, Array], tuple[Array, DecodeCache]]
"""(cache, tokens Int[B, K], position Int[]) -> (logits Float[B, K, V] in float32, cache).

`tokens` are those before `position` (bos at position 0); the logits are for the token at `position`. A hypothesis that
is dead or has ended has pad there: its logits are not read, and a model with gates closes them for it. The step returns a
cache of the same structure, shapes and types. Every row needs one finite logit."""


def reorder(cache: DecodeCache, parents: Int[Array, "B K"]) -> DecodeCache:
    """The cache after hypothesis k of each row became a continuation of hypothesis `parents[b, k]`."""

    def follow(leaf):
        index = parents.reshape(parents.shape + (1,) * (leaf.ndim - 2))
        return jnp.take_along_axis(leaf, index, axis=1, mode="promise_in_bounds")

    return cache._replace(per_beam=jax.tree.map(follow, cache.per_beam))


def init_ancestors(batch: int, beams: int, length: int) -> Int[Array, "B K T"]:
    """The `per_beam` leaf that makes moving keys and values unnecessary.

    Keys and values of self-attention are written once and stay there: shared arrays [B, H, T * K, D] (D the
    head size), slot t * K + k for hypothesis k at position t. `ancestors[b, k, t]` names the hypothesis that
    wrote what hypothesis k has at position t; only these integers are reordered. All K queries of a row then
    attend to its slots together, under the mask of `visible_slots`: the same sums, without a gather of the
    cache. Slots may lie in several arrays (`flaxnmt.layers.segments`), of which steps read those in use.
    """
    return jnp.zeros((batch, beams, length), jnp.int32)


def extend_ancestors(ancestors: Int[Array, "B K T"], position: Int[Array, ""]) -> Int[Array, "B K T"]:
    """Every hypothesis writes its own slot at `position`; call it before `visible_slots`, once per step."""
    batch, beams, _ = ancestors.shape
    own = jnp.broadcast_to(jnp.arange(beams, dtype=ancestors.dtype)[:, None], (batch, beams, 1))
    return lax.dynamic_update_slice_in_dim(ancestors, own, position, axis=2)


def visible_slots(ancestors: Int[Array, "B K T"], position: Int[Array, ""]) -> Bool[Array, "B K S"]:
    """Mask over the S = T * K slots t * K + k: those in the history of each hypothesis up to `position`."""
    batch, beams, length = ancestors.shape
    written = jnp.arange(length)[:, None] <= position
    mask = (ancestors[..., None] == jnp.arange(beams)) & written
    return mask.reshape(batch, beams, length * beams)
