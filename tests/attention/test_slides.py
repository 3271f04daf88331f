"""Numbers and formulas of Tripp's slides on Transformers (Deep Learning, fall 2023), through our modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import relative_reference as slow
from flax import linen as nn

from flaxnmt.attention.dot_product import MASKED, attend, attention_scores, dot_product_attention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import TransformerXLPositions
from flaxnmt.attention.rotary import rotate
from flaxnmt.attention.weights import softmax_weights, threshold_weights
from flaxnmt.layers.context import Context
from flaxnmt.layers.positions import sinusoids
from flaxnmt.sharding import unbox

# Columns are keys and values, as on the slide; ours are rows.
KEYS = jnp.array([[-0.04, 0.45], [1.34, 0.53]]).T[None]
QUERY = jnp.array([-0.71, 0.75])[None, None]
VALUES = jnp.array([[2.0, 0.0], [0.0, -2.0]]).T[None]


def test_the_worked_example():
    scores = attention_scores(QUERY, KEYS)
    weights = softmax_weights(scores)
    np.testing.assert_allclose(scores[0, 0], [0.74, 0.06], atol=0.011)
    np.testing.assert_allclose(weights[0, 0], [0.66, 0.34], atol=0.005)
    np.testing.assert_allclose(attend(weights, VALUES)[0, 0], [1.32, -0.68], atol=0.006)
    # The slide rounds its inputs; what they give to five digits:
    np.testing.assert_allclose(scores[0, 0], [0.73072, 0.05515], atol=1e-5)
    np.testing.assert_allclose(weights[0, 0], [0.66275, 0.33725], atol=1e-5)
    np.testing.assert_allclose(
        dot_product_attention(QUERY, KEYS, VALUES)[0, 0], [1.32550, -0.67450], atol=1e-5
    )


def test_the_worked_example_is_not_that_of_unscaled_products():
    unscaled = attention_scores(QUERY * 2**0.5, KEYS)
    np.testing.assert_allclose(unscaled[0, 0], [1.0334, 0.0780], atol=1e-4)
    weights = softmax_weights(unscaled)
    np.testing.assert_allclose(weights[0, 0], [0.722, 0.278], atol=1e-3)
    assert np.abs(unscaled[0, 0] - np.array([0.74, 0.06])).max() > 0.011
    assert np.abs(weights[0, 0] - np.array([0.66, 0.34])).max() > 0.005
    assert np.abs(attend(weights, VALUES)[0, 0] - np.array([1.32, -0.68])).max() > 0.006


def test_hard_attention_and_masks_in_the_worked_example():
    scores = attention_scores(QUERY, KEYS)
    for threshold, output in ((0.5, [2, 0]), (0.0, [2, -2]), (0.8, [0, 0])):
        np.testing.assert_array_equal(attend(threshold_weights(scores, threshold), VALUES)[0, 0], output)
    masked = attention_scores(QUERY, KEYS, bias=jnp.array([[[-jnp.inf, 0.0]]]))
    assert masked[0, 0, 0] == MASKED
    np.testing.assert_array_equal(attend(softmax_weights(masked), VALUES)[0, 0], [0, -2])


@pytest.mark.parametrize("d_model", [20, 512])
def test_an_offset_rotates_each_pair_of_a_sinusoid(d_model):
    """p(k + o) = rotation(o) p(k): with cosines before sines it is the rotation of rotary positions."""
    k = jnp.arange(60)

    def halves(positions):
        vectors = sinusoids(positions, d_model)
        return jnp.concatenate([vectors[:, 1::2], vectors[:, ::2]], axis=-1)[None]

    for offset in (1, 2, 7, 30, 100, -13):
        turned = rotate(halves(k), jnp.full((60,), offset))
        np.testing.assert_allclose(turned, halves(k + offset), atol=5e-5, err_msg=str(offset))


@pytest.mark.parametrize("d_model, period", [(20, 25013.8), (512, 60611.5)])
def test_the_longest_period_is_below_that_of_the_slide(d_model, period):
    """2 pi 10000^{(D - 2) / D}, of which the slide's 62800 is the limit for large D."""
    slowest = sinusoids(jnp.arange(2), d_model)[1, -2]
    found = 2 * np.pi / np.arcsin(np.float64(slowest))
    np.testing.assert_allclose(found, period, rtol=1e-5)
    assert found < 62800 < 2 * np.pi * 10000


