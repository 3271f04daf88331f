"""Hard attention: exact zeros and ones forward, the gradient of its surrogate backward; additive masks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.dot_product import MASKED, dot_product_attention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import ShawPositions
from flaxnmt.attention.source2token import MeanPooling
from flaxnmt.attention.weights import argmax_weights, softmax_weights, threshold_weights
from flaxnmt.layers.context import Context

B, H, L, D, K = 2, 2, 5, 6, 3
SCORES, UPSTREAM = np.random.default_rng(0).normal(size=(2, B, H, L, L))
MASK = np.random.default_rng(1).random((B, H, L, L)) < 0.7
MASK[:, :, 0] = False


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def sigmoid_gradient(scores, upstream, threshold):
    p = 1 / (1 + np.exp(threshold - scores))
    return np.where(MASK, upstream * p * (1 - p), 0)


def softmax_gradient(scores, upstream):
    e = np.exp(scores) * MASK
    p = e / np.where(MASK.any(-1, keepdims=True), e.sum(-1, keepdims=True), 1)
    return p * (upstream - (p * upstream).sum(-1, keepdims=True))


def largest(scores):
    weights = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        if MASK[row].any():
            weights[row][max(np.flatnonzero(MASK[row]), key=lambda j: scores[row][j])] = 1
    return weights


HARD = {
    "above_zero": (threshold_weights, lambda s: (s > 0) & MASK, partial(sigmoid_gradient, threshold=0.0)),
    "above_half": (
        partial(threshold_weights, threshold=0.5), lambda s: (s > 0.5) & MASK, partial(sigmoid_gradient, threshold=0.5),
    ),
    "argmax": (argmax_weights, largest, softmax_gradient),
}  # fmt: skip


@pytest.mark.parametrize("kind", HARD)
def test_weights_are_zeros_and_ones_with_the_gradient_of_the_surrogate(kind):
    weights, expected, gradient = HARD[kind]
    scores = jnp.where(MASK, jnp.asarray(SCORES, jnp.float32), MASKED)
    found, backward = jax.vjp(jax.jit(weights), scores)
    np.testing.assert_array_equal(found, expected(SCORES).astype(np.float32))
    assert not np.any(found[:, :, 0]), "a row that sees nothing"
    (d_scores,) = backward(jnp.asarray(UPSTREAM, jnp.float32))
    np.testing.assert_allclose(d_scores, gradient(SCORES, UPSTREAM), atol=1e-6)


def test_a_score_at_the_threshold_does_not_pass_and_of_equal_scores_the_first_is_taken():
    scores = jnp.array([[0.0, 1.0, 1.0, -1.0]])
    np.testing.assert_array_equal(threshold_weights(scores, 1.0), [[0, 0, 0, 0]])
    np.testing.assert_array_equal(threshold_weights(scores, 0.0), [[0, 1, 1, 0]])
    np.testing.assert_array_equal(argmax_weights(scores), [[0, 1, 0, 0]])
    np.testing.assert_allclose(softmax_weights(scores), reference.softmax(np.array(scores)), rtol=1e-6)


def make_params(seed=0, names=("query", "key", "value")):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(D, H, K)) for name in names} | {"out": rng.normal(size=(H, K, D))}


@pytest.mark.parametrize("dtype", slow_but([jnp.float32], [jnp.float32, jnp.bfloat16]))
@pytest.mark.parametrize("kind", HARD)
def test_attention_with_hard_weights_is_the_sum_of_the_values_that_pass(kind, dtype):
    weights, params = HARD[kind][0], make_params()
    x = np.random.default_rng(3).normal(size=(B, L, D))
    context = Context(visible=jnp.asarray(MASK[:, 0]), capture=True)
    bound = MultiHeadAttention(D, H, dtype=dtype, weights=weights).bind({"params": float32(params)})
    y, found = jax.jit(lambda x: bound.rows(x, bound.keys(x, context), context))(jnp.asarray(x, jnp.float32))
    assert set(np.unique(found)) == {0.0, 1.0} and y.dtype == dtype
    query, key, value = (np.einsum("bld,dhk->bhlk", x, params[name]) for name in ("query", "key", "value"))
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(K)
    if dtype == jnp.float32:
        np.testing.assert_array_equal(found, exact_weights(kind, scores))
    # The choices are those of the module: whether a score passes is not a matter of rounding.
    exact = np.einsum("bhql,bhlk,hkd->bqd", np.asarray(found, np.float64), value, params["out"])
    scale = 1e-5 if dtype == jnp.float32 else 3e-2
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=scale * np.abs(exact).max())
    assert not np.any(np.asarray(y, np.float32)[:, 0])


def exact_weights(kind, scores):
    seen = np.broadcast_to(MASK[:, :1], scores.shape)
    if kind == "argmax":
        best = np.where(seen, scores, -np.inf).argmax(-1)
        return (best[..., None] == np.arange(L)) & seen.any(-1, keepdims=True)
    return (scores > {"above_zero": 0.0, "above_half": 0.5}[kind]) & seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["argmax"], HARD))
def test_conditional_attention_takes_hard_weights_in_its_dense_form_alone(kind):
    weights, sentences, words = HARD[kind][0], 6, 2
    params = make_params(names=("query", "key", "value", "selector_query", "selector_key"))
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, sentences, words, D)), jnp.float32)

    def module(**options):
        return ConditionalAttention(
            D, H, sentence_encoder=MeanPooling(D), **{"t": sentences, "weights": weights, **options}
        )

    one = module(t=1).apply({"params": float32(params)}, x, x, Context())
    assert np.isfinite(one).all()
    # With every sentence in sight and no relevance it is attention over the document.
    blind = params | {"selector_query": np.zeros((D, H, K))}
    whole = module().apply({"params": float32(blind)}, x, x, Context())
    flat, plain = x.reshape(B, -1, D), {name: params[name] for name in ("query", "key", "value", "out")}
    expected = MultiHeadAttention(D, H, weights=weights).apply(
        {"params": float32(plain)}, flat, flat, Context()
    )
    np.testing.assert_allclose(whole.reshape(flat.shape), expected, atol=1e-5)
    for refused in (
        module(dispatched=True),
        module(dispatched=True, weights=softmax_weights, positions=ShawPositions(K)),
    ):
        with pytest.raises(ValueError, match="dispatched attention has no hard weights"):
            jax.eval_shape(refused.init, jax.random.key(0), x, x, Context())


@pytest.mark.parametrize("nothing", [-np.inf, -1e30, np.finfo(np.float32).min])
def test_an_additive_mask_is_a_mask_also_where_it_hides_everything(nothing):
    rng = np.random.default_rng(0)
    query, key, value, upstream = rng.normal(size=(4, B, H, L, K))
    bias = jnp.asarray(np.where(MASK, 0.0, nothing), jnp.float32)

    def gradients(**given):
        y, backward = jax.vjp(partial(dot_product_attention, **given), *float32((query, key, value)))
        return y, backward(jnp.asarray(upstream, jnp.float32))

    y, found = gradients(bias=bias)
    np.testing.assert_allclose(y, reference.attention(query, key, value, MASK), atol=1e-5)
    expected = reference.attention_gradients(query, key, value, MASK, None, upstream)
    for actual, exact in zip(found, expected):
        np.testing.assert_allclose(actual, exact, atol=1e-5)


def test_a_bias_in_the_context_is_added_for_every_head_or_for_each():
    params = make_params()
    x, biases = np.random.default_rng(3).normal(size=(B, L, D)), SCORES
    module = MultiHeadAttention(D, H)
    for bias in (biases, biases[:, :1], biases[:1, :, :1], biases[0]):
        context = Context(bias=jnp.asarray(bias, jnp.float32), key_mask=jnp.ones((B, L), bool))
        y = module.apply({"params": float32(params)}, *float32((x, x)), context)
        query, key, value = (
            np.einsum("bld,dhk->bhlk", x, params[name]) for name in ("query", "key", "value")
        )
        heads = reference.attention(query, key, value, bias=np.broadcast_to(bias, biases.shape))
        np.testing.assert_allclose(y, np.einsum("bhlk,hkd->bld", heads, params["out"]), atol=2e-5)
