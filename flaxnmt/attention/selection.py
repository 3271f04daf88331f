"""Which sentences a word attends to: the top t by relevance (Trankova et al. 2024, eq. 3 and 4)."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from flaxnmt.each_device import over_shards
from flaxnmt.typing import Array, Bool, Float, Int

SCORES_IN_BLOCK = 2**20
"""Relevance scores that are held at a time: 4 MB, about a cache, with at least 64 words a block."""


@struct.dataclass
class Selection:
    """The sentences that each word keeps, best first.

    Attributes:
      index: number of the sentence in its document.
      relevance: its score, to be added to the scores of its words; 0 where not valid.
      valid: False in the last places of a document that has fewer than t sentences.
    """

    index: Int[Array, "B H L t"]
    relevance: Float[Array, "B H L t"]
    valid: Bool[Array, "B H L t"]


def own_sentences(rows: int, sentences: int) -> Int[Array, " Q"]:
    """The sentence in which each row stands, for `rows` rows in the order of their N sentences.

    Raises:
      ValueError: if the rows do not divide by the sentences.
    """
    if rows % sentences:
        raise ValueError(
            f"{rows} rows do not divide by {sentences} sentences: give every sentence as many rows"
        )
    return jnp.arange(rows) // (rows // sentences)


def take_rows(table: Array, index: Int[Array, "B H *I"]) -> Array:
    """table[b, h, index[b, h]] of a table [B, H, R, ...], the last row where the index is out of range."""
    return jax.vmap(jax.vmap(lambda rows, i: rows.at[i].get(mode="clip")))(table, index)


def add_rows(table: Array, index: Int[Array, "B H I"], rows: Array) -> Array:
    """A table [B, H, R, ...] with rows[b, h] added at index[b, h]."""
    return jax.vmap(jax.vmap(lambda table, i, rows: table.at[i].add(rows)))(table, index, rows)


def sum_of_choices(
    rows: Float[Array, "B H R K"], index: Int[Array, "B H L t"], weights: Float[Array, "B H L t"]
) -> Float[Array, "B H L K"]:
    """sum_i weights[..., i] rows[index[..., i]] in float32, without the array of all choices."""
    return sum(weights[..., i, None] * take_rows(rows, index[..., i]) for i in range(index.shape[-1]))


def _best(scores: Float[Array, "*B N L"], t: int) -> tuple[Float[Array, "t *B L"], Int[Array, "t *B L"]]:
    """The t largest over N, equal ones in the order of N: the order of `lax.top_k`, -inf at the end.

    Each round takes the maximum of what comes after the one before. With words in the last dimension all of
    it is vectorised and nothing is moved, which for small t is many times faster than a sort.
    """
    sentence = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 2)
    count = scores.shape[-2]
    values, indices = [], []
    left = scores
    for _ in range(t):
        value = left.max(-2, keepdims=True)
        index = jnp.where(left == value, sentence, count - 1).min(-2, keepdims=True)
        left = jnp.where((scores < value) | ((scores == value) & (sentence > index)), scores, -jnp.inf)
        values.append(value[..., 0, :])
        indices.append(index[..., 0, :])
    return jnp.stack(values), jnp.stack(indices)


def _search(query, key, sentence_mask, own, t, block):
    """(index, relevance, valid) in blocks of words, each block with all of its sentences."""
    length = query.shape[2]
    padding = -length % block
    query = jnp.pad(query * query.shape[-1] ** -0.5, ((0, 0), (0, 0), (0, padding), (0, 0)))
    own = None if own is None else jnp.pad(own, ((0, 0), (0, padding)))
    sentence = jnp.arange(key.shape[2], dtype=jnp.int32)[:, None]

    def of_block(start):
        words = lax.dynamic_slice_in_dim(query, start, block, axis=2)
        scores = jnp.einsum("bhnk,bhlk->bhnl", key, words, preferred_element_type=jnp.float32)
        ranking = scores
        if own is not None:
            mine = sentence == lax.dynamic_slice_in_dim(own, start, block, axis=1)[:, None, None]
            ranking = jnp.where(mine, jnp.inf, scores)
        ranking = jnp.where(sentence_mask[:, None, :, None], ranking, -jnp.inf)
        value, index = _best(ranking, t)
        if own is not None:
            own_score = jnp.where(mine, scores, 0).sum(-2)
            value = jnp.where(value == jnp.inf, own_score, value)
        return value, index

    value, index = lax.map(of_block, jnp.arange(0, length + padding, block))
    value, index = (
        x.transpose(2, 3, 0, 4, 1).reshape(*query.shape[:3], t)[:, :, :length] for x in (value, index)
    )
    valid = value > -jnp.inf
    return jnp.where(valid, index, 0), jnp.where(valid, value, 0), valid


_select = jax.custom_vjp(_search, nondiff_argnums=(4, 5))


def _select_forward(query, key, sentence_mask, own, t, block):
    selected = _search(query, key, sentence_mask, own, t, block)
    return selected, (query, key, selected[0], selected[2])


def gradients_of_kept(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H N K"],
    index: Int[Array, "B H L t"],
    valid: Bool[Array, "B H L t"],
    cotangent: Float[Array, "B H L t"],
) -> tuple[Float[Array, "B H L K"], Float[Array, "B H N K"]]:
    """Of the scores q k^T / sqrt(K) of the choices that are valid, by query and key."""
    gradient = jnp.where(valid, cotangent, 0) * query.shape[-1] ** -0.5
    d_query = sum_of_choices(key, index, gradient)
    d_key = jnp.zeros(key.shape, jnp.float32)
    for i in range(index.shape[-1]):
        d_key = add_rows(d_key, index[..., i], gradient[..., i, None] * query)
    return d_query.astype(query.dtype), d_key.astype(key.dtype)


def _select_backward(t, block, saved, cotangents):
    return *gradients_of_kept(*saved, cotangents[1]), None, None


_select.defvjp(_select_forward, _select_backward)


def select_sentences(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H N K"],
    sentence_mask: Bool[Array, "B N"],
    t: int,
    own: Int[Array, "#B L"] | None = None,
    *,
    block: int | None = None,
) -> Selection:
    """The t sentences that are most relevant to each word, fewer if N < t: top t of q k^T / sqrt(K) per head.

    Relevance is float32, computed in blocks of words and never held whole. The gradient is that of the kept scores:
    the choice itself has none. Equal scores are taken in the order of the sentences.

    Args:
      query: of the words.
      key: of the sentences.
      sentence_mask: False at padding, which is never kept.
      t: sentences to keep.
      own: a sentence that each word keeps in the first place, beside the t best of the others: t + 1 choices.
      block: words in a block; by default as many as keep the scores in a cache.

    Raises:
      ValueError: if t is below 1.
    """
    batch, _, length, _ = query.shape
    sentences = key.shape[2]
    if t < 1:
        raise ValueError(f"t is {t}: attention keeps at least one sentence")
    if own is not None:
        own = jnp.broadcast_to(own, (batch, length))
    kept = min(t + (own is not None), sentences)

    def selected(query, key, sentence_mask, own):
        words = block or max(64, SCORES_IN_BLOCK // (query.shape[0] * query.shape[1] * sentences))
        return Selection(*_select(query, key, sentence_mask, own, kept, min(words, length)))

    by_document, by_head = ("batch",), ("batch", "heads")
    inputs = (by_head, by_head, by_document, by_document)
    return over_shards(selected, inputs, by_head)(query, key, sentence_mask, own)
