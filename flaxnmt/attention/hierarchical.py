"""Hierarchical conditional attention: sentences are found by a search in a tree (Trankova et al. 2024, section 3.3)."""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jax import lax

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.dot_product import MASKED, attention_scores
from flaxnmt.attention.selection import Selection
from flaxnmt.attention.tree import (
    By,
    TreePath,
    construct_tree,
    kept_nodes,
    level_sizes,
    traverse,
    traverse_dense,
    tree_path,
)
from flaxnmt.attention.tree_costs import traverse_flops, tree_nodes
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.sublayer import words_each
from flaxnmt.typing import Array, Bool, Count, Float, Int


def select_dense(
    query: Float[Array, "B H L K"],
    keys: tuple[Float[Array, "B H _ K"], ...],
    masks: tuple[Bool[Array, "B _"], ...],
    t: int,
    *,
    by: By = "raw",
    count_copies: bool = True,
    own: Int[Array, "#B L"] | None = None,
) -> Selection:
    """The selection of `traverse` by scores of all nodes for all words, those of the largest sum of a path first."""
    scores = tuple(attention_scores(query, key) for key in keys)
    values = traverse_dense(scores, masks, t, by=by, count_copies=count_copies, own=own)
    value, index = lax.top_k(values, min(t + (own is not None), values.shape[-1]))
    valid = value > MASKED / 2
    return Selection(jnp.where(valid, index, 0), jnp.where(valid, value, 0), valid)


@struct.dataclass
class TracedSelection(Selection):
    """A selection, and how the tree was searched for it.

    Attributes:
      path: the way through the tree to each of its sentences.
      kept: whether a node is kept by its level, for all nodes, one level behind the other from the root.
      scores: likewise, of a node by itself.
    """

    path: TreePath
    kept: Bool[Array, "B H L nodes"]
    scores: Float[Array, "B H L nodes"]


@struct.dataclass
class TreeKeys(KeyValues):
    """Keys and values [B, H, N, M, K] of the words of a document, and the selector's keys of the nodes of its tree.

    Levels are in the order from the leaves to the root.
    """

    mask: Bool[Array, "B N M"]
    node_keys: tuple[Float[Array, "B H _ K"], ...]
    node_masks: tuple[Bool[Array, "B _"], ...]


class HierarchicalAttention(ConditionalAttention, kw_only=True):
    """Conditional attention whose sentences are found in O(t log N) products a word (eq. HierarchicalCondAtt).

    The tree is built over the encodings of the sentences, and each head searches it with its own projections
    of words and nodes. What is added to the scores of the words of a sentence is the sum of the scores on the
    path to it.

    Attributes:
      d_model, heads, dropout, dtype, t, sentence_encoder, always_keep_own: as in `ConditionalAttention`, whose
        parameters these are; those of `merge` are added.
      merge: a module from two children [B, n, 2, D] and which of them exist to [B, n, D], one for the whole
        tree: `Source2Token` in the paper, or another sentence encoder.
      by: whether a level of the tree chooses by the score of the node itself or by the sum of its path.
      count_copies: whether a node that is the only child of its parent, hence its copy, adds its score again.
      dispatched: search, and compute the scores of selected sentences only; if not, those of all nodes and all
        words, literally. None takes what `ConditionalAttention` does.
    """

    merge: nn.Module
    by: By = "raw"
    count_copies: bool = True

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> TreeKeys:
        sentences = memory.shape[1]
        mask = jnp.ones(memory.shape[:-1], bool) if context.key_mask is None else context.key_mask
        words = self._word_keys(memory, context)
        nodes, masks = construct_tree(self.sentence_encoder(memory, mask), mask.any(-1), self.merge)
        (node_keys,) = self._heads(jnp.concatenate(nodes, axis=1), self.w_selector_key)
        ends = np.cumsum(level_sizes(sentences))[:-1]
        return TreeKeys(words.key, words.value, mask, tuple(jnp.split(node_keys, ends, axis=2)), masks)

    def rows(self, x: Float[Array, "*rows D"], shared: TreeKeys, context: Context):
        """(an output of the shape of x, `TracedSelection` of the L rows of each document or None)."""
        batch, sentences, words = shared.mask.shape
        flat = x.reshape(batch, -1, x.shape[-1])
        select = traverse if self._dispatches(sentences, sentences * words) else select_dense
        context = context.of_documents(batch)
        (selector,) = self._heads(flat, self.w_selector_query, active=context.active)
        own = self._own(flat.shape[1], sentences)
        tree = (shared.node_keys, shared.node_masks)
        options = {"by": self.by, "count_copies": self.count_copies, "own": own}
        selection = select(selector, *tree, self.t, **options)
        y = self._look(flat, shared, selection, context).reshape(x.shape)
        if not context.capture:
            return y, None
        path = tree_path(selector, shared.node_keys, selection)
        scores = tuple(attention_scores(selector, key) for key in shared.node_keys)
        kept, _ = kept_nodes(scores, shared.node_masks, self.t, **options)
        nodes = (jnp.concatenate(levels[::-1], axis=-1) for levels in (kept, scores))
        return y, TracedSelection(selection.index, selection.relevance, selection.valid, path, *nodes)

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        """As of every sub-layer, for one document whose `keys` words stand in `sentences` sentences."""
        nodes = tree_nodes(sentences)
        encoding = self.sentence_encoder.flops(sentences, words_each(keys, sentences))
        encoding += self.merge.flops(nodes - sentences, 2)
        shared = encoding + self.key_flops(d_model, keys) + 2 * nodes * d_model**2
        kept = self.t + self.always_keep_own
        searched = self.heads * traverse_flops(sentences, kept, d_model // self.heads)
        scores = self._counted(keys, sentences, searched, 2 * nodes * d_model)
        rows = queries * (6 * d_model**2 + scores + 4 * self._words_seen(keys, sentences) * d_model)
        return shared, rows + self._position_flops(d_model, queries, keys)
