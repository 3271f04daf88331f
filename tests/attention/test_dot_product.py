"""Attention against float64, forward and backward.

Tolerances: float32 1e-5 of the largest value; bfloat16, which keeps 8 bits, 2e-2 of it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxnmt.attention.dot_product import attention_scores, dot_product_attention

TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 2e-2}
SHAPES = {"self": ((2,), 3, 5, 5, 4), "cross": ((3,), 2, 1, 7, 8), "no_batch": ((), 1, 4, 6, 2)}


def make_inputs(shape, dtype=jnp.float32, seed=0):
    """Query, key, value and the cotangent of the output."""
    batch, heads, queries, keys, size = shape
    rng = np.random.default_rng(seed)
    lengths = (queries, keys, keys, queries)
    return [jnp.asarray(rng.normal(size=(*batch, heads, length, size)), dtype) for length in lengths]


def make_mask(kind, shape):
    batch, _, queries, keys, _ = shape
    rng = np.random.default_rng(1)
    padding = np.arange(keys) < rng.integers(1, keys, size=(*batch, 1, 1, 1))
    causal = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    arbitrary = rng.random((*batch, 1, queries, keys)) < 0.5
    arbitrary[..., 0, :] = False
    return {
        "none": None,
        "padding": padding,
        "causal_padding": padding & causal,
        "some_rows_empty": arbitrary,
    }[kind]


def make_bias(kind, shape):
    _, heads, queries, keys, _ = shape
    return None if kind == "no_bias" else np.random.default_rng(2).normal(size=(heads, queries, keys))


def assert_close(actual, expected, dtype):
    expected = np.asarray(expected)
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), expected, atol=TOLERANCE[dtype] * max(1.0, np.abs(expected).max())
    )


@pytest.mark.parametrize("bias_kind", ["no_bias", "bias"])
@pytest.mark.parametrize("mask_kind", ["none", "padding", "causal_padding", "some_rows_empty"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_values_and_gradients_are_those_of_float64(dtype, shape, mask_kind, bias_kind):
    *qkv, upstream = make_inputs(shape, dtype)
    mask, bias = make_mask(mask_kind, shape), make_bias(bias_kind, shape)
    given = {
        "mask": None if mask is None else jnp.asarray(mask),
        "bias": None if bias is None else jnp.asarray(bias, jnp.float32),
    }
    y, backward = jax.vjp(partial(dot_product_attention, **given), *qkv)
    gradients = backward(upstream)
    assert y.dtype == dtype and all(g.dtype == dtype for g in gradients)
    exact = [np.asarray(x, np.float64) for x in (*qkv, upstream)]
    assert_close(y, reference.attention(*exact[:3], mask, bias), dtype)
    for actual, expected in zip(gradients, reference.attention_gradients(*exact[:3], mask, bias, exact[3])):
        assert_close(actual, expected, dtype)


@pytest.mark.parametrize("mask_kind", ["none", "some_rows_empty"])
def test_the_reference_gradient_is_a_difference_quotient(mask_kind):
    shape = SHAPES["no_batch"]
    *qkv, upstream = (np.asarray(x, np.float64) for x in make_inputs(shape))
    mask, bias = make_mask(mask_kind, shape), make_bias("bias", shape)
    gradients = reference.attention_gradients(*qkv, mask, bias, upstream)
    for i, expected in enumerate(gradients):

        def loss(x, i=i):
            return np.sum(upstream * reference.attention(*qkv[:i], x, *qkv[i + 1 :], mask, bias))

        np.testing.assert_allclose(reference.numeric_gradient(loss, qkv[i]), expected, atol=1e-8)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_a_query_that_may_look_nowhere_gets_the_mean_and_finite_gradients(dtype):
    *qkv, upstream = make_inputs(SHAPES["self"], dtype)
    y, backward = jax.vjp(partial(dot_product_attention, mask=jnp.zeros((1, 1, 1, 5), bool)), *qkv)
    d_query, d_key, d_value = backward(upstream)
    mean = np.broadcast_to(np.asarray(qkv[2], np.float64).mean(-2, keepdims=True), y.shape)
    assert_close(y, mean, dtype)
    assert not np.any(d_query) and not np.any(d_key)
    assert np.all(np.isfinite(np.asarray(d_value, np.float32)))


def test_masked_keys_and_values_are_without_effect_even_where_they_are_huge():
    *qkv, upstream = make_inputs(SHAPES["self"])
    attend = partial(dot_product_attention, mask=(jnp.arange(5) < 3)[None, None, None])
    spoilt = [qkv[0], *(x.at[..., 3:, :].set(1e30) for x in qkv[1:])]
    plain, spoilt = (jax.vjp(attend, *x) for x in (qkv, spoilt))
    np.testing.assert_array_equal(plain[0], spoilt[0])
    gradients = plain[1](upstream)
    np.testing.assert_array_equal(gradients[0], spoilt[1](upstream)[0])
    assert not np.any(gradients[1][..., 3:, :]) and not np.any(gradients[2][..., 3:, :])


def test_large_scores_do_not_overflow():
    query, key, value, upstream = (
        x * scale for x, scale in zip(make_inputs(SHAPES["self"]), (1e4, 1e4, 1, 1))
    )
    y, backward = jax.vjp(dot_product_attention, query, key, value)
    assert np.all(np.isfinite(y)) and all(np.all(np.isfinite(g)) for g in backward(upstream))


def test_scores_are_float32_and_products_of_half_precision_are_not_rounded():
    query, key, *_ = make_inputs(SHAPES["self"], jnp.bfloat16)
    scores = attention_scores(query, key)
    exact = np.asarray(query * query.shape[-1] ** -0.5, np.float64) @ np.swapaxes(
        np.asarray(key, np.float64), -1, -2
    )
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_vmap_over_examples_equals_the_batched_call(masked):
    *qkv, _ = make_inputs(SHAPES["self"])
    mask = jnp.asarray(make_mask("causal_padding", SHAPES["self"])) if masked else None
    mapped = jax.vmap(dot_product_attention, in_axes=(0, 0, 0, 0 if masked else None))(*qkv, mask)
    np.testing.assert_allclose(mapped, dot_product_attention(*qkv, mask), rtol=1e-5, atol=1e-6)


def test_heads_may_be_further_batch_dimensions():
    *qkv, _ = make_inputs(((2, 3), 2, 4, 5, 4))
    flat = dot_product_attention(*(x.reshape(6, *x.shape[2:]) for x in qkv))
    np.testing.assert_allclose(dot_product_attention(*qkv).reshape(flat.shape), flat, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_no_number_is_not_hidden(bias):
    query, key, value, _ = make_inputs(SHAPES["self"])
    query = jnp.asarray(query, jnp.float32).at[0, 0, 1].set(jnp.nan)
    scores = jnp.zeros((1, 1, query.shape[-2], key.shape[-2])) if bias else None
    y = dot_product_attention(query, jnp.asarray(key), jnp.asarray(value), bias=scores)
    assert np.isnan(y[0, 0, 1]).all() and np.isfinite(y[0, 0, 0]).all()
