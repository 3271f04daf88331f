"""The best continuations equal those of a full sort."""

from functools import partial

import jax
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


@pytest.mark.parametrize(
    ("vocab", "beams", "suppressed"),
    [
        (5, 4, (0, 2)),
        (CHUNK, 4, ()),
        (1000, 1, (0, 2, 3)),
        (1000, 20, (1, 4)),
        (1024, 4, (0, 2, 3)),
        (4099, 1, ()),
        (4099, 4, (0, 70, 4098)),
    ],
)
def test_equals_full_sort(vocab, suppressed, beams):
    rng = np.random.default_rng(vocab + beams)
    logits = rng.normal(size=(9, beams, vocab)).astype(np.float32) * 4
    logits[:3] += np.linspace(6, 0, vocab, dtype=np.float32)  # the best ones crowd into few chunks
    logits[3, :, ::2] = -np.inf
    log_probs = -rng.exponential(size=(9, beams)).astype(np.float32)
    k = min(beams, (vocab - len(suppressed)) // 2)
    values, beam, token = reference(logits, log_probs, k, suppressed)
    top = jax.jit(partial(top_continuations, k=k, suppressed=suppressed))(logits, log_probs)
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
    rng = np.random.default_rng(0)
    logits = jnp.full((500, 2, 70), -40.0).at[:, :, 17].set(rng.uniform(50, 90, (500, 2)))
    log_probs = -jnp.asarray(rng.exponential(size=(500, 1)), jnp.float32)
    top = top_continuations(logits, jnp.concatenate([log_probs, jnp.full((500, 1), -jnp.inf)], 1), 2)
    # The stop rule of beam search needs this of the rounded numbers, not only of the real ones.
    np.testing.assert_array_equal(top.log_probs[:, 0], log_probs[:, 0])
    assert (top.tokens[:, 0] == 17).all() and (top.log_probs[:, 1] < log_probs[:, 0]).all()


def test_a_hypothesis_without_a_possible_token_dies():
    logits = jnp.zeros((1, 2, 5)).at[0, 0].set(-jnp.inf)
    top = top_continuations(logits, jnp.array([[-0.1, -3.0]]), 2)
    np.testing.assert_allclose(top.log_probs, [[-3 - np.log(5)] * 2], rtol=1e-6)
    assert (top.beams == 1).all()


def test_dead_hypotheses_offer_nothing_and_no_id_leaves_the_vocabulary():
    logits = jnp.full((2, 3, 5), -jnp.inf).at[:, :, 2].set(0.0)
    top = top_continuations(logits, jnp.array([[0.0, -jnp.inf, -jnp.inf]] * 2), 3, (2,))
    assert np.isneginf(top.log_probs).all() and (top.tokens < 5).all() and (top.beams < 3).all()
