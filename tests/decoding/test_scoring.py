"""Log-probabilities against float64, with masks, impossible tokens and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.decoding.hypotheses import length_penalties
from flaxnmt.decoding.scoring import token_log_probs


def reference(logits, targets):
    logits = np.asarray(logits, np.float64)
    top = logits.max(-1, keepdims=True)
    normalised = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return np.take_along_axis(normalised, targets[..., None], -1)[..., 0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-5)])
def test_equals_float64(dtype, tolerance):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(3, 5, 50)) * 20, dtype)
    targets = rng.integers(0, 50, (3, 5))
    mask = rng.random((3, 5)) < 0.7
    found = token_log_probs(logits, jnp.asarray(targets), jnp.asarray(mask))
    assert found.dtype == jnp.float32
    expected = np.where(mask, reference(logits.astype(jnp.float32), targets), 0)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_the_penalty_counts_tokens():
    sums, counts = jnp.array([-3.0, -2 * np.log(8)]), jnp.array([1, 2])
    np.testing.assert_allclose(sums / length_penalties(counts, 1.0), [-3, -2 * np.log(8) * 6 / 7], rtol=1e-6)


def test_impossible_tokens_and_masked_positions_give_no_nan():
    logits = jnp.array([[[0.0, -jnp.inf, 1.0], [-jnp.inf] * 3, [jnp.nan] * 3]])
    targets = jnp.array([[1, 0, 2]])
    mask = jnp.array([[True, False, False]])
    assert token_log_probs(logits, targets, mask).tolist() == [[-np.inf, 0, 0]]
    grads = jax.grad(lambda x: token_log_probs(x, targets * 0, mask).sum())(logits)
    np.testing.assert_allclose(grads[0, 0], [1 - 1 / (1 + np.e), 0, -np.e / (1 + np.e)], rtol=1e-5)
    assert not grads[0, 1:].any()


def test_vmap_over_rows_equals_the_batched_call():
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(size=(4, 6, 9)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 9, (4, 6)))
    mask = targets > 2
    np.testing.assert_allclose(
        jax.vmap(token_log_probs)(logits, targets, mask), token_log_probs(logits, targets, mask), rtol=1e-6
    )
