"""Functions of some rows: the same values wherever they are wanted, whatever the pattern."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.layers.active import if_any, on_active

W = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)


def function(x):
    return {"sum": x.sum(-1), "product": x @ W}


compiled = jax.jit(lambda x, active: on_active(function, x, active))


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 17), (3, 2, 11)])
def test_any_pattern_of_rows_gives_their_values_and_zeros_elsewhere(shape):
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(*shape, 3)), jnp.float32)
    whole = function(x)
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.95, 1.0):
        active = rng.random(shape) < share
        y = compiled(x, active)
        for name in whole:
            expected = np.where(
                active.reshape(*shape, *(1,) * (whole[name].ndim - len(shape))), whole[name], 0
            )
            np.testing.assert_allclose(y[name], expected, rtol=1e-5, atol=1e-6)
    assert compiled._cache_size() <= 4, "the pattern is data: no shape compiles twice"


def test_without_active_rows_the_function_is_not_run():
    ran = []

    def noted(x):
        jax.debug.callback(lambda: ran.append(1))
        return 2 * x

    x = jnp.ones((4, 3))
    twice = jax.jit(lambda x, active: on_active(noted, x, active))
    jax.block_until_ready(twice(x, jnp.zeros(4, bool)))
    jax.effects_barrier()
    assert not ran
    np.testing.assert_array_equal(
        twice(x, jnp.asarray([True, False, False, False])), [[2] * 3, [0] * 3, [0] * 3, [0] * 3]
    )
    jax.effects_barrier()
    assert len(ran) == 1


def test_if_any_is_the_function_or_zeros():
    branch = jax.jit(lambda active, x: if_any(active, lambda x: (x + 1, x.astype(int)), x))
    x = jnp.ones((2, 2))
    for active, expected in (([False, True], (2, 1)), ([False, False], (0, 0))):
        for y, value in zip(branch(jnp.asarray(active), x), expected):
            np.testing.assert_array_equal(y, value)
    assert if_any(None, lambda x: x, 3) == 3


def test_the_work_of_few_rows_is_that_of_few():
    """Of 256 rows sixteen are computed for a single active row: counted in the compiled branches that run."""
    seen = []

    def sized(x):
        jax.debug.callback(lambda: seen.append(x.shape[1]))
        return x

    step = jax.jit(lambda x, active: on_active(sized, x, active))
    for rows, unit in ((256, 16), (256 + 2, 17), (32, 8)):
        for count in (0, 1, unit, unit + 1, rows // 2, rows - 1, rows):
            seen.clear()
            jax.block_until_ready(step(jnp.ones((rows, 2)), jnp.arange(rows) < count))
            jax.effects_barrier()
            assert seen == ([min(-(-count // unit) * unit, rows)] if count else []), (rows, count, seen)
