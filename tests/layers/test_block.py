"""Blocks and feed-forward networks against float64, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.initializers import projection
from flaxnmt.sharding import unbox

B, Q, D, F = 2, 3, 4, 6
X, UPSTREAM = np.random.default_rng(0).normal(size=(2, B, Q, D))


def make_params(norm, seed=1):
    rng = np.random.default_rng(seed)
    shapes = {"w_in": (D, F), "b_in": (F,), "w_out": (F, D), "b_out": (D,)}
    params = {"sublayer": {name: rng.normal(size=shape) for name, shape in shapes.items()}}
    if norm != "none":
        params["layer_norm"] = {"scale": 1 + 0.2 * rng.normal(size=D), "bias": rng.normal(size=D)}
    return params


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_a_block_is_its_equation_forward_and_backward(norm, skip):
    params = make_params(norm)
    module = Block(FeedForward(D, F), norm=norm, skip=skip, dropout=0.3)

    def ours(params, x):
        return module.apply({"params": params}, x, Context())[0]

    def expected(params, x):
        return reference.block(params, x, lambda h: reference.feed_forward(params["sublayer"], h), norm, skip)

    y, backward = jax.vjp(jax.jit(ours), *float32((params, X)))
    np.testing.assert_allclose(y, expected(params, X), atol=1e-5)
    d_params, d_x = backward(float32(UPSTREAM))

    def loss(params, x=X):
        return np.sum(UPSTREAM * expected(params, x))

    np.testing.assert_allclose(d_x, reference.numeric_gradient(lambda x: loss(params, x), X), atol=1e-4)
    assert jax.tree.structure(d_params) == jax.tree.structure(params)
    for part, group in params.items():
        for name, value in group.items():

            def loss_of(v, part=part, name=name):
                return loss(params | {part: params[part] | {name: v}})

            gradient = reference.numeric_gradient(loss_of, value)
            np.testing.assert_allclose(d_params[part][name], gradient, atol=1e-4, err_msg=f"{part}.{name}")


def test_dropout_is_on_the_output_of_the_sublayer_and_not_on_the_skip():
    params = float32(make_params("none"))
    module, x = Block(FeedForward(D, F), norm="none", dropout=0.5), float32(X)
    f = np.asarray(module.apply({"params": params}, x, Context())[0]) - X
    rngs = {"dropout": jax.random.key(0)}
    dropped = np.asarray(module.apply({"params": params}, x, Context(deterministic=False), rngs=rngs)[0]) - X
    zero = np.abs(dropped) < 1e-6
    np.testing.assert_allclose(dropped, np.where(zero, 0, 2 * f), atol=1e-5)
    assert 0 < zero.mean() < 1


def test_dropout_inside_the_feed_forward_network_is_unbiased():
    params = float32(make_params("none")["sublayer"])
    module, x = FeedForward(D, F, dropout=0.4), float32(X)

    def draw(key):
        context = Context(deterministic=False)
        rngs = {"dropout": key}
        return module.apply({"params": params}, x, None, context, rngs=rngs, method="rows")[0]

    drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 4000))
    exact = module.apply({"params": params}, x, None, Context(), method="rows")[0]
    # Rows whose hidden units are all zero have no variance.
    error = np.abs(drawn.mean(0) - exact) / np.maximum(drawn.std(0) / np.sqrt(4000), 1e-3)
    assert drawn.std(0).max() > 0.1 and error.max() < 4.5


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_extend_over_a_cache_equals_the_block_over_all_rows(norm):
    rng, heads = np.random.default_rng(4), 2
    block = Block(MultiHeadAttention(D, heads), norm=norm)
    context = Context(query_positions=jnp.arange(Q)[None], key_positions=jnp.arange(Q)[None], causal=True)
    x = float32(X)
    shapes = unbox(jax.eval_shape(block.init, jax.random.key(0), x, context))
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)
    whole, _ = block.apply(params, x, context)
    empty = jnp.zeros((B, heads, Q, D // heads))
    cache = KeyValues(empty, empty)
    for t in range(Q):

        def write(cached, new, t=t):
            return jax.tree.map(lambda a, b: a.at[:, :, t].set(b[:, :, 0]), cached, new)

        visible = Context(visible=jnp.broadcast_to(jnp.arange(Q) <= t, (B, 1, Q)))
        y, cache = block.apply(params, x[:, t : t + 1], cache, visible, write, method="extend")
        np.testing.assert_allclose(y[:, 0], whole[:, t], atol=1e-5)


def test_bfloat16_blocks_keep_float32_parameters():
    module = Block(FeedForward(D, F, dtype=jnp.bfloat16), dtype=jnp.bfloat16)
    params, x = float32(make_params("pre")), jnp.asarray(X, jnp.bfloat16)
    y, _ = module.apply({"params": params}, x, Context())
    exact = reference.block(
        make_params("pre"), np.asarray(x, np.float64),
        lambda h: reference.feed_forward(make_params("pre")["sublayer"], h), "pre",
    )  # fmt: skip
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=3e-2 * np.abs(exact).max())
    fresh = jax.eval_shape(module.init, jax.random.key(0), x, Context())
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}


def test_projections_start_uniform_within_the_bound_of_glorot():
    kernel = projection(300, 200)(jax.random.key(0), (300, 4, 50))
    bound = np.sqrt(6 / 500)
    assert 0.99 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
    np.testing.assert_allclose([kernel.mean(), kernel.var()], [0, bound**2 / 3], atol=2e-4)