def random_parts(length=6, d_model=8, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(length, d_model))
    w_query, w_key, w_position = rng.normal(size=(3, d_model, d_model))
    return tokens, w_query, w_key, w_position, *rng.normal(size=(2, d_model))


def scores_of(queries, keys):
    return np.asarray(attention_scores(*(jnp.asarray(x[None], jnp.float32) for x in (queries, keys)))[0])


def test_absolute_scores_are_the_sum_of_four_terms():
    tokens, w_query, w_key, *_ = random_parts()
    places = np.asarray(sinusoids(jnp.arange(len(tokens)), tokens.shape[1]), np.float64)
    terms = [scores_of(a @ w_query, b @ w_key) for a in (tokens, places) for b in (tokens, places)]
    embedded = tokens + places
    np.testing.assert_allclose(sum(terms), scores_of(embedded @ w_query, embedded @ w_key), atol=1e-5)
    assert all(np.abs(term).max() > 0.1 for term in terms)
    # They are of positions and not of distances: a shift of both changes the score.
    moved = tokens + np.asarray(sinusoids(jnp.arange(len(tokens)) + 9, tokens.shape[1]))
    assert np.abs(scores_of(moved @ w_query, moved @ w_key) - sum(terms)).max() > 0.1


def test_relative_scores_are_the_sum_of_four_terms_and_know_distances_alone():
    tokens, w_query, w_key, w_position, u, v = random_parts()
    length, d_model = tokens.shape
    params = {"distance": w_position[:, None], "content_bias": u[None], "position_bias": v[None]}
    positions = TransformerXLPositions(d_model, 1).bind({"params": jax.tree.map(jnp.float32, params)})
    query, key = (jnp.asarray((tokens @ w)[None, None], jnp.float32) for w in (w_query, w_key))

    def scores(ids):
        places = Context(query_positions=ids, key_positions=ids, span=length).places(length, length)
        content = attention_scores(positions.queries(query, places.query), key)
        return np.asarray((content + positions.scores(query, places).of_pairs())[0, 0])

    ids = jnp.arange(length)[None]
    terms = np.array(
        [
            [slow.TransformerXL(params, 0).terms(tokens[i] @ w_query, tokens[j] @ w_key, i, j) for j in range(length)]
            for i in range(length)
        ]
    ) / np.sqrt(d_model)  # fmt: skip
    np.testing.assert_allclose(scores(ids), terms.sum(-1), atol=2e-5)
    np.testing.assert_allclose(scores(ids + 1000), scores(ids), atol=1e-6)
    # Content needs no position, global terms no query: what each of them is.
    np.testing.assert_allclose(terms[..., 0], scores_of(tokens @ w_query, tokens @ w_key), atol=1e-5)
    np.testing.assert_allclose(np.ptp(terms[..., 2], axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(terms[1:, 1:, 3], terms[:-1, :-1, 3], atol=1e-12)
    r = reference.sinusoid(-1, d_model) @ w_position
    np.testing.assert_allclose(terms[0, 1, 3], v @ r / np.sqrt(d_model), atol=1e-12)


def parameters(module, *inputs):
    return unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"])


def test_a_layer_of_attention_has_fewer_weights_than_a_full_connection():
    """Sequences of 100 embeddings of 100 features: 100^4 weights against 3 x 100^2."""
    sequence = jax.ShapeDtypeStruct((1, 100, 100), jnp.float32)
    flat = jax.ShapeDtypeStruct((1, 100 * 100), jnp.float32)
    full = parameters(nn.Dense(100 * 100, use_bias=False), flat)
    attention = parameters(MultiHeadAttention(100, heads=1), sequence, sequence, Context())
    assert sum(leaf.size for leaf in jax.tree.leaves(full)) == 100**4 == 100_000_000
    assert sum(attention[name].size for name in ("query", "key", "value")) == 3 * 100**2 == 30_000
    # The output projection is not on the slide.
    assert sum(leaf.size for leaf in jax.tree.leaves(attention)) == 4 * 100**2


def test_heads_share_the_features_and_one_map_joins_them():
    attention = parameters(
        MultiHeadAttention(100, heads=5), *[jax.ShapeDtypeStruct((1, 3, 100), jnp.float32)] * 2, Context()
    )
    assert attention["query"].shape == (100, 5, 20) and attention["out"].shape == (5, 20, 100)
