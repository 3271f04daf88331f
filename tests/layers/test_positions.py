import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxnmt.layers.positions import LearnedPositions, SinusoidalPositions, sinusoids


@pytest.mark.parametrize("d_model", [2, 7, 32, 512])
def test_sinusoids_are_the_formula(d_model):
    positions = np.array([[0, 1, 2, 3, 50], [511, 4, 4, 0, 17]])
    expected = np.stack([[reference.sinusoid(k, d_model) for k in row] for row in positions])
    # float32 angles of up to 511 radians are off by up to 3e-5.
    np.testing.assert_allclose(sinusoids(jnp.asarray(positions), d_model), expected, atol=5e-5)
    module = SinusoidalPositions(d_model)
    np.testing.assert_array_equal(
        module.apply({}, jnp.asarray(positions)), sinusoids(jnp.asarray(positions), d_model)
    )


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_an_offset_is_one_rotation_for_all_positions(offset):
    d_model, positions = 16, np.arange(40)
    rotation = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = offset / 10000 ** (i / d_model)
        rotation[i : i + 2, i : i + 2] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    here, there = (
        np.asarray(sinusoids(jnp.asarray(p), d_model), np.float64) for p in (positions, positions + offset)
    )
    np.testing.assert_allclose(there, here @ rotation.T, atol=2e-5)


def test_learned_positions_are_rows_of_their_table_and_the_last_one_beyond():
    module, table = LearnedPositions(4, length=6), np.arange(24, dtype=np.float32).reshape(6, 4)
    for ids, rows in (([[3, 0], [5, 5]], [[3, 0], [5, 5]]), ([[6, 400]], [[5, 5]])):
        vectors = module.apply({"params": {"table": table}}, jnp.asarray(ids))
        np.testing.assert_array_equal(vectors, table[rows])


def test_learned_positions_start_with_the_variance_of_an_embedding():
    module = LearnedPositions(64, length=256)
    table = module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]["table"].value
    assert table.shape == (256, 64) and table.dtype == jnp.float32
    np.testing.assert_allclose(jnp.std(table), 1 / 8, rtol=0.05)
