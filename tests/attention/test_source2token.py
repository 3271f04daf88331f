"""Sentence encodings against float64 loops over sentences and over the words that are there."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxnmt.attention.source2token import (
    MeanPooling,
    MultiDimensionalSource2Token,
    Source2Token,
    multi_dimensional,
    source2token,
)

D, K, V = 4, 3, 5
# Every padding pattern of a sentence of four words, the empty one first, as two documents of eight sentences.
PATTERNS = np.array(list(itertools.product([False, True], repeat=4))).reshape(2, 8, 4)
SEEN = jnp.asarray(PATTERNS)


def over_sentences(encode, x, mask, size):
    """encode([words, D]) of each sentence that has words, zeros for the others."""
    encodings = np.zeros((*mask.shape[:-1], size))
    for sentence in np.ndindex(mask.shape[:-1]):
        if mask[sentence].any():
            encodings[sentence] = encode(x[sentence][mask[sentence]])
    return encodings


def expected_source2token(params, x, mask):
    def encode(words):
        key, value = words @ params["key"], words @ params["value"]
        return reference.attention(params["query"][None], key, value)[0] @ params["out"]

    return over_sentences(encode, x, mask, D)


def expected_multi_dimensional(params, x, mask):
    def encode(words):
        hidden = words @ params["w_in"] + params["b_in"]
        # The paper's last bias, which we leave out because it changes nothing.
        bias = np.arange(D) - 1.5
        scores = np.where(hidden > 0, hidden, np.expm1(hidden)) @ params["w_out"] + bias
        return (reference.softmax(scores.T) * words.T).sum(-1)

    return over_sentences(encode, x, mask, D)


def expected_mean(params, x, mask):
    return over_sentences(lambda words: words.mean(0), x, mask, D)


MODULES = {
    "source2token": (Source2Token, {}, expected_source2token),
    "source2token_of_three_sizes": (Source2Token, {"key_size": K, "value_size": V}, expected_source2token),
    "multi_dimensional": (MultiDimensionalSource2Token, {}, expected_multi_dimensional),
    "mean": (MeanPooling, {}, expected_mean),
}


@pytest.fixture(scope="module", params=MODULES)
def encoder(request):
    """(module of a dtype, float64 parameters, float64 reference)."""
    kind, sizes, expected = MODULES[request.param]
    fresh = jax.eval_shape(kind(D, **sizes).init, jax.random.key(0), jnp.ones((1, D)), jnp.ones(1, bool))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), fresh.get("params", {}))
    values = {name: leaf.value for name, leaf in params.items()}
    return lambda dtype=jnp.float32: kind(D, **sizes, dtype=dtype), values, expected


@pytest.fixture(scope="module")
def words():
    return np.random.default_rng(2).normal(size=(*PATTERNS.shape, D))


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def test_output_and_gradients_are_those_of_float64_for_every_padding(encoder, words):
    make, params, expected = encoder
    upstream = np.random.default_rng(3).normal(size=(2, 8, D))

    @jax.jit
    def ours(params, x):
        y, backward = jax.vjp(lambda params, x: make().apply({"params": params}, x, SEEN), params, x)
        return y, backward(jnp.asarray(upstream, jnp.float32))

    y, (d_params, d_words) = ours(*float32((params, words)))
    np.testing.assert_allclose(y, expected(params, words, PATTERNS), atol=1e-5)
    assert not y[0, 0].any() and not d_words[~PATTERNS].any()

    def loss(params, x):
        return np.sum(upstream * expected(params, x, PATTERNS))

    for name in params:
        numeric = reference.numeric_gradient(lambda w, n=name: loss(params | {n: w}, words), params[name])
        np.testing.assert_allclose(d_params[name], numeric, atol=1e-4, err_msg=name)
    numeric = reference.numeric_gradient(lambda x: loss(params, x), words)
    np.testing.assert_allclose(d_words, numeric, atol=3e-5)


def test_bfloat16_is_close_and_keeps_float32_parameters(encoder, words):
    make, params, expected = encoder
    y = jax.jit(make(jnp.bfloat16).apply)({"params": float32(params)}, *float32((words,)), SEEN)
    exact = expected(params, words, PATTERNS)
    assert y.dtype == jnp.bfloat16 and not y[0, 0].any()
    # Up to four products in a row, each rounded to 8 bits, and scores of a few units inside an exponential.
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=5e-2 * np.abs(exact).max())
    fresh = jax.eval_shape(make(jnp.bfloat16).init, jax.random.key(0), *float32((words,)), SEEN)
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} <= {jnp.dtype("float32")}


@pytest.mark.slow
def test_any_leading_axes_and_whatever_stands_in_the_padding(encoder, words):
    make, params, expected = encoder
    encode, (params, x) = jax.jit(make().apply), float32(({"params": params}, words))
    whole = encode(params, x, SEEN)
    one = encode(params, x[1, 3], SEEN[1, 3])
    flat = encode(params, x.reshape(16, 4, D), SEEN.reshape(16, 4))
    noise = jnp.where(SEEN[..., None], x, 1e4)
    np.testing.assert_allclose(one, whole[1, 3], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flat.reshape(2, 8, D), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(encode(params, noise, SEEN), whole)


def test_a_sentence_of_padding_keeps_other_gradients_finite_at_any_scale(encoder, words):
    make, params, expected = encoder

    def loss(params, x):
        return jnp.sum(make().apply({"params": params}, x, SEEN) ** 2)

    gradients = jax.jit(jax.grad(loss, (0, 1)))(*float32((params, words * 1e4)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_the_scores_are_scaled_by_the_size_of_the_query():
    key = jnp.log(jnp.array([[2.0, 1, 1, 1], [6.0, 1, 1, 1]]))
    # A query of 2 = sqrt(4) in the one feature that differs leaves weights of 2 to 6.
    y = source2token(jnp.array([2.0, 1, 1, 1]), key, jnp.array([[4.0], [8.0]]), jnp.ones(2, bool))
    np.testing.assert_allclose(y, [7.0], rtol=1e-6)


def test_every_feature_weighs_the_words_by_itself():
    scores = jnp.log(jnp.array([[1.0, 3.0], [1.0, 1.0], [9.0, 9.0]]))
    value = jnp.array([[2.0, 4.0], [4.0, 8.0], [100.0, 100.0]])
    y = multi_dimensional(scores, value, jnp.array([True, True, False]))
    np.testing.assert_allclose(y, [3.0, 5.0], rtol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_flops_are_those_that_xla_counts(name):
    kind, sizes, _ = MODULES[name]
    size, sentences, words = 64, 3, 20
    module = kind(size, **({"key_size": 24, "value_size": 96} if sizes else {}))
    x, mask = jnp.ones((sentences, words, size)), jnp.ones((sentences, words), bool)
    params = jax.eval_shape(module.init, jax.random.key(0), x, mask)
    counted = jax.jit(module.apply).lower(params, x, mask).cost_analysis()["flops"]
    # What is element-wise, a few operations a feature, is not counted.
    assert 0 <= counted - module.flops(sentences, words) < 20 * sentences * words * size
