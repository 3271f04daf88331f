import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxnmt.layers.embedding import TokenTable
from flaxnmt.layers.positions import (
    LearnedPositions,
    MultiLevelPositions,
    SinusoidalPositions,
    document_positions,
    sinusoids,
)


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


@pytest.mark.parametrize("scaled, deviation", [(True, 1 / 8), (False, 0.02)])
def test_learned_positions_start_with_the_variance_of_an_embedding(scaled, deviation):
    modules = LearnedPositions(64, 256, scaled), TokenTable(256, 64, scaled)
    for module, method in zip(modules, ("__call__", "embed"), strict=True):
        variables = module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), method=method)
        table = variables["params"]["table"].value
        assert table.shape == (256, 64) and table.dtype == jnp.float32
        np.testing.assert_allclose(jnp.std(table), deviation, rtol=0.05)


# Two documents of four sentences of three words: the second has a sentence of padding at its end.
MASK = np.array(
    [[[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]]], bool
)
PARAGRAPHS = np.array([[0, 0, 1, 2], [0, 1, 1, 1]])


def positions(mask, paragraphs, count):
    return np.asarray(document_positions(jnp.asarray(mask), jnp.asarray(paragraphs), count))


def counted(mask, paragraphs, count):
    """The counters of one document, word by word; -1 at padding."""
    ids, word, sentence, unit = np.full((*mask.shape, 3), -1), 0, 0, None
    for n, words in enumerate(mask):
        if count == "unit":
            word, sentence = 0, 0 if paragraphs[n] != unit else sentence
            unit = paragraphs[n]
        for m in np.flatnonzero(words):
            ids[n, m] = word, sentence, paragraphs[n]
            word += 1
        sentence += 1
    return ids


@pytest.mark.parametrize("count", ["sequence", "unit"])
def test_counters_from_the_beginning_of_the_sequence_or_of_the_unit(count):
    ids = np.asarray(
        jax.jit(document_positions, static_argnums=2)(jnp.asarray(MASK), jnp.asarray(PARAGRAPHS), count)
    )
    expected = np.stack([counted(*document, count) for document in zip(MASK, PARAGRAPHS)])
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids[MASK], expected[MASK])
    assert ids.min() == 0 and ids.max() < MASK[0].size


def test_the_example_of_the_paper():
    """The 135th word of the text, in its 4th sentence, in its 2nd paragraph; counted from zero."""
    lengths, paragraphs = [40, 50, 30, 25], np.array([[0, 0, 1, 1]])
    mask = (np.arange(50) < np.array(lengths)[:, None])[None]
    assert positions(mask, paragraphs, "sequence")[0, 3, 14].tolist() == [134, 3, 1]
    assert positions(mask, paragraphs, "unit")[0, 3, 14].tolist() == [14, 1, 1]


@pytest.mark.parametrize("count", ["sequence", "unit"])
def test_padding_takes_part_in_no_count(count):
    mask, paragraphs = np.zeros((2, 6, 5), bool), np.zeros((2, 6), int)
    mask[:, :4, :3], paragraphs[:, :4] = MASK, PARAGRAPHS
    padded = positions(mask, paragraphs, count)
    np.testing.assert_array_equal(padded[:, :4, :3][MASK], positions(MASK, PARAGRAPHS, count)[MASK])
    empty = positions(np.zeros_like(mask), np.zeros_like(paragraphs), count)
    assert empty.min() == 0 and empty.max() < 6


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_levels_are_summed_whether_learned_or_sinusoidal(levels):
    d_model = 8
    modules = (
        SinusoidalPositions(d_model),
        LearnedPositions(d_model, length=3),
        SinusoidalPositions(d_model, roll=3),
    )[:levels]
    module, ids = MultiLevelPositions(modules), jnp.asarray(counted(MASK[0], PARAGRAPHS[0], "unit"))[None]
    ids = jnp.maximum(ids, 0)[..., :levels]
    variables = jax.jit(module.init)(jax.random.key(0), ids)
    shapes = [leaf.shape for leaf in jax.tree.leaves(variables)]
    assert shapes == ([(3, d_model)] if levels > 1 else [])
    y = np.asarray(module.apply(variables, ids))
    for place in np.ndindex(ids.shape[:-1]):
        expected = reference.sinusoid(ids[place][0], d_model)
        if levels > 1:
            expected = expected + np.asarray(jax.tree.leaves(variables)[0])[ids[place][1]]
        if levels > 2:
            expected = expected + np.roll(reference.sinusoid(ids[place][2], d_model), 3)
        np.testing.assert_allclose(y[place], expected, atol=1e-5)


def test_ids_of_another_number_of_levels_are_refused():
    module = MultiLevelPositions((SinusoidalPositions(4),) * 2)
    with pytest.raises(ValueError, match="positions at 3 levels for encodings of 2"):
        module.apply({}, jnp.zeros((1, 2, 3), jnp.int32))


@pytest.mark.parametrize(
    "roll, count, apart", [(0, "unit", 0), (0, "sequence", 0.4), (10, "unit", 1), (10, "sequence", 1)]
)
def test_what_a_sum_of_sinusoids_can_tell_apart(roll, count, apart):
    """The smallest distance between any two positions: none by unit, unless each level has a roll of its own."""
    ids = np.array(
        [(w, s, p) for w in range(40) for s in range(10) for p in range(3) if count == "unit" or w >= s >= p]
    )
    levels = tuple(SinusoidalPositions(32, roll=level * roll) for level in range(3))
    y = np.asarray(MultiLevelPositions(levels).apply({}, jnp.asarray(ids)[None])[0], np.float64)
    squares = np.sum(y**2, -1)
    distances = squares[:, None] + squares - 2 * y @ y.T
    nearest = np.sqrt(np.maximum(distances[~np.eye(len(y), dtype=bool)].min(), 0))
    assert nearest > apart if apart else nearest < 1e-3
