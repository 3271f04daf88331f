"""The choice of sentences against a sort in float64, its gradient against central differences."""

import conditional_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but

from flaxnmt.attention.selection import select_sentences

B, H, L, N, K = 3, 2, 11, 5, 4
MASK = np.arange(N) < np.array([[5], [2], [0]])
MASK[0, 1] = False
OWN = jnp.arange(L)[None] % N


def make_inputs(dtype=jnp.float32, seed=0):
    """Query, key and upstream gradients that are exact in this dtype, in float64."""
    rng = np.random.default_rng(seed)
    shapes = ((B, H, L, K), (B, H, N, K))
    return [np.asarray(jnp.asarray(rng.normal(size=shape), dtype), np.float64) for shape in shapes]


def cast(arrays, dtype=jnp.float32):
    return [jnp.asarray(array, dtype) for array in arrays]


def assert_chosen(selection, scores, choices, t, atol):
    assert selection.index.shape == selection.relevance.shape == selection.valid.shape == (*choices.shape, t)
    for at in np.ndindex(choices.shape):
        count = len(choices[at])
        expected = np.pad(choices[at], (0, t - count)).astype(int)
        np.testing.assert_array_equal(selection.index[at], expected)
        np.testing.assert_array_equal(selection.valid[at], np.arange(t) < count)
        relevance = np.where(np.arange(t) < count, scores[at][expected], 0)
        np.testing.assert_allclose(selection.relevance[at], relevance, atol=atol)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("t", slow_but([3], [1, 3, 7]))
def test_choices_are_the_best_by_a_sort(t, own):
    query, key = make_inputs()
    scores = slow.relevance(query, key)
    own = OWN if own else None
    choices = slow.chosen(scores, MASK, t, None if own is None else np.repeat(np.asarray(own), B, 0))
    selection = select_sentences(*cast((query, key)), jnp.asarray(MASK), t, own, block=4)
    assert_chosen(selection, scores, choices, min(t + (own is not None), N), atol=1e-6)


def test_bfloat16_scores_are_float32():
    query, key = make_inputs(jnp.bfloat16)
    scores = slow.relevance(query, key)
    selection = select_sentences(*cast((query, key), jnp.bfloat16), jnp.asarray(MASK), 3)
    assert selection.relevance.dtype == jnp.float32
    # 1 / sqrt(4) and the products are exact, so that nothing is left to round but the sum.
    assert_chosen(selection, scores, slow.chosen(scores, MASK, 3), 3, atol=1e-6)


def test_equal_scores_are_taken_in_the_order_of_the_sentences():
    query, key = make_inputs()
    key = np.round(key[:, :, [0, 1, 0, 0, 1]])
    key[..., 1:], query = 0, np.round(query)
    scores = slow.relevance(query, key)
    assert len(np.unique(scores)) < 20
    mask = np.ones((B, N), bool)
    selection = select_sentences(*cast((query, key)), jnp.asarray(mask), 4)
    assert_chosen(selection, scores, slow.chosen(scores, mask, 4), 4, atol=1e-6)
    np.testing.assert_array_equal(selection.index, jax.lax.top_k(jnp.asarray(scores), 4)[1])


@pytest.mark.slow
def test_the_number_of_words_in_a_block_changes_nothing():
    # Small integers, so that no order of summation rounds.
    query, key = (jnp.round(2 * x) for x in cast(make_inputs()))
    whole = select_sentences(query, key, jnp.asarray(MASK), 2, OWN, block=L)
    for block in (1, 3, 100):
        part = select_sentences(query, key, jnp.asarray(MASK), 2, OWN, block=block)
        for field in ("index", "relevance", "valid"):
            np.testing.assert_array_equal(getattr(part, field), getattr(whole, field), err_msg=field)


@pytest.mark.parametrize("own", slow_but([True], [False, True]))
def test_gradient_is_that_of_the_kept_scores(own):
    query, key = make_inputs()
    own = OWN if own else None
    choices = slow.chosen(
        slow.relevance(query, key), MASK, 2, None if own is None else np.repeat(np.asarray(own), B, 0)
    )
    count = 2 if own is None else 3
    upstream = np.random.default_rng(1).normal(size=(B, H, L, count))

    def loss(query, key):
        scores = slow.relevance(query, key)
        return sum(
            upstream[at] @ np.pad(scores[at][choices[at]], (0, count - len(choices[at])))
            for at in np.ndindex(choices.shape)
        )

    def ours(query, key):
        selection = select_sentences(query, key, jnp.asarray(MASK), 2, own, block=4)
        return (jnp.asarray(upstream) * selection.relevance).sum()

    d_query, d_key = jax.grad(ours, (0, 1))(*cast((query, key)))
    np.testing.assert_allclose(d_query, reference.numeric_gradient(lambda x: loss(x, key), query), atol=1e-5)
    np.testing.assert_allclose(d_key, reference.numeric_gradient(lambda x: loss(query, x), key), atol=1e-5)
    assert not np.any(d_query[2]) and not np.any(d_key[0, :, 1])


def test_relevance_is_never_whole():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 2, 8192, 4), (1, 2, 256, 4))]

    def loss(query, key):
        return select_sentences(query, key, jnp.ones((1, 256), bool), 2, block=256).relevance.sum()

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile()
    whole = 2 * 8192 * 256 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < whole / 4


def test_no_sentences_to_keep_is_an_error():
    with pytest.raises(ValueError, match="t is 0"):
        select_sentences(*cast(make_inputs()), jnp.asarray(MASK), 0)
