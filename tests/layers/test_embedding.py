import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxnmt.layers.embedding import Embedding, TokenTable
from flaxnmt.layers.positions import SinusoidalPositions

V, D = 11, 6
IDS = jnp.array([[3, 0, 10], [7, 7, 2]])
TABLE = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
PARAMS = {"params": {"table": jnp.asarray(TABLE)}}


def test_embedding_is_a_row_times_the_root_of_d():
    y = TokenTable(V, D).apply(PARAMS, IDS, method="embed")
    np.testing.assert_allclose(y, TABLE[np.asarray(IDS)] * np.sqrt(D), rtol=1e-6)


def test_logits_are_products_with_the_same_table_without_scale():
    x = np.random.default_rng(1).normal(size=(2, 3, D)).astype(np.float32)
    y = TokenTable(V, D).apply(PARAMS, jnp.asarray(x), method="logits")
    np.testing.assert_allclose(y, x.astype(np.float64) @ TABLE.T, atol=1e-5)


def test_a_tied_table_gets_the_gradient_of_both_uses():
    """d/dE of sum(U * E) sqrt(D) for the rows that are looked up plus x of each logit."""
    table = TokenTable(V, D)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, D)), jnp.float32)

    def both(params):
        return table.apply(params, IDS, method="embed").sum() + table.apply(params, x, method="logits").sum()

    counts = np.bincount(np.ravel(IDS), minlength=V)[:, None]
    expected = counts * np.sqrt(D) + np.asarray(x, np.float64).sum((0, 1))
    np.testing.assert_allclose(jax.grad(both)(PARAMS)["params"]["table"], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_and_logits_are_float32_in_either_compute_type(dtype):
    table = TokenTable(V, D, dtype=dtype)
    y = table.apply(PARAMS, IDS, method="embed")
    logits = table.apply(PARAMS, y, method="logits")
    assert (y.dtype, logits.dtype) == (dtype, jnp.float32)
    exact = np.asarray(y, np.float64) @ np.asarray(jnp.asarray(TABLE, dtype), np.float64).T
    np.testing.assert_allclose(logits, exact, atol=1e-4)


def test_gradients_are_summed_in_float32_in_either_compute_type():
    """In bfloat16 a sum of ones ends at 256."""
    table = TokenTable(V, D, scaled=False, dtype=jnp.bfloat16)
    ids = jnp.full((4, 250), 7)

    def loss(params):
        return table.apply(params, ids, method="embed").astype(jnp.float32).sum()

    expected = np.where(np.arange(V)[:, None] == 7, 1000.0, 0.0) * np.ones(D)
    np.testing.assert_array_equal(jax.grad(loss)(PARAMS)["params"]["table"], expected)


def test_a_fresh_table_gives_embeddings_and_logits_of_unit_variance():
    table = TokenTable(2000, 64)
    params = table.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), method="embed")
    y = table.apply(params, jnp.arange(2000)[None], method="embed")
    logits = table.apply(params, jax.random.normal(jax.random.key(1), (1, 4, 64)), method="logits")
    np.testing.assert_allclose([jnp.std(y), jnp.std(logits)], 1, rtol=0.1)


def test_positions_are_added_and_the_sum_is_dropped():
    params = {"params": {"tokens": PARAMS["params"]}}
    places = jnp.array([[0, 1, 5]])
    expected = TABLE[np.asarray(IDS)] * np.sqrt(D) + np.stack([reference.sinusoid(k, D) for k in (0, 1, 5)])
    module = Embedding(TokenTable(V, D), SinusoidalPositions(D), dropout=0.5)
    np.testing.assert_allclose(module.apply(params, IDS, places, True), expected, rtol=1e-5, atol=1e-6)
    dropped = np.asarray(module.apply(params, IDS, places, False, rngs={"dropout": jax.random.key(0)}))
    np.testing.assert_allclose(dropped, np.where(dropped == 0, 0, 2 * expected), atol=1e-5)
    assert 0 < np.mean(dropped == 0) < 1
    plain = Embedding(TokenTable(V, D), None).apply(params, IDS, places, True)
    np.testing.assert_allclose(plain, TABLE[np.asarray(IDS)] * np.sqrt(D), rtol=1e-6)
