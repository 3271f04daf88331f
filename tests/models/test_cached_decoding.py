"""One position at a time over a cache equals all positions at once. Tolerance of float32 logits: 5e-5."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import VOCAB, float32, random_ids, random_params, small_model

from flaxnmt.models.config import BudgetConfig
from flaxnmt.symbols import BOS

BEAMS, LENGTH = 2, 6
SOURCE = jnp.asarray(random_ids([5, 3], 5, seed=1))
HYPOTHESES = jnp.asarray(random_ids([LENGTH] * 4, LENGTH, seed=2)).reshape(2, BEAMS, LENGTH)


def full_logits(model, params):
    """[B, K, T, V]: each hypothesis as a row of its own."""
    source = jnp.repeat(SOURCE, BEAMS, axis=0)
    logits = jax.jit(model.apply)(params, source, HYPOTHESES.reshape(-1, LENGTH))
    return logits.reshape(*HYPOTHESES.shape, -1)


def stepped_logits(model, params, room=LENGTH, segments=4):
    start = partial(model.apply, params, SOURCE, BEAMS, room, segments=segments, method="start")
    cache = jax.jit(start)()
    step = jax.jit(
        lambda cache, tokens, position: model.apply(params, cache, tokens, position, method="step")
    )
    tokens, steps = jnp.full((2, BEAMS), BOS), []
    structure = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), cache)
    for t in range(LENGTH):
        logits, cache = step(cache, tokens, jnp.int32(t))
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), cache) == structure
        steps.append(logits)
        tokens = HYPOTHESES[:, :, t]
    return jnp.stack(steps, axis=2)


@pytest.mark.parametrize(
    "norm, positions, tie, scan",
    [
        pytest.param("pre", "sinusoidal", "all", False, marks=pytest.mark.slow),
        pytest.param("pre", "learned", "target", True, marks=pytest.mark.slow),
        pytest.param("post", "sinusoidal", "none", True, marks=pytest.mark.slow),
        pytest.param("post", "none", "target", False, marks=pytest.mark.slow),
        pytest.param("pre", "shaw", "all", False, marks=pytest.mark.slow),
        ("pre", "transformer_xl", "all", True),
        ("post", "rotary", "target", False),
    ],
)
def test_steps_over_a_cache_equal_the_full_forward_pass(norm, positions, tie, scan):
    vocabularies = (VOCAB, VOCAB) if tie == "all" else (VOCAB + 3, VOCAB)
    # Clipped within the length of the hypotheses.
    options = {"norm": norm, "positions": positions, "tie": tie, "scan": scan, "relative_clip": 2}
    model = small_model(*vocabularies, **options)
    params = {"params": float32(random_params(model))}
    logits = stepped_logits(model, params)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, full_logits(model, params), atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["shaw", "transformer_xl", "rotary"])
def test_distances_behind_gates_are_those_of_the_full_pass(positions):
    """Steps leave out what gates decide against, the full pass multiplies it by 0."""
    model = small_model(positions=positions, relative_clip=2, budget=BudgetConfig((1.0, 0.5), (1.0, 0.5), 2))
    params = {"params": float32(random_params(model))}
    np.testing.assert_allclose(stepped_logits(model, params), full_logits(model, params), atol=1e-4)


@pytest.mark.parametrize("weights", [pytest.param("threshold", marks=pytest.mark.slow), "argmax"])
def test_hard_attention_looks_at_the_same_words(weights):
    model = small_model(attention_weights=weights)
    params = {"params": float32(random_params(model))}
    np.testing.assert_allclose(stepped_logits(model, params), full_logits(model, params), atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["sinusoidal", "transformer_xl"])
def test_room_that_is_not_used_changes_nothing(positions):
    model = small_model(positions=positions)
    params = {"params": float32(random_params(model))}
    np.testing.assert_allclose(stepped_logits(model, params, room=11), full_logits(model, params), atol=5e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", pytest.param("shaw", marks=pytest.mark.slow)])
def test_any_number_of_segments_gives_the_same_logits(positions):
    model = small_model(positions=positions, relative_clip=2)
    params = {"params": float32(random_params(model))}
    one, *others = (stepped_logits(model, params, segments=segments) for segments in (1, 2, 100))
    for logits in others:
        np.testing.assert_allclose(logits, one, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_caches_are_half_as_large_and_close():
    model = small_model(compute_dtype="bfloat16")
    params = {"params": float32(random_params(model))}
    cache = jax.eval_shape(lambda: model.apply(params, SOURCE, BEAMS, LENGTH, method="start"))
    assert {leaf.dtype for leaf in jax.tree.leaves(cache.shared[:2])} == {jnp.dtype("bfloat16")}
    stepped, full = stepped_logits(model, params), full_logits(model, params)
    assert stepped.dtype == jnp.float32
    # Both paths round to 8 bits in every product, in another order.
    np.testing.assert_allclose(stepped, full, atol=0.03 * np.abs(full).max())


def test_source_keys_are_not_tiled_over_the_beam():
    model = small_model()
    params = {"params": float32(random_params(model))}
    cache = jax.eval_shape(lambda: model.apply(params, SOURCE, 7, LENGTH, method="start"))
    own, cross, *_ = cache.shared
    assert own[0].parts[0].key.shape == (2, 2, LENGTH * 7, 8)
    assert cross[0]["cross"].key.shape == (2, 2, SOURCE.shape[1], 8)
