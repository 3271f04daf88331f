"""The tree over the sentences of a document and the search for the most relevant of them.

ConstructBT and TraverseTree of Trankova et al. 2024, section 3.3. A tree is a tuple of levels, from the leaves
(the sentences) to the root: level k has ceil(N / 2^k) nodes, and node i of it stands above nodes 2i and 2i + 1
of level k - 1, so that the ancestor of a leaf in level k is leaf >> k.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from flaxnmt.attention.dot_product import MASKED
from flaxnmt.attention.selection import Selection, gradients_of_kept
from flaxnmt.each_device import over_shards
from flaxnmt.typing import Array, Bool, Float, Int

By = Literal["raw", "cumulative"]

WHOLE_LEVEL = 32
"""Levels of up to this many nodes are scored by one product, which costs less than to fetch 2t keys a word."""

FLOATS_IN_BLOCK = 2**20
"""Numbers fetched at a time for a block of words: 4 MB, about a cache."""


@struct.dataclass
class TreePath:
    """The nodes from the root to the kept leaves: their numbers in their levels and their scores."""

    node: Int[Array, "B H L t levels"]
    score: Float[Array, "B H L t levels"]


def level_sizes(sentences: int) -> tuple[int, ...]:
    """ceil(N / 2^k) nodes for every level k, from the leaves to the root."""
    depth = (sentences - 1).bit_length()
    return tuple(-(-sentences >> k) for k in range(depth + 1))


def construct_tree(
    sentences: Float[Array, "*B N D"],
    mask: Bool[Array, "*B N"],
    merge: Callable[[Float[Array, "*B M 2 D"], Bool[Array, "*B M 2"]], Float[Array, "*B M D"]],
) -> tuple[tuple[Float[Array, "*B _ D"], ...], tuple[Bool[Array, "*B _"], ...]]:
    """ConstructBT (section 3.3.1): nodes and masks of all levels, from the leaves to the root.

    A node with two children is their merge, a node with one child its copy. Padded sentences are no children,
    so padding a document leaves its nodes as they are; a node without children is zeros and masked. Where
    padding makes the tree deeper, the further levels repeat the document's root.

    Args:
      sentences: encodings of the sentences.
      mask: False at padding.
      merge: (pairs of children, which of them exist) -> parents; called once for every level.
    """
    nodes, masks = [jnp.where(mask[..., None], sentences, 0)], [mask]
    while masks[-1].shape[-1] > 1:
        odd = masks[-1].shape[-1] % 2
        leading = [(0, 0)] * (mask.ndim - 1)
        present = jnp.pad(masks[-1], [*leading, (0, odd)]).reshape(*mask.shape[:-1], -1, 2)
        children = jnp.pad(nodes[-1], [*leading, (0, odd), (0, 0)])
        children = children.reshape(*present.shape, sentences.shape[-1])
        # A missing child is zeros, so the sum of a pair with one child is that child.
        parent = jnp.where(present.all(-1)[..., None], merge(children, present), children.sum(-2))
        nodes.append(parent)
        masks.append(present.any(-1))
    return tuple(nodes), tuple(masks)


def _down(parents: Array, children: int, axis: int = -2) -> Array:
    """Each parent in the place of each of its children."""
    return lax.slice_in_dim(jnp.repeat(parents, 2, axis), 0, children, axis=axis % parents.ndim)


def _counted(masks, count_copies: bool) -> list[Bool[Array, "B _"]]:
    """Which nodes add to the sum of a path.

    All, but for levels that merely repeat the root because of padding; without copies neither those that
    repeat their parent, so that a vector counts where a path first meets it.
    """
    counted = []
    for mask in masks[:-1]:
        if count_copies:
            counted.append(mask & (mask.sum(-1, keepdims=True) > 1))
        else:
            pairs = jnp.pad(mask, ((0, 0), (0, mask.shape[-1] % 2))).reshape(mask.shape[0], -1, 2)
            counted.append(_down(pairs.all(-1), mask.shape[-1], -1))
    return [*counted, masks[-1]]


def path_keys(
    keys: tuple[Float[Array, "B H _ K"], ...],
    masks: tuple[Bool[Array, "B _"], ...],
    count_copies: bool = True,
) -> tuple[Float[Array, "B H _ K"], ...]:
    """For each node the sum of the keys from the root to it, in float32.

    A product with this key is the sum of the scores on the path, for any query.
    """
    counted = _counted(masks, count_copies)
    paths = [keys[-1].astype(jnp.float32)]
    for key, counts in zip(keys[-2::-1], counted[-2::-1]):
        above = _down(paths[-1], key.shape[-2])
        paths.append(above + jnp.where(counts[:, None, :, None], key.astype(jnp.float32), 0))
    return tuple(reversed(paths))


def kept_nodes(
    scores: tuple[Float[Array, "B H L _"], ...],
    masks: tuple[Bool[Array, "B _"], ...],
    t: int,
    *,
    by: By = "raw",
    count_copies: bool = True,
    own: Int[Array, "#B L"] | None = None,
) -> tuple[tuple[Bool[Array, "B H L _"], ...], Float[Array, "B H L N"]]:
    """TraverseTree (section 3.3.2), literally: all nodes are scored, and each level keeps some.

    From the root down, these are the t best of the nodes whose ancestors were all kept.

    Args:
      scores: of every node for every word, from the leaves to the root.
      masks: of the nodes.
      t: nodes to keep in a level.
      by: whether a level chooses by the score of the node itself or by the sum of its path.
      count_copies: whether a node that is the only child of its parent, hence its copy, adds its score again.
      own: a sentence for each word that is kept with the path to it, beside t other nodes in each level.

    Returns:
      which nodes of each level are kept, from the leaves to the root, and the sum of the scores on the path to every
      sentence.
    """
    counted, t = _counted(masks, count_copies), t + (own is not None)
    total, kept, levels = scores[-1], masks[-1][:, None, None], []
    for k in reversed(range(len(scores))):
        size = masks[k].shape[-1]
        if k < len(scores) - 1:
            total = _down(total, size, -1) + jnp.where(counted[k][:, None, None], scores[k], 0)
            kept = _down(kept, size, -1) & masks[k][:, None, None]
        ranking = scores[k] if by == "raw" else total
        if own is not None:
            ranking = jnp.where((own >> k)[:, None, :, None] == jnp.arange(size), jnp.inf, ranking)
        ranking = jnp.where(kept, ranking, -jnp.inf)
        _, best = lax.top_k(ranking, min(t, size))
        kept = kept & jax.nn.one_hot(best, size, dtype=bool).any(-2)
        levels.append(kept)
    return tuple(reversed(levels)), total


def traverse_dense(
    scores: tuple[Float[Array, "B H L _"], ...], masks: tuple[Bool[Array, "B _"], ...], t: int, **options
) -> Float[Array, "B H L N"]:
    """The sum of the scores on the path to each sentence that TraverseTree keeps, at most t; -1e30 for all others.

    Arguments as of `kept_nodes`.
    """
    kept, total = kept_nodes(scores, masks, t, **options)
    return jnp.where(kept[0], total, MASKED)


def _best(score: Float[Array, "c *B"], node: Int[Array, "c *B"], t: int) -> Int[Array, "_ *B"]:
    """The nodes of the t largest scores, best first, equal ones in the order of the nodes."""
    # The rank of each candidate among all: vectorised over the words, for few candidates faster than a sort.
    equal = (score[:, None] == score) & (node[:, None] < node)
    rank = ((score[:, None] > score) | equal).sum(0, dtype=jnp.int32)
    slot = jnp.arange(min(t, score.shape[0])).reshape(-1, *[1] * score.ndim)
    return jnp.where(rank == slot, node, 0).max(1)


def _rows(table: Float[Array, "B H n K"], index: Int[Array, "B H *L"]) -> Float[Array, "B H *L K"]:
    return jax.vmap(jax.vmap(lambda rows, i: rows.at[i].get(mode="promise_in_bounds")))(table, index)


def _products(words: Float[Array, "B H L K"], rows: Float[Array, "B H L c K"]) -> Float[Array, "B H L c"]:
    """The product of each word with its own rows, in float32."""

    def products(words, rows):
        return words[:, :, :, None].astype(jnp.float32) * rows.astype(jnp.float32)

    def by_ones(words, rows):
        # XLA sums the last dimension one number at a time on a CPU, but a product with ones is vectorised.
        return lax.optimization_barrier(products(words, rows)) @ jnp.ones(words.shape[-1])

    return lax.platform_dependent(
        words, rows, cpu=by_ones, default=lambda words, rows: products(words, rows).sum(-1)
    )


@struct.dataclass
class _Searchable:
    """Keys as the search reads them, every level padded to a full binary tree, so that all children have a place.

    Attributes:
      whole: the keys of the levels from `first` down that are small, one level after the other.
      whole_mask: of their nodes.
      pairs: for each deeper level, from the leaves, the keys of both children of a node as one row.
      masks: of the nodes of all levels, from the leaves to the root.
      first: the level where the search begins.
    """

    whole: Float[Array, "B H n K"]
    whole_mask: Bool[Array, "B n"]
    pairs: tuple[Float[Array, "B H _ pair"], ...]
    masks: tuple[Bool[Array, "B _"], ...]
    first: int = struct.field(pytree_node=False)


def first_level(sizes: Sequence[int], t: int) -> int:
    """The highest level that has more than t nodes: above it all nodes are kept, and none needs a score."""
    return max((k for k, size in enumerate(sizes) if size > t), default=0)


def _searchable(keys, masks, t: int, whole_level: int) -> _Searchable:
    sizes = [mask.shape[-1] for mask in masks]
    first = first_level(sizes, t)
    deep = sum(size > max(whole_level, 2 * t) for size in sizes)
    missing = [2 ** (len(sizes) - 1 - k) - size for k, size in enumerate(sizes)]
    keys = [jnp.pad(key, ((0, 0), (0, 0), (0, more), (0, 0))) for key, more in zip(keys, missing)]
    masks = [jnp.pad(mask, ((0, 0), (0, more))) for mask, more in zip(masks, missing)]
    small = range(first, deep - 1, -1)
    whole = jnp.concatenate([keys[k] for k in small], axis=2)
    whole_mask = jnp.concatenate([masks[k] for k in small], axis=1)
    pairs = [key.reshape(*key.shape[:2], key.shape[2] // 2, 2 * key.shape[3]) for key in keys[:deep]]
    return _Searchable(whole, whole_mask, tuple(pairs), tuple(masks), first)


def _search(words: Float[Array, "B H L K"], tree: _Searchable, t: int, own: Int[Array, "B L"] | None):
    """The leaves that are kept, best first, [t, B, H, L], and which of them are sentences.

    A level is reached with at most t nodes of the level above, so it has at most 2t candidates, whatever its size.
    """
    there = jax.vmap(lambda mask, i: mask.at[i].get(mode="promise_in_bounds"), (0, 1), 1)
    dense = jnp.einsum("bhlk,bhnk->bhln", words, tree.whole, preferred_element_type=jnp.float32)
    dense = jnp.where(tree.whole_mask[:, None, None], dense, -jnp.inf)
    size, start = tree.masks[tree.first].shape[-1], 0
    node = lax.broadcasted_iota(jnp.int32, (size, *words.shape[:3]), 0)
    for k in range(tree.first, -1, -1):
        if k < tree.first:
            parent = jnp.moveaxis(node, 0, -1)
            node = (2 * node[:, None] + jnp.arange(2).reshape(2, 1, 1, 1)).reshape(-1, *words.shape[:3])
        if k >= len(tree.pairs):
            at = start + jnp.moveaxis(node, 0, -1)
            score = jnp.moveaxis(jnp.take_along_axis(dense, at, axis=-1, mode="promise_in_bounds"), -1, 0)
            start += tree.masks[k].shape[-1]
        else:
            rows = _rows(tree.pairs[k], parent)
            score = jnp.moveaxis(_products(words, rows.reshape(*words.shape[:3], -1, words.shape[-1])), -1, 0)
            score = jnp.where(there(tree.masks[k], node), score, -jnp.inf)
        if own is not None:
            score = jnp.where((node == (own >> k)[:, None]) & (score > -jnp.inf), jnp.inf, score)
        node = _best(score, node, t)
    valid = there(tree.masks[0], node)
    return jnp.where(valid, node, 0), valid


def _traverse(query, leaves, tree, own, t, block):
    padding = -query.shape[2] % block
    scaled = jnp.pad(query * query.shape[-1] ** -0.5, ((0, 0), (0, 0), (0, padding), (0, 0)))
    own = None if own is None else jnp.pad(own, ((0, 0), (0, padding)))

    def of_block(start):
        words = lax.dynamic_slice_in_dim(scaled, start, block, axis=2)
        mine = None if own is None else lax.dynamic_slice_in_dim(own, start, block, axis=1)
        node, valid = _search(words, tree, t, mine)
        relevance = jnp.moveaxis(_products(words, _rows(leaves, jnp.moveaxis(node, 0, -1))), -1, 0)
        return node, jnp.where(valid, relevance, 0), valid

    found = lax.map(of_block, jnp.arange(0, scaled.shape[2], block))
    # [blocks, t, B, H, block]
    found = (x.transpose(2, 3, 0, 4, 1).reshape(*query.shape[:2], -1, t) for x in found)
    return tuple(x[:, :, : query.shape[2]] for x in found)


_select = jax.custom_vjp(_traverse, nondiff_argnums=(4, 5))


def _select_forward(query, leaves, tree, own, t, block):
    selected = _traverse(query, leaves, tree, own, t, block)
    return selected, (query, leaves, selected[0], selected[2])


def _select_backward(t, block, saved, cotangents):
    """That of the kept sums of paths, as products of words with the path keys of their leaves."""
    return *gradients_of_kept(*saved, cotangents[1]), None, None


_select.defvjp(_select_forward, _select_backward)


def traverse(
    query: Float[Array, "B H L K"],
    keys: tuple[Float[Array, "B H _ K"], ...],
    masks: tuple[Bool[Array, "B _"], ...],
    t: int,
    *,
    by: By = "raw",
    count_copies: bool = True,
    own: Int[Array, "#B L"] | None = None,
    block: int | None = None,
    whole_level: int = WHOLE_LEVEL,
) -> Selection:
    """TraverseTree in O(t log N) products a word: the selection of `traverse_dense` on q k^T / sqrt(K).

    Relevance is the sum of the scores on the path to the sentence. Its gradient is that of the kept paths: the
    choice itself has none. Equal scores are taken in the order of the nodes. The order is that of the scores
    which the lowest level chose by.

    Args:
      query: of the words.
      keys: of the nodes, from the leaves to the root.
      masks: of the nodes.
      t: nodes to keep in a level.
      by: whether a level chooses by the score of the node itself or by the sum of its path.
      count_copies: whether a node that is the only child of its parent, hence its copy, adds its score again.
      own: a sentence that each word keeps in the first place, with the path to it, beside t other nodes in each
        level: t + 1 choices.
      block: words in a block; by default as many as keep what is fetched in a cache.
      whole_level: levels of up to this many nodes, or 2t, are scored whole.

    Raises:
      ValueError: if t is below 1.
    """
    batch, _, length, size = query.shape
    if t < 1:
        raise ValueError(f"t is {t}: attention keeps at least one sentence")
    if own is not None:
        own = jnp.broadcast_to(own, (batch, length))
    searched = t + (own is not None)
    kept = min(searched, keys[0].shape[2])

    def selected(query, keys, masks, own):
        words = block or max(64, FLOATS_IN_BLOCK // (query.shape[0] * query.shape[1] * 2 * t * size))
        paths = path_keys(keys, masks, count_copies)
        tree = _searchable(keys if by == "raw" else paths, masks, searched, whole_level)
        tree = jax.tree.map(lax.stop_gradient, tree)
        return Selection(*_select(query, paths[0], tree, own, kept, min(words, length)))

    by_document, by_head = ("batch",), ("batch", "heads")
    inputs = (by_head, by_head, by_document, by_document)
    return over_shards(selected, inputs, by_head)(query, keys, masks, own)


def tree_path(
    query: Float[Array, "B H L K"], keys: tuple[Float[Array, "B H _ K"], ...], selection: Selection
) -> TreePath:
    """The nodes and their scores on the way to each kept sentence."""
    depth = len(keys) - 1
    scaled = query * query.shape[-1] ** -0.5
    node = [selection.index >> k for k in range(depth, -1, -1)]
    score = [_products(scaled, _rows(keys[depth - i], at)) for i, at in enumerate(node)]
    return TreePath(jnp.stack(node, -1), jnp.stack(score, -1))
