from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.training.averaging import BadSteps, ema_update, keep_if_finite


def test_ema_is_the_closed_form():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 3))
    average, expected = {"w": jnp.asarray(values[0], jnp.float32)}, values[0]
    update = jax.jit(partial(ema_update, decay=0.7))
    for step, value in enumerate(values[1:], 1):
        average = update(average, {"w": jnp.asarray(value, jnp.float32)}, step=step)
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    np.testing.assert_allclose(average["w"], expected, rtol=1e-5)


def test_ema_of_constant_parameters_forgets_the_start():
    average = jnp.zeros(())
    for step in range(1, 100):
        average = ema_update(average, jnp.ones(()), 0.9999, step)
    assert average > 0.99


@pytest.mark.parametrize("bad_value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_keeps_the_old_state(bad_value):
    old, new = {"w": jnp.zeros(2), "step": jnp.int32(3)}, {"w": jnp.full(2, jnp.nan), "step": jnp.int32(4)}
    guard = jax.jit(keep_if_finite)
    state, bad = guard((jnp.float32(1.0), jnp.float32(bad_value)), new, old, BadSteps.zero())
    np.testing.assert_array_equal(state["w"], old["w"])
    assert int(state["step"]) == 3 and (int(bad.total), int(bad.in_a_row)) == (1, 1)


def test_counters_follow_the_sequence():
    bad, seen = BadSteps.zero(), []
    state = jnp.int32(0)
    for loss in (1.0, np.nan, np.inf, 2.0, np.nan, 1.0):
        state, bad = keep_if_finite((jnp.float32(loss),), state + 1, state, bad)
        seen.append((int(state), int(bad.total), int(bad.in_a_row)))
    assert seen == [(1, 0, 0), (1, 1, 1), (1, 2, 2), (2, 2, 0), (2, 3, 1), (3, 3, 0)]
