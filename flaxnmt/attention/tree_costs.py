"""Work of the tree over the sentences of a document, of which only a device may know how many there are."""

import jax.numpy as jnp

from flaxnmt.attention.tree import WHOLE_LEVEL, first_level, level_sizes
from flaxnmt.typing import Array, Count, Float

COUNTED_LEVELS = 24
"""Levels of a tree whose sentences are counted on a device: more than any document has."""


def counted_sizes(sentences: Float[Array, "*B"]) -> Float[Array, "*B levels"]:
    """`level_sizes` of counts that only a device knows, with 0 for the levels above the root."""
    level = jnp.arange(COUNTED_LEVELS)
    count = sentences.astype(jnp.int32)[..., None]
    below = -(-count >> jnp.maximum(level - 1, 0))
    return jnp.where((level == 0) | (below > 1), -(-count >> level), 0).astype(sentences.dtype)


def tree_nodes(sentences: Count) -> Count:
    """Nodes of all levels."""
    if isinstance(sentences, int):
        return sum(level_sizes(sentences))
    return counted_sizes(sentences).sum(-1)


def traverse_flops(sentences: Count, t: int, head_size: int, whole_level: int = WHOLE_LEVEL) -> Count:
    """Multiply-adds counted as 2 that `traverse` needs for one word and one head: O(t log N).

    2t scores for each level, or one for each node of the small levels at the top, and t sums of paths.
    """
    whole = max(whole_level, 2 * t)
    if isinstance(sentences, int):
        sizes = level_sizes(sentences)
        searched = sizes[: first_level(sizes, t) + 1]
        scores = sum(size if size <= whole else 2 * t for size in searched)
        return 2 * head_size * (scores + min(t, sentences))
    sizes = counted_sizes(sentences)
    searched = (jnp.arange(COUNTED_LEVELS) == 0) | (sizes > t)
    scores = jnp.where(searched, jnp.where(sizes <= whole, sizes, 2 * t), 0).sum(-1)
    return 2 * head_size * (scores + jnp.minimum(t, sentences))
