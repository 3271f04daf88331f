"""Pure functions take one example under vmap as they take a batch, and so do their gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from flaxnmt.attention.conditional import conditional_attention_dense
from flaxnmt.attention.dispatch import conditional_attention
from flaxnmt.attention.dot_product import attend, attention_scores, dot_product_attention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.selection import select_sentences
from flaxnmt.attention.source2token import multi_dimensional, source2token
from flaxnmt.attention.tree import construct_tree, traverse
from flaxnmt.decoding.sampling import keep_top_k, keep_top_p
from flaxnmt.decoding.scoring import token_log_probs
from flaxnmt.layers.context import Context
from flaxnmt.layers.dropout import dropout
from flaxnmt.layers.positions import sinusoids
from flaxnmt.training.loss import label_smoothed_cross_entropy

B, H, Q, L, K, V = 3, 2, 4, 5, 8, 11


def normal(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


QUERY, KEY, VALUE, BIAS = normal(B, H, Q, K), normal(B, H, L, K), 2 * normal(B, H, L, K), normal(B, H, Q, L)
MASK = jax.random.bernoulli(jax.random.key(1), 0.7, (B, 1, Q, L))
LOGITS, IDS = normal(B, Q, V), jax.random.randint(jax.random.key(2), (B, Q), 0, V)
REAL = jnp.arange(Q) < jnp.array([[4], [2], [1]])

CASES = {
    "attention_scores": (attention_scores, (QUERY, KEY, MASK, BIAS)),
    "attend": (attend, (jax.nn.softmax(BIAS), VALUE)),
    "dot_product_attention": (dot_product_attention, (QUERY, KEY, VALUE, MASK, BIAS)),
    "sinusoids": (partial(sinusoids, d_model=6), (IDS,)),
    "token_log_probs": (token_log_probs, (LOGITS, IDS, REAL)),
    "keep_top_k": (partial(keep_top_k, k=3), (LOGITS,)),
    "keep_top_p": (partial(keep_top_p, p=0.6), (LOGITS,)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_example_at_a_time_equals_the_batch(name):
    function, arguments = CASES[name]
    assert_allclose(
        jax.jit(jax.vmap(function))(*arguments), jax.jit(function)(*arguments), rtol=1e-5, atol=1e-6
    )


N, M, T = 5, 3, 2
WORDS, SENTENCES, OF_SENTENCES = normal(B, H, N * M, K), normal(B, N, M, K), 2 * normal(B, H, N, K)
SEEN = jnp.arange(M) < jnp.array([[3, 1, 2, 3, 1], [2, 3, 0, 0, 0], [1, 0, 0, 0, 0]])[..., None]


def mean_of_pairs(pairs, mask):
    return (pairs * mask[..., None]).sum(-2) / jnp.maximum(mask.sum(-1), 1)[..., None]


def conditional(attention, words, of_sentences, sentences, seen):
    selection = select_sentences(words, of_sentences, seen.any(-1), T)
    key = jnp.stack([sentences, -sentences], axis=1)
    return attention(words, key, 2 * key, seen, selection)


def selected(words, of_sentences, seen):
    found = select_sentences(words, of_sentences, seen.any(-1), T)
    return found.index, found.relevance, found.valid


def by_tree(words, sentences, seen):
    nodes, masks = construct_tree(mean_of_pairs(sentences, seen), seen.any(-1), mean_of_pairs)
    keys = tuple(jnp.stack([node, -node], axis=1) for node in nodes)
    found = traverse(words, keys, masks, T)
    return found.index, found.relevance, found.valid


DOCUMENTS = {
    "source2token": (partial(source2token, normal(K)), (SENTENCES, 2 * SENTENCES, SEEN)),
    "multi_dimensional": (multi_dimensional, (SENTENCES, 2 * SENTENCES, SEEN)),
    "select_sentences": (selected, (WORDS, OF_SENTENCES, SEEN)),
    "conditional, dense": (
        partial(conditional, conditional_attention_dense),
        (WORDS, OF_SENTENCES, SENTENCES, SEEN),
    ),
    "conditional, dispatched": (
        partial(conditional, conditional_attention),
        (WORDS, OF_SENTENCES, SENTENCES, SEEN),
    ),
    "tree": (by_tree, (WORDS, SENTENCES, SEEN)),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_one_document_at_a_time_equals_the_batch(name):
    function, arguments = DOCUMENTS[name]

    def of_one(*arguments):
        found = function(*(array[None] for array in arguments))
        return jax.tree.map(lambda array: array[0], found)

    def gradient(function):
        def loss(*arguments):
            floats = [x for x in jax.tree.leaves(function(*arguments)) if x.dtype == jnp.float32]
            return sum(jnp.sin(x).sum() for x in floats)

        return jax.grad(loss)

    mapped = jax.jit(
        lambda *arguments: (jax.vmap(of_one)(*arguments), jax.vmap(gradient(of_one))(*arguments))
    )
    batched = jax.jit(lambda *arguments: (function(*arguments), gradient(function)(*arguments)))
    for one, other in zip(*(jax.tree.leaves(run(*arguments)) for run in (mapped, batched)), strict=True):
        assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_gradients_of_examples_equal_those_of_the_batch():
    def loss(query, key, value, mask):
        return jnp.sum(jnp.sin(dot_product_attention(query, key, value, mask)))

    one = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1, 2))))
    for ours, batched in zip(
        one(QUERY, KEY, VALUE, MASK), jax.grad(loss, argnums=(0, 1, 2))(QUERY, KEY, VALUE, MASK)
    ):
        assert_allclose(ours, batched, rtol=1e-4, atol=1e-6)


def test_loss_sums_of_examples_add_up_to_those_of_the_batch():
    sums = partial(label_smoothed_cross_entropy, smoothing=0.1)
    for each, batched in zip(jax.vmap(sums)(LOGITS, IDS, REAL), sums(LOGITS, IDS, REAL)):
        assert_allclose(each.sum(), batched, rtol=1e-5)


def test_dropout_of_examples_has_a_key_for_each():
    x, keys = jnp.ones((B, 64)), jax.random.split(jax.random.key(0), B)
    together = jax.vmap(partial(dropout, rate=0.5))(x, key=keys)
    apart = [dropout(row, 0.5, key) for row, key in zip(x, keys)]
    np.testing.assert_array_equal(together, jnp.stack(apart))
    assert len({tuple(row) for row in np.asarray(together)}) == B


def test_a_module_maps_over_documents():
    module = MultiHeadAttention(d_model=8, heads=2)
    x, mask = normal(B, Q, L, 8), jax.random.bernoulli(jax.random.key(3), 0.8, (B, Q, L))
    variables = jax.jit(module.init)(jax.random.key(0), x[0], x[0], Context(key_mask=mask[0]))

    def attention(x, mask):
        return module.apply(variables, x, x, Context(key_mask=mask))

    flat = jax.jit(attention)(x.reshape(B * Q, L, 8), mask.reshape(B * Q, L))
    assert_allclose(jax.jit(jax.vmap(attention))(x, mask), flat.reshape(x.shape), rtol=1e-5, atol=1e-6)
