"""The dispatched form against float64 and against the dense form: outputs, gradients, shapes, memory."""

from functools import cache, partial

import conditional_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but

from flaxnmt.attention import dispatch, selection
from flaxnmt.attention.conditional import conditional_attention_dense
from flaxnmt.attention.dispatch import block_size, into_blocks
from flaxnmt.attention.selection import Selection

conditional_attention = jax.jit(dispatch.conditional_attention)
select_sentences = jax.jit(selection.select_sentences, static_argnums=3)

B, H, N, M, K = 2, 2, 4, 3, 4
L = N * M
NAMES = ("query", "key", "value", "selector_query", "selector_key")


def word_masks():
    """Padding at the end of sentences, of documents, in between, everywhere, nowhere."""
    full = np.ones((B, N, M), bool)
    ends = full & (np.arange(M) < np.array([[3, 1, 2, 3], [1, 2, 1, 1]])[..., None])
    documents = full & (np.arange(N) < np.array([[4], [2]]))[..., None]
    scattered = np.random.default_rng(5).random((B, N, M)) < 0.5
    one_empty = full & np.array([True, False])[:, None, None]
    return {
        "none": full, "words": ends, "sentences": documents, "scattered": scattered, "a_document": one_empty,
        "both": ends & documents, "all": ~full,
    }  # fmt: skip


