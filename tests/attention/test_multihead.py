"""Multi-head attention against a float64 loop over examples and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.layers.active import picked
from flaxnmt.layers.context import Context, positions_of

B, Q, L, D, H = 2, 3, 4, 6, 2


def make_params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"query": (D, H, D // H), "key": (D, H, D // H), "value": (D, H, D // H), "out": (H, D // H, D)}
    return {name: rng.normal(size=shape) * D**-0.5 for name, shape in shapes.items()}


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(3)
    return rng.normal(size=(B, Q, D)), rng.normal(size=(B, L, D)), rng.normal(size=(B, Q, D))


CONTEXTS = {
    "all": (Context(), np.ones((B, Q, L), bool)),
    "padding": (
        Context(key_mask=jnp.arange(L) < jnp.array([[4], [2]])),
        np.broadcast_to(np.arange(L) < np.array([[4], [2]])[:, None], (B, Q, L)),
    ),
    "causal": (
        Context(query_positions=positions_of((B, Q)), key_positions=positions_of((B, L)), causal=True),
        np.broadcast_to(np.tril(np.ones((Q, L), bool)), (B, Q, L)),
    ),
    "visible_padding": (
        Context(
            key_mask=jnp.arange(L) < jnp.array([[4], [2]]),
            visible=jnp.asarray(np.arange(B * Q * L).reshape(B, Q, L) % 3 > 0),
        ),
        (np.arange(B * Q * L).reshape(B, Q, L) % 3 > 0) & (np.arange(L) < np.array([[4], [2]])[:, None]),
    ),
    "an_empty_row": (
        Context(key_mask=jnp.arange(L) < jnp.array([[4], [0]])),
        np.broadcast_to(np.arange(L) < np.array([[4], [0]])[:, None], (B, Q, L)),
    ),
}


def test_queries_and_keys_are_in_order_where_nothing_else_is_said():
    np.testing.assert_array_equal(Context(causal=True).attention_mask(Q, L), np.tri(Q, L, dtype=bool)[None])


def expected_output(params, x, memory, mask):
    return np.stack([reference.multi_head(params, *example) for example in zip(x, memory, mask)])


@pytest.mark.parametrize("kind", slow_but(["causal", "visible_padding"], CONTEXTS))
def test_output_and_gradients_are_those_of_float64(kind, inputs):
    context, mask = CONTEXTS[kind]
    params, (x, memory, upstream) = make_params(), inputs
    module = MultiHeadAttention(D, H)

    def ours(params, x, memory):
        return module.apply({"params": params}, x, memory, context)

    y, backward = jax.vjp(jax.jit(ours), *float32((params, x, memory)))
    np.testing.assert_allclose(y, expected_output(params, x, memory, mask), atol=1e-5)
    d_params, d_x, d_memory = backward(float32(upstream))

    def loss(params, x, memory):
        return np.sum(upstream * expected_output(params, x, memory, mask))

    for name in params:
        expected = reference.numeric_gradient(
            lambda w, n=name: loss(params | {n: w}, x, memory), params[name]
        )
        np.testing.assert_allclose(d_params[name], expected, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(
        d_x, reference.numeric_gradient(lambda v: loss(params, v, memory), x), atol=2e-5
    )
    np.testing.assert_allclose(
        d_memory, reference.numeric_gradient(lambda v: loss(params, x, v), memory), atol=2e-5
    )


def test_bfloat16_is_close_and_keeps_float32_parameters(inputs):
    params, (x, memory, _) = make_params(), inputs
    context, mask = CONTEXTS["padding"]
    module = MultiHeadAttention(D, H, dtype=jnp.bfloat16)
    y = module.apply({"params": float32(params)}, *float32((x, memory)), context)
    exact = expected_output(params, x, memory, mask)
    assert y.dtype == jnp.bfloat16
    # Four products in a row, each rounded to 8 bits.
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=3e-2 * np.abs(exact).max())
    fresh = jax.eval_shape(module.init, jax.random.key(0), *float32((x, memory)), context)
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}


def test_padding_keys_change_nothing(inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    module, mask = MultiHeadAttention(D, H), jnp.arange(L + 3) < jnp.array([[4], [2]])
    padded = jnp.concatenate([memory, jnp.full((B, 3, D), 50.0)], axis=1)
    short = module.apply({"params": params}, x, memory, Context(key_mask=mask[:, :L]))
    longer = module.apply({"params": params}, x, padded, Context(key_mask=mask))
    np.testing.assert_allclose(longer, short, rtol=1e-5, atol=1e-6)


def test_vmap_over_examples_equals_the_batched_call(inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    module, mask = MultiHeadAttention(D, H), CONTEXTS["padding"][0].key_mask

    def single(x, memory, mask):
        return module.apply({"params": params}, x[None], memory[None], Context(key_mask=mask[None]))[0]

    batched = module.apply({"params": params}, x, memory, Context(key_mask=mask))
    np.testing.assert_allclose(jax.vmap(single)(x, memory, mask), batched, rtol=1e-5, atol=1e-6)


def test_keys_then_rows_of_any_subset_is_the_whole(inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    module, context = MultiHeadAttention(D, H), CONTEXTS["padding"][0]
    bound = module.bind({"params": params})
    shared = bound.keys(memory, context)
    assert shared.key.shape == (B, H, L, D // H)
    subset, _ = bound.rows(x[:, 1:], shared, context)
    np.testing.assert_allclose(subset, bound(x, memory, context)[:, 1:], rtol=1e-5, atol=1e-6)


BIAS = np.random.default_rng(4).normal(size=(B, H, Q, L))


@pytest.mark.parametrize(
    "context",
    [
        *(context for context, _ in CONTEXTS.values()),
        *(Context(bias=jnp.asarray(bias, jnp.float32)) for bias in (BIAS, BIAS[:1, 0], BIAS[:, :, :1])),
        Context(active=jnp.asarray([[True, False, True], [False, True, False]])),
    ],
)
def test_queries_at_some_places_find_what_they_find_among_all(inputs, context):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    places = jnp.asarray([[2, 0], [1, 1]])
    bound = MultiHeadAttention(D, H).bind({"params": params})
    shared = bound.keys(memory, context.replace(active=None))
    found, _ = bound.rows(picked(x, places), shared, context.of_places(places))
    every, _ = bound.rows(x, shared, context)
    np.testing.assert_allclose(found, picked(every, places), rtol=1e-5, atol=1e-6)


def test_captured_weights_are_a_distribution_over_the_keys_that_are_seen(inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    context, mask = CONTEXTS["padding"]
    bound = MultiHeadAttention(D, H).bind({"params": params})
    shared = bound.keys(memory, context)
    assert bound.rows(x, shared, context)[1] is None
    _, weights = bound.rows(x, shared, context.replace(capture=True))
    assert weights.shape == (B, H, Q, L)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5, atol=1e-6)
    assert not np.any(np.asarray(weights)[~np.broadcast_to(mask[:, None], weights.shape)])


def test_dropout_of_weights_is_unbiased(inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    module, context = MultiHeadAttention(D, H, dropout=0.3), Context(deterministic=False)

    def draw(key):
        return module.apply({"params": params}, x, memory, context, rngs={"dropout": key})

    drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 4000))
    exact = module.apply({"params": params}, x, memory, Context())
    error = np.abs(drawn.mean(0) - exact) / (drawn.std(0) / np.sqrt(4000))
    assert drawn.std(0).min() > 0.01 and error.max() < 4.5


def test_heads_must_divide_the_model_dimension(inputs):
    with pytest.raises(ValueError, match="4 heads do not divide the model dimension 6"):
        MultiHeadAttention(D, 4).init(jax.random.key(0), *float32(inputs[:2]), Context())
