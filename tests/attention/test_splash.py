"""The splash kernel, interpreted, beside plain attention: forward and gradient, padding, meshes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.attention.document import DocumentAttention
from flaxnmt.attention.dot_product import dot_product_attention
from flaxnmt.attention.relative import ShawPositions, TransformerXLPositions
from flaxnmt.attention.splash import splash_attention
from flaxnmt.attention.weights import argmax_weights
from flaxnmt.layers.context import Context
from flaxnmt.sharding import make_mesh, use_mesh

LENGTHS = (130, 40)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    query, key, value, weight = (rng.normal(size=(2, 2, LENGTHS[0], 64)).astype(np.float32) for _ in range(4))
    mask = np.arange(LENGTHS[0]) < np.asarray(LENGTHS)[:, None]
    return query, key, value, mask, weight


def plain(query, key, value, mask):
    return dot_product_attention(query, key, value, mask[:, None, None])


def test_output_and_gradients_are_those_of_plain_attention(inputs):
    *arrays, mask, weight = inputs
    weight = weight * mask[:, None, :, None]

    def both(attention):
        def loss(*arrays):
            y = attention(*arrays, jnp.asarray(mask))
            return (y * weight).sum(), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)

    (_, found), gradients = both(lambda *inputs: splash_attention(*inputs, interpret=True))
    (_, expected), wanted = both(plain)
    real = mask[:, None, :, None]
    np.testing.assert_allclose(found * real, expected * real, rtol=1e-5, atol=1e-5)
    for gradient, want in zip(gradients, wanted):
        np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-5)


def test_an_empty_document_has_finite_gradients(inputs):
    query, key, value, mask, _ = inputs
    mask = jnp.asarray(mask).at[1].set(False)
    gradients = jax.grad(
        lambda *arrays: splash_attention(*arrays, mask, interpret=True).sum(), argnums=(0, 1, 2)
    )(query, key, value)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_on_a_mesh_each_device_has_its_examples_and_heads(inputs):
    *arrays, mask, _ = inputs
    arrays = [jnp.asarray(array) for array in arrays]
    whole = splash_attention(*arrays, jnp.asarray(mask), interpret=True)
    mesh = make_mesh(2, 1, 2, jax.devices()[:4])
    with use_mesh(mesh):
        found = jax.jit(lambda *inputs: splash_attention(*inputs, interpret=True))(*arrays, mask)
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)


def test_attention_over_documents_is_the_same_by_the_kernel():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, 3, 5, 128)), jnp.float32)
    context = Context(key_mask=jnp.asarray(rng.random((2, 3, 5)) < 0.7).at[:, 0, 0].set(True))
    plain, fast = (
        DocumentAttention(128, 2, kernel=kernel)
        for kernel in (None, partial(splash_attention, interpret=True))
    )
    variables = plain.init(jax.random.key(0), x, x, context)
    expected = jax.jit(plain.apply)(variables, x, x, context)
    np.testing.assert_allclose(jax.jit(fast.apply)(variables, x, x, context), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": argmax_weights},
        {"positions": ShawPositions(4)},
        {"positions": TransformerXLPositions(8, 2)},
    ],
)
def test_what_a_kernel_does_not_know_of_is_refused(changes):
    attention = DocumentAttention(8, 2, kernel=lambda query, key, value, mask: value, **changes)
    x = jnp.ones((1, 2, 3, 8))
    with pytest.raises(ValueError, match="a kernel has no hard weights, and no positions that add"):
        jax.eval_shape(attention.init, jax.random.key(0), x, x, Context())


def test_attention_over_documents_is_not_causal():
    x = jnp.ones((1, 2, 3, 8))
    with pytest.raises(ValueError, match="not causal"):
        jax.eval_shape(DocumentAttention(8, 2).init, jax.random.key(0), x, x, Context(causal=True))
