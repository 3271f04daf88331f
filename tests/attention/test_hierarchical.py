"""Hierarchical conditional attention against float64 loops over nodes, words and heads."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import tree_reference

from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.layers.context import Context
from flaxnmt.sharding import unbox

D, H, M = 4, 2, 3
MERGES = {"mean": MeanPooling(D), "source2token": Source2Token(D), "multi": MultiDimensionalSource2Token(D)}
SIZES = ([3, 1, 2, 3, 2], [2, 3, 1])
"""Words in each sentence of two documents."""


def make_module(**changes):
    fields = {"t": 2, "sentence_encoder": Source2Token(D), "merge": Source2Token(D), **changes}
    return HierarchicalAttention(D, H, **{"dispatched": True, **fields})


def make_params(module=None, seed=0):
    """Float64 parameters."""
    module = module or make_module()
    shapes = jax.eval_shape(module.init, jax.random.key(0), *[jnp.zeros((1, 2, M, D))] * 2, Context())
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) * D**-0.5, unbox(shapes["params"]))


def make_batch(sizes, sentences, words=M, seed=0):
    """x [B, N, M, D] float64 with garbage at padding, and its mask."""
    mask = np.zeros((len(sizes), sentences, words), bool)
    for b, lengths in enumerate(sizes):
        for n, length in enumerate(lengths):
            mask[b, n, :length] = True
    x = np.full((*mask.shape, D), 7.0)
    x[mask] = np.random.default_rng(seed).normal(size=(mask.sum(), D))
    return x, mask


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def context(mask, **changes):
    return Context(key_mask=jnp.asarray(mask), **changes)


def expected_output(params, x, mask, t, by, count_copies):
    """Zeros where there is no word."""
    y = np.zeros(x.shape)
    for b in range(len(x)):
        there = np.flatnonzero(mask[b].any(-1))
        document = [x[b, n, mask[b, n]] for n in there]
        outputs = tree_reference.hierarchical_attention(params, document, t, by, count_copies)
        for n, output in zip(there, outputs):
            y[b, n, mask[b, n]] = output
    return y


@pytest.mark.parametrize(
    ("by", "count_copies", "dispatched"),
    [
        ("raw", True, True),
        pytest.param("cumulative", True, True, marks=pytest.mark.slow),
        pytest.param("raw", False, False, marks=pytest.mark.slow),
        ("cumulative", False, False),
    ],
)
def test_output_is_that_of_float64(by, count_copies, dispatched):
    params, (x, mask) = make_params(), make_batch(SIZES, 6)
    module = make_module(by=by, count_copies=count_copies, dispatched=dispatched)
    y = jax.jit(module.apply)({"params": float32(params)}, *float32((x, x)), context(mask))
    expected = expected_output(params, x, mask, 2, by, count_copies)
    np.testing.assert_allclose(np.where(mask[..., None], y, 0), expected, atol=1e-5)


def test_gradients_are_those_of_float64():
    params, (x, mask) = make_params(), make_batch(([3, 1, 2],), 4)
    upstream = np.random.default_rng(1).normal(size=x.shape) * mask[..., None]
    module = make_module()

    def ours(params, x):
        return jnp.sum(float32(upstream) * module.apply({"params": params}, x, x, context(mask)))

    d_params, d_x = jax.jit(jax.grad(ours, (0, 1)))(*float32((params, x)))

    def loss(params, x):
        return np.sum(upstream * expected_output(params, x, mask, 2, "raw", True))

    np.testing.assert_allclose(d_x, reference.numeric_gradient(lambda v: loss(params, v), x), atol=1e-4)
    for name in ("selector_query", "selector_key", "value"):
        expected = reference.numeric_gradient(lambda w, n=name: loss(params | {n: w}, x), params[name])
        np.testing.assert_allclose(d_params[name], expected, atol=1e-4, err_msg=name)
        assert np.abs(expected).max() > 1e-3
    for name in ("merge", "sentence_encoder"):
        expected = reference.numeric_gradient(
            lambda w, n=name: loss(params | {n: params[n] | {"query": w}}, x), params[name]["query"]
        )
        np.testing.assert_allclose(d_params[name]["query"], expected, atol=1e-4, err_msg=name)
        assert np.abs(expected).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("merge", "by", "own", "t"),
    [pytest.param("mean", "cumulative", False, 4, marks=pytest.mark.slow), ("multi", "raw", True, 3)],
)
def test_search_and_dispatch_have_outputs_and_gradients_of_the_dense_form(merge, by, own, t):
    rng = np.random.default_rng(2)
    sizes = [rng.integers(1, M + 1, n) for n in (9, 6, 1, 0)]
    x, mask = make_batch(sizes, 9)
    fields = {"t": t, "merge": MERGES[merge], "by": by, "always_keep_own": own}
    params = float32(make_params(make_module(**fields)))

    def loss(params, x, dispatched):
        module = make_module(**fields, dispatched=dispatched)
        y = module.apply({"params": params}, x, x, context(mask))
        return jnp.sum(jnp.where(mask[..., None], y, 0) ** 2), y

    run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)
    (_, y), gradients = run(params, float32(x), True)
    (_, dense), expected = run(params, float32(x), False)
    np.testing.assert_allclose(y, dense, atol=1e-4)
    for (path, a), e in zip(jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(expected)):
        scale = max(1.0, float(np.abs(e).max()))
        np.testing.assert_allclose(a, e, atol=1e-4 * scale, err_msg=jax.tree_util.keystr(path))
    assert not np.any(np.asarray(gradients[1])[~mask])


@pytest.mark.slow
def test_padding_changes_nothing():
    module, params = make_module(), float32(make_params())
    run = jax.jit(module.apply)
    x, mask = make_batch(SIZES, 5)
    longer, longer_mask = make_batch(SIZES, 9, words=5)
    y = run({"params": params}, *float32((x, x)), context(mask))
    padded = run({"params": params}, *float32((longer, longer)), context(longer_mask))
    np.testing.assert_allclose(np.asarray(padded)[longer_mask], np.asarray(y)[mask], atol=1e-5)


@pytest.mark.slow
def test_gradients_are_finite_with_every_padding_pattern():
    patterns = np.array(list(itertools.product([0, 1, M], repeat=3)))
    x, mask = make_batch(patterns, 3)
    module = make_module()

    def loss(params, x):
        return jnp.sum(module.apply({"params": params}, x, x, context(mask)) ** 2)

    gradients = jax.jit(jax.grad(loss, (0, 1)))(*float32((make_params(), x)))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_rows_of_a_decoder_stand_in_the_order_of_the_sentences():
    module, (x, mask) = make_module(), make_batch(SIZES, 5)
    rows = float32(np.random.default_rng(3).normal(size=(2 * 5, 2, D)))

    def both(module):
        shared = module.keys(float32(x), context(mask))
        return [module.rows(r, shared, context(mask)) for r in (rows, rows.reshape(2, 5, 2, D))]

    run = jax.jit(lambda params: module.apply({"params": params}, method=both))
    (y, captured), (whole, _) = run(float32(make_params()))
    assert y.shape == rows.shape and captured is None
    np.testing.assert_allclose(y, whole.reshape(y.shape), rtol=1e-5, atol=1e-5)


def test_captured_path_leads_to_the_selected_sentences():
    module, (x, mask) = make_module(dispatched=False), make_batch(([1] * 6, [1] * 6), 6)

    def capture(module):
        shared = module.keys(float32(x), context(mask))
        return shared.node_keys, module.rows(float32(x), shared, context(mask, capture=True))[1]

    run = jax.jit(lambda params: module.apply({"params": params}, method=capture))
    node_keys, captured = run(float32(make_params()))
    assert [key.shape for key in node_keys] == [(2, H, n, D // H) for n in (6, 3, 2, 1)]
    assert captured.index.shape == (2, H, 6 * M, 2) and captured.valid.all()
    np.testing.assert_array_equal(captured.path.node, captured.index[..., None] >> jnp.arange(3, -1, -1))
    np.testing.assert_allclose(captured.path.score.sum(-1), captured.relevance, atol=1e-4)


@pytest.mark.slow
def test_the_selector_gets_no_gradient_with_one_sentence():
    params, (x, mask) = float32(make_params()), make_batch(SIZES, 5)

    def gradient(t):
        def loss(params):
            y = make_module(t=t, dispatched=False).apply({"params": params}, *float32((x, x)), context(mask))
            return jnp.sum(jnp.where(mask[..., None], y, 0) ** 2)

        return float(jnp.abs(jax.jit(jax.grad(loss))(params)["selector_query"]).max())

    assert gradient(1) < 1e-5 * gradient(2)


@pytest.mark.slow
def test_dropout_of_weights_is_unbiased():
    params, (x, mask) = float32(make_params()), make_batch(SIZES, 5)
    plain = jax.jit(make_module().apply)({"params": params}, *float32((x, x)), context(mask))
    dropped = make_module(dropout=0.5)
    draw = jax.jit(
        lambda key: dropped.apply(
            {"params": params}, *float32((x, x)), context(mask, deterministic=False), rngs={"dropout": key}
        )
    )
    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 400))
    error = np.abs(drawn.mean(0) - plain) / (drawn.std(0) / np.sqrt(400) + 1e-6)
    assert drawn.std(0)[mask].max() > 0.1 and error[mask].max() < 5


def test_counted_operations_grow_with_the_logarithm_of_the_sentences():
    module = make_module(t=4, sentence_encoder=Source2Token(256), merge=Source2Token(256))

    def searching(sentences):
        _, rows = module.flops(256, 1, 32 * sentences, sentences)
        return rows

    steps = [searching(2 * n) - searching(n) for n in (64, 256, 1024)]
    assert steps == [2 * 256 * 2 * 4] * 3
    shared = [module.flops(256, 1, 32 * n, n)[0] for n in (64, 128)]
    assert 1.99 < shared[1] / shared[0] < 2.01
