"""The best continuations equal those of a full sort."""

import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.decoding.top import CHUNK, top_continuations


def reference(logits, log_probs, k, suppressed):
    logits = logits.astype(np.float64)
    normaliser = logits.max(-1) + np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))
    scores = logits + (log_probs - normaliser)[..., None]
    scores[..., list(suppressed)] = -np.inf
    scores = scores.reshape(len(scores), -1)
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order // logits.shape[-1], order % logits.shape[-1]


@pytest.mark.parametrize("vocab", [5, CHUNK, 1000, 1024, 4099])
@pytest.mark.parametrize("suppressed", [(), (0, 2, 3), (1, 4)])
@pytest.mark.parametrize("beams", [1, 4, 20])
def test_equals_full_sort(vocab, suppressed, beams):
    rng = np.random.default_rng(vocab + beams)
    logits = rng.normal(size=(9, beams, vocab)).astype(np.float32) * 4
    logits[:3] += np.linspace(6, 0, vocab, dtype=np.float32)  # the best ones crowd into few chunks
    logits[3, :, ::2] = -np.inf
    log_probs = -rng.exponential(size=(9, beams)).astype(np.float32)
    k = min(beams, (vocab - len(suppressed)) // 2)
    values, beam, token = reference(logits, log_probs, k, suppressed)
    top = top_continuations(jnp.asarray(logits), jnp.asarray(log_probs), k, suppressed)
    np.testing.assert_array_equal(top.beams, beam)
    np.testing.assert_array_equal(top.tokens, token)
    np.testing.assert_allclose(top.log_probs, values, atol=1e-5)


def test_equal_values_keep_the_order_of_beams_and_tokens():
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 3, size=(64, 4, 1000)).astype(np.float32)
    logits[:, :, :3] = [0, 1, 2]
    logits[:, 1:] = logits[:, :1]  # equal normalisers: ties across beams too
    _, beam, token = reference(logits, np.zeros((64, 4)), 4, (0,))
    top = top_continuations(jnp.asarray(logits), jnp.zeros((64, 4)), 4, (0,))
    np.testing.assert_array_equal(top.beams, beam)
    np.testing.assert_array_equal(top.tokens, token)


def test_never_above_the_log_probability_of_its_hypothesis():
    logits = jnp.full((1, 2, 300), -40.0).at[0, :, 17].set(88.0)
    top = top_continuations(logits, jnp.array([[-0.5, -jnp.inf]]), 2)
    assert top.log_probs[0, 0] == -0.5 and top.tokens[0, 0] == 17
    assert (top.log_probs <= -0.5).all() and not np.isnan(top.log_probs).any()


def test_dead_hypotheses_offer_nothing_and_no_id_leaves_the_vocabulary():
    logits = jnp.full((2, 3, 5), -jnp.inf).at[:, :, 2].set(0.0)
    top = top_continuations(logits, jnp.array([[0.0, -jnp.inf, -jnp.inf]] * 2), 3, (2,))
    assert np.isneginf(top.log_probs).all() and (top.tokens < 5).all() and (top.beams < 3).all()