def make_inputs(dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((B, H, L, K), (B, H, N, M, K), (B, H, N, M, K), (B, H, L, K), (B, H, N, K), (B, H, L, K))
    return [np.asarray(jnp.asarray(rng.normal(size=shape), dtype), np.float64) for shape in shapes]


def cast(arrays, dtype=jnp.float32):
    return [jnp.asarray(array, dtype) for array in arrays]


@partial(jax.jit, static_argnums=(0, 1))
def output_and_gradients(form, t, inputs, word_mask, upstream, keep=None):
    def loss(query, key, value, selector_query, selector_key):
        selection = select_sentences(selector_query, selector_key, word_mask.any(-1), t)
        y = form(query, key, value, word_mask, selection, keep)
        return (y.astype(jnp.float32) * upstream).sum(), y

    gradients, y = jax.grad(loss, (0, 1, 2, 3, 4), has_aux=True)(*inputs)
    return y, gradients


def exact_output(mask, keep, query, key, value, *selector):
    return slow.conditional(query, key, value, mask, *selector, keep)


def exact_loss(exact, upstream, inputs, i, x):
    return np.sum(upstream * exact(*inputs[:i], x, *inputs[i + 1 :]))


@cache
def expected(t, dtype):
    """By the name of a mask: the mask, the exact output, and its gradient by each input."""
    *inputs, upstream = make_inputs(dtype)
    found = {}
    for name, mask in word_masks().items():
        choices = slow.chosen(slow.relevance(*inputs[3:]), mask.any(-1), t)
        exact = partial(exact_output, mask, slow.kept(choices, N))
        losses = [partial(exact_loss, exact, upstream, inputs, i) for i in range(len(inputs))]
        found[name] = mask, exact(*inputs), list(map(reference.numeric_gradient, losses, inputs))
    return found


def assert_is_reference(form, t, dtype, atol):
    *inputs, upstream = make_inputs(dtype)
    for name, (mask, output, numeric) in expected(t, dtype).items():
        y, gradients = output_and_gradients(
            form, t, cast(inputs, dtype), jnp.asarray(mask), cast([upstream])[0]
        )
        assert y.dtype == dtype
        scale = 1 if dtype == jnp.float32 else np.abs(output).max(initial=1)
        np.testing.assert_allclose(np.asarray(y, np.float64), output, atol=atol * scale, err_msg=name)
        for part, found, exact in zip(NAMES, gradients, numeric, strict=True):
            scale = 1 if dtype == jnp.float32 else max(1, np.abs(exact).max())
            np.testing.assert_allclose(
                np.asarray(found, np.float64), exact, atol=atol * scale, err_msg=f"{name} {part}"
            )


@pytest.mark.parametrize(
    "form, t",
    [
        (conditional_attention_dense, 2),
        (conditional_attention, 2),
        pytest.param(conditional_attention, N + 2, marks=pytest.mark.slow),
        pytest.param(conditional_attention, 1, marks=pytest.mark.slow),
        pytest.param(conditional_attention_dense, 1, marks=pytest.mark.slow),
        pytest.param(conditional_attention_dense, N + 2, marks=pytest.mark.slow),
    ],
)
def test_output_and_gradients_are_those_of_float64(form, t):
    assert_is_reference(form, t, jnp.float32, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", [conditional_attention_dense, conditional_attention])
def test_bfloat16_is_float64_to_its_precision(form):
    assert_is_reference(form, 2, jnp.bfloat16, atol=2e-2)


@pytest.mark.parametrize("together", slow_but([2], [1, 2]))
def test_dropped_weights_are_those_of_the_dense_form_for_any_heads_at_a_time(together, monkeypatch):
    monkeypatch.setattr(dispatch, "SLOTS_AT_A_TIME", 1 if together == 1 else 10**9)
    *inputs, upstream = make_inputs(seed=1)
    keep = jnp.asarray(np.random.default_rng(2).random((B, H, L, 2, M)) < 0.6)
    output_and_gradients.clear_cache()
    conditional_attention.clear_cache()
    for mask in map(jnp.asarray, word_masks().values()):
        arguments = cast(inputs), mask, cast([upstream])[0], keep
        dense = output_and_gradients(conditional_attention_dense, 2, *arguments)
        ours = output_and_gradients(conditional_attention, 2, *arguments)
        jax.tree.map(partial(np.testing.assert_allclose, atol=3e-6), ours, dense)


def test_equal_relevance_gives_both_forms_the_same_sentences():
    *inputs, upstream = make_inputs(seed=3)
    inputs[3:] = np.zeros_like(inputs[3]), inputs[4]
    mask = jnp.asarray(word_masks()["sentences"])
    dense, ours = (
        output_and_gradients(form, 2, cast(inputs), mask, cast([upstream])[0])
        for form in (conditional_attention_dense, conditional_attention)
    )
    jax.tree.map(partial(np.testing.assert_allclose, atol=3e-6), ours, dense)


def test_one_sentence_is_plain_attention_within_it():
    query, key, value, selector_query, selector_key, _ = make_inputs()
    key, value, selector_key = key[:, :, :1], value[:, :, :1], selector_key[:, :, :1]
    mask = np.array([[[True, True, False]], [[True, True, True]]])
    selection = select_sentences(*cast((selector_query, selector_key)), jnp.ones((B, 1), bool), 3)
    y = conditional_attention(*cast((query, key, value)), jnp.asarray(mask), selection)
    expected = reference.attention(query, key[:, :, 0], value[:, :, 0], mask[:, None])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def choices_of(kind, length, t, sentences):
    rng = np.random.default_rng(0)
    rows = {
        "all_the_same": np.tile(np.arange(t), (length, 1)),
        "uniform": (np.arange(length)[:, None] + np.arange(t)) % sentences,
        "random": np.stack([rng.permutation(sentences)[:t] for _ in range(length)]),
        "none_valid": np.zeros((length, t)),
    }
    return rows[kind].astype(np.int32)


@pytest.mark.parametrize("sentences", [3, 130])
def test_blocks_hold_every_valid_pair_once_with_its_sentence(sentences):
    length, t, size = 50, 3, 8
    group = jax.jit(partial(into_blocks, sentences=sentences, size=size))
    for kind in ("all_the_same", "uniform", "random", "none_valid"):
        index = choices_of(kind, length, t, sentences)
        valid = np.random.default_rng(1).random(index.shape) < 0.8
        valid &= kind != "none_valid"
        blocks = group(index[None, None], valid[None, None])
        pair, slot, sentence = (np.asarray(x)[0, 0] for x in (blocks.pair, blocks.slot, blocks.sentence))
        assert len(sentence) == -(-length * t // size) + sentences
        held = pair[pair < length * t]
        np.testing.assert_array_equal(np.sort(held), np.flatnonzero(valid))
        where = np.argwhere(pair < length * t)
        np.testing.assert_array_equal(index.ravel()[held], sentence[where[:, 0]])
        np.testing.assert_array_equal(slot.ravel()[held], where @ [size, 1])
        assert np.all(np.diff(sentence) >= 0)
    assert group._cache_size() == 1


def test_no_choice_of_sentences_compiles_anything_new():
    query, key, value, _, _, upstream = cast(make_inputs())
    mask, relevance = jnp.ones((B, N, M), bool), jnp.ones((B, H, L, 2))

    @jax.jit
    def step(index, valid):
        def loss(query):
            return (
                conditional_attention(query, key, value, mask, Selection(index, relevance, valid)) * upstream
            ).sum()

        return jax.value_and_grad(loss)(query)

    for kind in ("all_the_same", "uniform", "random", "none_valid"):
        index = jnp.broadcast_to(choices_of(kind, L, 2, N), (B, H, L, 2))
        valid = jnp.full(index.shape, kind != "none_valid")
        ours, _ = step(index, valid)
        dense = conditional_attention_dense(query, key, value, mask, Selection(index, relevance, valid))
        np.testing.assert_allclose(ours, (dense * upstream).sum(), atol=1e-5)
    assert step._cache_size() == 1


def test_an_unselected_sentence_changes_nothing():
    query, key, value, selector_query, selector_key, _ = cast(make_inputs())
    mask = jnp.ones((B, N, M), bool)
    selection = select_sentences(selector_query, selector_key, mask.any(-1), 2)
    before = conditional_attention(query, key, value, mask, selection)
    after = conditional_attention(
        query, key.at[:, :, 1].add(3.0), value.at[:, :, 1].add(5.0), mask, selection
    )
    unselected = np.all(selection.index != 1, axis=-1)
    assert 0.1 < unselected.mean() < 0.9
    np.testing.assert_array_equal(np.asarray(after)[unselected], np.asarray(before)[unselected])
    assert np.all(np.any(np.asarray(after)[~unselected] != np.asarray(before)[~unselected], axis=-1))


@pytest.mark.slow
def test_memory_is_linear_in_the_length_of_the_document():
    def loss(form, mask, query, key, value, selector_query, selector_key):
        selection = select_sentences(selector_query, selector_key, mask.any(-1), 4)
        return (form(query, key, value, mask, selection) ** 2).sum()

    def temporaries(sentences, form):
        queries, words, encodings = (
            (1, 1, sentences * 32, 16),
            (1, 1, sentences, 32, 16),
            (1, 1, sentences, 16),
        )
        inputs = [
            jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (queries, words, words, queries, encodings)
        ]
        mask = jax.ShapeDtypeStruct((1, sentences, 32), bool)
        gradient = jax.jit(jax.grad(partial(loss, form), (1, 2, 3, 4, 5)))
        return gradient.lower(mask, *inputs).compile().memory_analysis().temp_size_in_bytes

    sizes = [temporaries(sentences, conditional_attention) for sentences in (64, 128, 256)]
    assert sizes[1] <= 2.2 * sizes[0] and sizes[2] <= 2.2 * sizes[1], sizes
    dense = [temporaries(sentences, conditional_attention_dense) for sentences in (16, 32)]
    assert dense[1] > 3 * dense[0]


@pytest.mark.parametrize(
    ("pairs", "sentences", "expected"), [(1, 1, 8), (128, 4, 32), (8192, 64, 64), (10**6, 8, 64)]
)
def test_blocks_follow_the_pairs_of_a_sentence(pairs, sentences, expected):
    assert block_size(pairs, sentences) == expected
