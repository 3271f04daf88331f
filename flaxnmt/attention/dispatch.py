"""Conditional attention by dispatch: a word's scores are computed only for the words of its selected sentences.

Sentences are treated as the experts of a mixture: the (word, selected sentence) pairs of a head are sorted by
sentence, each sentence's pairs fill blocks of one size, and a block is one product of matrices with the keys of
its sentence. The partial softmaxes of a word are combined by their log-sum-exp. Cost and memory are linear in
the number of pairs, and every shape is the same whatever the choices are.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from flaxnmt.attention.distances import DistanceScores, column_of_distance
from flaxnmt.attention.dot_product import MASKED
from flaxnmt.attention.selection import Selection, add_rows, sum_of_choices, take_rows
from flaxnmt.each_device import over_shards
from flaxnmt.layers.context import Places
from flaxnmt.typing import Array, Bool, Float, Int

BLOCK = 64
"""Pairs in a block at most: above it the last, half-empty block of a sentence costs more than is gained."""
SLOTS_AT_A_TIME = 2**14
"""Slots of the heads that are computed together, one head at least: what is between two products stays small."""
RADIX = 32


@struct.dataclass
class Words:
    """What is known of the words of documents: which are padding and, where distances count, where they stand."""

    mask: Bool[Array, "B N M"]
    places: Places | None = None


@struct.dataclass
class Blocks:
    """Where the pairs of each head stand in blocks of c slots; pair l t + i is the i-th choice of word l.

    Attributes:
      pair: the pair in each slot, L t where there is none.
      slot: the slot of each pair, out of range where its choice is not valid.
      sentence: the sentence whose pairs a block holds; any where the block is empty.
    """

    pair: Int[Array, "*B blocks c"]
    slot: Int[Array, "*B L t"]
    sentence: Int[Array, "*B blocks"]


def block_size(pairs: int, sentences: int) -> int:
    """A power of two of about half the pairs of a sentence, so that padding stays below the work itself."""
    return min(BLOCK, max(8, 1 << (pairs // (2 * sentences)).bit_length()))


def _sorted_by(number: Int[Array, " P"], count: int) -> Int[Array, " P"]:
    """The order that sorts numbers below `count`, equal ones as they come: a counting sort per digit.

    A digit is counted by chunks of as many elements as it has values, so that time and memory are linear.
    """
    pairs = number.shape[0]
    chunks = -(-pairs // RADIX)
    earlier = jnp.arange(RADIX)[:, None] < jnp.arange(RADIX)
    order = jnp.arange(pairs, dtype=jnp.int32)
    place = 1
    while place < count:
        digit = number[order] // place % RADIX
        padded = jnp.pad(digit, (0, chunks * RADIX - pairs), constant_values=RADIX - 1).reshape(chunks, RADIX)
        counts = jnp.zeros((RADIX, chunks), jnp.int32).at[padded, jnp.arange(chunks)[:, None]].add(1)
        before = (jnp.cumsum(counts.ravel()) - counts.ravel()).reshape(counts.shape)
        within = ((padded[:, :, None] == padded[:, None]) & earlier).sum(1, dtype=jnp.int32)
        position = (before[padded, jnp.arange(chunks)[:, None]] + within).ravel()[:pairs]
        order = jnp.zeros_like(order).at[position].set(order, unique_indices=True)
        place *= RADIX
    return order


def _into_blocks(index, valid, sentences, size):
    """`Blocks` of one head from its choices [L, t]; choices that are not valid are sorted to the end."""
    pairs = index.size
    blocks = -(-pairs // size) + sentences
    number = jnp.where(valid, index, sentences).ravel()
    order = _sorted_by(number, sentences + 1)
    counts = jnp.zeros(sentences + 1, jnp.int32).at[number].add(1)
    filled = -(-counts[:-1] // size)
    ends = jnp.cumsum(filled)
    first_slot = jnp.append((ends - filled) * size, blocks * size)
    ordered = number[order]
    slots = first_slot[ordered] + jnp.arange(pairs) - (jnp.cumsum(counts) - counts)[ordered]
    sentence = jnp.zeros(blocks, jnp.int32).at[ends].add(1, mode="drop").cumsum()
    return Blocks(
        pair=jnp.full(blocks * size, pairs).at[slots].set(order, mode="drop").reshape(blocks, size),
        slot=jnp.zeros_like(order).at[order].set(slots, unique_indices=True).reshape(index.shape),
        sentence=jnp.minimum(sentence, sentences - 1),
    )


def into_blocks(
    index: Int[Array, "B H L t"], valid: Bool[Array, "B H L t"], sentences: int, size: int
) -> Blocks:
    """The pairs of every head sorted by sentence, the pairs of a sentence from a new block on.

    ceil(L t / size) + N blocks hold any choice.
    """
    return jax.vmap(jax.vmap(partial(_into_blocks, sentences=sentences, size=size)))(index, valid)


def _product(equation, *arrays):
    return jnp.einsum(equation, *arrays, preferred_element_type=jnp.float32)


def _of_sentences(words, of_words, blocks):
    """Something of the words of documents, [B or 1, N, M], for the sentence of each block [B, H, blocks, M]."""
    return take_rows(
        jnp.broadcast_to(of_words[:, None], (*blocks.pair.shape[:2], *words.mask.shape[1:])), blocks.sentence
    )


def _columns(words, distances, word, blocks):
    """Where the scores of each slot for the distances of its words are among those of its head, [B, H, blocks, c, M]."""
    length, columns = distances.shape[2:]
    query = jnp.broadcast_to(words.places.query[..., None, :], distances.shape[:3])
    key = words.places.key.reshape(-1, *words.mask.shape[1:])
    key = _of_sentences(words, key, blocks)
    return word[..., None] * columns + column_of_distance(
        take_rows(query, word)[..., None], key[..., None, :], columns
    )


def _scores(rows, key, words, relevance, distances, word, blocks):
    """Scores [B, H, blocks, c, M] of eq. 7 for scaled queries in each slot, masked where there is no word."""
    # Rows of words times columns of keys is the product that needs no transposition on the way.
    columns = take_rows(key.swapaxes(-1, -2), blocks.sentence)
    scores = _product("bhnck,bhnkm->bhncm", rows, columns)
    scores = scores + take_rows(_in_line(relevance), blocks.pair)[..., None]
    if distances is not None:
        scores = scores + take_rows(_in_line(distances), _columns(words, distances, word, blocks))
    seen = _of_sentences(words, words.mask, blocks)
    return jnp.where(seen[:, :, :, None], scores, MASKED)


def _in_line(x):
    """[B, H, L, ...] as [B, H, -1]."""
    return x.reshape(*x.shape[:2], -1)


def _dropped(weights, keep, blocks):
    """Weights [B, H, blocks, c, M] with those at zero that are not kept."""
    if keep is None:
        return weights
    return jnp.where(take_rows(keep.reshape(*keep.shape[:2], -1, keep.shape[-1]), blocks.pair), weights, 0)


def _slots_as_rows(x):
    """[B, H, blocks, c, ...] as [B, H, slots, ...]."""
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _forward(words, query, key, value, index, relevance, valid, distances, keep):
    """(output, log of the sum of exp of the scores of each word, `Blocks`) of some heads."""
    blocks = into_blocks(index, valid, key.shape[2], block_size(index[0, 0].size, key.shape[2]))
    word = blocks.pair // index.shape[-1]
    rows = take_rows(query * query.shape[-1] ** -0.5, word)
    scores = _scores(rows, key, words, relevance, distances, word, blocks)
    largest = scores.max(-1)
    weights = jnp.exp(scores - largest[..., None])
    dropped = _dropped(weights, keep, blocks).astype(value.dtype)
    parts = _product("bhncm,bhnmk->bhnck", dropped, take_rows(value, blocks.sentence))

    largest = jnp.where(valid, take_rows(_slots_as_rows(largest), blocks.slot), MASKED)
    seen = largest > MASKED / 2
    top = largest.max(-1, keepdims=True)
    share = jnp.where(seen, jnp.exp(largest - top), 0)
    total = (share * take_rows(_slots_as_rows(weights.sum(-1)), blocks.slot)).sum(-1)
    total = jnp.where(seen.any(-1), total, 1)
    y = sum_of_choices(_slots_as_rows(parts), blocks.slot, share / total[..., None])
    log_total = jnp.where(seen.any(-1), top[..., 0] + jnp.log(total), -MASKED)
    return y.astype(value.dtype), log_total, blocks


def _backward(words, query, key, value, relevance, valid, distances, keep, y, log_total, blocks, d_y):
    """Gradients of (query, key, value, relevance, distances) of some heads."""
    word = blocks.pair // valid.shape[-1]
    scale = query.shape[-1] ** -0.5
    rows, d_rows = take_rows(query * scale, word), take_rows(d_y, word)
    inner = (d_y.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1)
    # One more word, of weight zero, for slots without a pair.
    log_total = jnp.pad(log_total, ((0, 0), (0, 0), (0, 1)), constant_values=-MASKED)
    scores = _scores(rows, key, words, relevance, distances, word, blocks)
    weights = jnp.exp(scores - take_rows(log_total, word)[..., None])
    d_weights = _product("bhnck,bhnkm->bhncm", d_rows, take_rows(value.swapaxes(-1, -2), blocks.sentence))
    d_scores = weights * (_dropped(d_weights, keep, blocks) - take_rows(inner, word)[..., None])
    dropped = _dropped(weights, keep, blocks).astype(value.dtype)

    d_relevance = jnp.where(valid, take_rows(_slots_as_rows(d_scores.sum(-1)), blocks.slot), 0)
    d_distances = None
    if distances is not None:
        columns = _columns(words, distances, word, blocks)
        zeros = jnp.zeros_like(_in_line(distances))
        d_distances = add_rows(zeros, _in_line(columns), _in_line(d_scores)).reshape(distances.shape)
    d_scores = d_scores.astype(key.dtype)
    d_rows_key = _product("bhncm,bhnck->bhnmk", d_scores, rows)
    d_rows_value = _product("bhncm,bhnck->bhnmk", dropped, d_rows)
    d_words = _product("bhncm,bhnmk->bhnck", d_scores, take_rows(key, blocks.sentence))
    d_query = sum_of_choices(_slots_as_rows(d_words), blocks.slot, jnp.where(valid, scale, 0))
    d_key, d_value = (
        add_rows(jnp.zeros(x.shape, jnp.float32), blocks.sentence, parts).astype(x.dtype)
        for x, parts in ((key, d_rows_key), (value, d_rows_value))
    )
    return d_query.astype(query.dtype), d_key, d_value, d_relevance, d_distances


def _over_heads(function, arrays, sentences):
    """function of arrays [B, H, ...] for some heads at a time, as many as divide them and are not too large."""
    batch, heads, length, t = arrays["valid"].shape
    slots = batch * (length * t + sentences * block_size(length * t, sentences))
    together = max(
        n for n in range(1, heads + 1) if heads % n == 0 and (n == 1 or n * slots <= SLOTS_AT_A_TIME)
    )
    if together == heads:
        return function(**arrays)

    def of_heads(first):
        some = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, together, axis=1), arrays)
        return function(**some)

    results = lax.map(of_heads, jnp.arange(0, heads, together))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(batch, heads, *x.shape[3:]), results)


@jax.custom_vjp
def _dispatched(words, arrays):
    return _dispatched_forward(words, arrays)[0]


def _dispatched_forward(words, arrays):
    y, log_total, blocks = _over_heads(partial(_forward, words), arrays, words.mask.shape[1])
    return y, (words, arrays, {"y": y, "log_total": log_total, "blocks": blocks})


def _dispatched_backward(saved, d_y):
    words, arrays, results = saved
    inputs = {**arrays, **results, "d_y": d_y}
    del inputs["index"]
    gradients = _over_heads(partial(_backward, words), inputs, words.mask.shape[1])
    names = ("query", "key", "value", "relevance", "distances")
    return None, dict.fromkeys(arrays) | dict(zip(names, gradients))


_dispatched.defvjp(_dispatched_forward, _dispatched_backward)


def conditional_attention(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H N M K"],
    value: Float[Array, "B H N M K"],
    word_mask: Bool[Array, "B N M"],
    selection: Selection,
    keep: Bool[Array, "B H L t M"] | None = None,
    distances: DistanceScores | None = None,
) -> Float[Array, "B H L K"]:
    """Eq. 7 of Trankova et al. 2024 for the selected sentences only, per head: outputs and gradients are those
    of `conditional_attention_dense`.

    Linear in the number of (word, selected sentence) pairs in time and memory. The backward pass sorts and
    weighs again rather than keep anything of the size of the scores.

    Args:
      query: of the words that look, any number.
      key: of the words of each sentence.
      value: likewise.
      word_mask: False at padding.
      selection: the sentences that each word looks at.
      keep: False where a weight on word m of the i-th choice is dropped; the others are not scaled.
      distances: what is added to the scores, of the queries and of all words of the document in one line.
    """
    arrays = {
        "query": query,
        "key": key,
        "value": value,
        "index": selection.index,
        "relevance": selection.relevance,
        "valid": selection.valid,
        "distances": None if distances is None else distances.scores,
        "keep": keep,
    }
    # Each document of its own, so that all can be divided with the documents.
    places = jax.tree.map(
        lambda ids: jnp.broadcast_to(ids, (len(word_mask), ids.shape[-1])),
        None if distances is None else distances.places,
    )
    by_document, by_head = ("batch",), ("batch", "heads")
    dispatched = over_shards(_dispatched, (by_document, by_head), by_head)
    return dispatched(Words(word_mask, places), arrays)
