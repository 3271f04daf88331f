"""The translation model against float64 NumPy with the same parameters, and what must not matter.

Tolerance of float32 logits, which are of size 1 to 10: 5e-5.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_models import VOCAB, float32, parameter_shapes, random_ids, random_params, small_model

from flaxnmt.models.seq2seq import shift_right
from flaxnmt.sharding import unbox
from flaxnmt.training.objective import translation_objective

ATOL = 5e-5
SOURCE_LENGTHS, TARGET_LENGTHS = [7, 4, 1], [3, 8, 5]
SOURCE = jnp.asarray(random_ids(SOURCE_LENGTHS, 8, seed=1))
TARGET = jnp.asarray(random_ids(TARGET_LENGTHS, 8, seed=2))


@functools.cache
def compiled(model):
    return jax.jit(model.apply)


def logits_of(model, params, source, target):
    return np.asarray(compiled(model)({"params": float32(params)}, jnp.asarray(source), jnp.asarray(target)))


@pytest.fixture(scope="module")
def small():
    model = small_model(norm="post")
    params = random_params(model)
    return model, params, logits_of(model, params, SOURCE, TARGET)


@pytest.mark.parametrize(
    "norm, positions, tie",
    [
        ("post", "sinusoidal", "target"),
        pytest.param("pre", "learned", "none", marks=pytest.mark.slow),
        ("pre", "none", "all"),
    ],
)
def test_logits_loss_and_gradients_are_those_of_float64(norm, positions, tie):
    vocabularies = (VOCAB, VOCAB) if tie == "all" else (VOCAB + 3, VOCAB)
    model = small_model(*vocabularies, norm=norm, positions=positions, tie=tie, dropout=0.2)
    params = random_params(model)

    def expected_logits(params):
        slow = reference.Transformer(params, norm, positions, tie)
        pairs = zip(SOURCE, TARGET, SOURCE_LENGTHS, TARGET_LENGTHS)
        return [slow.logits(np.asarray(s[:m]), np.asarray(t[:n])) for s, t, m, n in pairs]

    def expected_sums(params):
        rows = zip(expected_logits(params), TARGET, TARGET_LENGTHS)
        return np.sum([reference.smoothed_loss(x, np.asarray(t[:n]), 0.1) for x, t, n in rows], axis=0)

    objective, batch = translation_objective(model, 0.1), {"source": SOURCE, "target": TARGET}

    def loss(params):
        sums = objective(params, batch, None)
        return sums["loss"], (sums, model.apply({"params": params}, SOURCE, TARGET))

    (_, (sums, logits)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(float32(params))
    for row, exact, length in zip(logits, expected_logits(params), TARGET_LENGTHS):
        np.testing.assert_allclose(row[:length], exact, atol=ATOL)
    assert sums["tokens"] == sum(TARGET_LENGTHS)
    np.testing.assert_allclose((sums["loss"], sums["nll"]), expected_sums(params), rtol=1e-5)

    # Each parameter array in one random direction: whichever derivative is wrong, its direction tells.
    rng = np.random.default_rng(5)
    leaves, tree = jax.tree.flatten(params)
    for i, (path, slope) in enumerate(jax.tree_util.tree_leaves_with_path(gradient)):
        direction = rng.normal(size=leaves[i].shape) * 1e-5
        ends = [
            tree.unflatten([*leaves[:i], leaves[i] + sign * direction, *leaves[i + 1 :]]) for sign in (1, -1)
        ]
        expected = np.subtract(*(expected_sums(end)[0] for end in ends)) / 2e-5
        actual, size = np.sum(np.float64(slope) * direction) / 1e-5, np.linalg.norm(slope)
        np.testing.assert_allclose(
            actual, expected, atol=1e-4 * (1 + size), err_msg=jax.tree_util.keystr(path)
        )


def test_decoder_inputs_are_bos_and_the_target_without_its_last_symbol():
    np.testing.assert_array_equal(shift_right(jnp.array([[5, 6, 3], [7, 3, 0]])), [[2, 5, 6], [2, 7, 3]])


def test_logits_do_not_depend_on_the_target_from_their_position_on(small):
    model, params, logits = small
    for t in (0, 1, 4):
        other = np.array(TARGET)
        other[:, t:] = (other[:, t:] + 5) % VOCAB
        changed = logits_of(model, params, SOURCE, other)
        np.testing.assert_array_equal(changed[:, : t + 1], logits[:, : t + 1])
        assert np.abs(changed[:, t + 1] - logits[:, t + 1]).max() > 1e-2


def test_logits_depend_on_every_source_symbol(small):
    model, params, logits = small
    for s in range(SOURCE_LENGTHS[0]):
        other = np.array(SOURCE)
        other[0, s] = 4 if other[0, s] != 4 else 5
        assert np.abs(logits_of(model, params, other, TARGET) - logits)[0].max() > 1e-2


def test_padding_changes_no_logit_of_a_real_symbol(small):
    model, params, logits = small
    wider = [np.pad(ids, ((0, 0), (0, extra))) for ids, extra in ((SOURCE, 5), (TARGET, 3))]
    padded = logits_of(model, params, *wider)
    np.testing.assert_allclose(padded[:, :8], logits, atol=ATOL)


def test_the_other_rows_of_a_batch_change_nothing(small):
    model, params, logits = small
    alone = [logits_of(model, params, SOURCE[i : i + 1], TARGET[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(alone, logits, atol=ATOL)
    reversed_rows = logits_of(model, params, SOURCE[::-1], TARGET[::-1])
    np.testing.assert_allclose(reversed_rows[::-1], logits, atol=ATOL)


@pytest.mark.slow
def test_vmap_over_examples_equals_the_batched_call(small):
    model, params, logits = small

    def single(source, target):
        return model.apply({"params": float32(params)}, source[None], target[None])[0]

    np.testing.assert_allclose(jax.jit(jax.vmap(single))(SOURCE, TARGET), logits, atol=ATOL)


@pytest.mark.slow
def test_loss_and_gradient_of_a_batch_are_the_sums_of_its_rows_and_empty_rows_add_nothing(small):
    model, params, _ = small
    objective = translation_objective(model, 0.1)

    @jax.jit
    def loss_and_gradient(source, target):
        batch = {"source": source, "target": target}
        return jax.value_and_grad(lambda p: objective(p, batch, None)["loss"])(float32(params))

    first = jnp.array([[True], [False], [False]])
    parts = [
        loss_and_gradient(jnp.where(keep, SOURCE, 0), jnp.where(keep, TARGET, 0)) for keep in (first, ~first)
    ]
    empty = loss_and_gradient(jnp.zeros_like(SOURCE), jnp.zeros_like(TARGET))
    jax.tree.map(
        lambda whole, *parts: np.testing.assert_allclose(sum(parts), whole, rtol=1e-4, atol=1e-5),
        loss_and_gradient(SOURCE, TARGET),
        *parts,
    )
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), empty)


def test_dropout_is_on_only_where_a_key_is_given(small):
    model, params, _ = small
    objective, batch = jax.jit(translation_objective(model, 0.1)), {"source": SOURCE, "target": TARGET}
    plain, *drawn = [
        float(objective(float32(params), batch, key)["loss"])
        for key in (None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    ]
    assert drawn[0] == drawn[1] != drawn[2] and plain not in drawn


@pytest.mark.slow
def test_bfloat16_computes_in_half_precision_and_keeps_the_rest_in_float32(small):
    _, params, exact = small
    model = small_model(norm="post", compute_dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(unbox(parameter_shapes(model)))} == {jnp.dtype("float32")}

    batch = {"source": SOURCE, "target": TARGET}

    @jax.jit
    def everything(params):
        encoded, _ = model.apply({"params": params}, SOURCE, method="encode")
        hidden, _ = model.apply({"params": params}, encoded, TARGET, method="decode")
        logits = model.apply({"params": params}, hidden, method="logits")
        return encoded.memory, hidden, logits, jax.grad(loss_of(model))(params), loss_of(model)(params)

    def loss_of(model):
        return lambda params: translation_objective(model, 0.1)(params, batch, None)["loss"]

    memory, hidden, logits, gradient, loss = everything(float32(params))
    assert (memory.dtype, hidden.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves((logits, gradient, loss))} == {jnp.dtype("float32")}
    # Eight bits through eight sub-layers.
    assert np.abs(logits - exact).mean() < 0.02 * np.abs(exact).mean() + 0.02
    sums = [reference.smoothed_loss(row, np.asarray(t), 0.1) for row, t in zip(np.float64(exact), TARGET)]
    np.testing.assert_allclose(loss, np.sum(sums, axis=0)[0], rtol=0.02)


def test_one_table_needs_one_vocabulary():
    with pytest.raises(ValueError, match="tied embeddings need one vocabulary, got 20 and 23"):
        parameter_shapes(small_model(20, 23))


@pytest.mark.slow
def test_captured_maps_are_the_weights_of_every_layer_and_head(small):
    model, params, _ = small
    variables = {"params": float32(params)}
    encoded, encoder = model.apply(variables, SOURCE, capture=True, method="encode")
    _, decoder = model.apply(variables, encoded, TARGET, capture=True, method="decode")
    own, cross = ([layer[name] for layer in decoder.maps["decoder"]] for name in ("attention", "cross"))
    encoder_maps = [layer["attention"] for layer in encoder.maps["encoder"]]
    shapes = [np.stack(maps).shape for maps in (encoder_maps, own, cross)]
    assert shapes == [(1, 3, 2, 8, 8), (2, 3, 2, 8, 8), (2, 3, 2, 8, 8)]
    np.testing.assert_allclose(np.stack(cross).sum(-1), 1, atol=1e-5)
    assert not np.any(np.triu(np.stack(own), 1)) and not np.any(np.stack(cross)[:, 1, :, :, 4:])
    assert model.apply(variables, SOURCE, method="encode")[1].maps == {}
