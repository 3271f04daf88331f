"""Budgets: the worked values of the loss, padding, empty budgets, draws, and names that a user may ask for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import (
    budget_loss,
    budget_tuples,
    draw_budgets,
    find_budget,
    full_budget,
    parse_budget,
)
from flaxnmt.gates.control import hard_gate, noise_scale, soft_gate

LEVELS = ((1.0, 0.75, 0.5, 0.25), (1.0, 0.5))


@pytest.mark.parametrize(
    "normaliser, fraction, expected",
    [("budget", 0.25, 1.0), ("budget", 0.5, 0.0), ("budget", 1.0, 0.5),
     ("total", 0.25, 0.25), ("total", 0.5, 0.0), ("total", 1.0, 0.5),
     ("squared", 0.25, 4.0), ("squared", 0.5, 0.0), ("squared", 1.0, 0.5)],
)  # fmt: skip
def test_the_loss_of_half_the_computation(normaliser, fraction, expected):
    used, full = jnp.asarray([30.0, 20.0, 0.0]), jnp.asarray([40.0, 60.0, 0.0])
    for per_sequence in (False, True):
        if per_sequence:
            used = full / 2
        loss = budget_loss(
            used,
            full,
            jnp.asarray([fraction]),
            jnp.zeros(3, int),
            normaliser=normaliser,
            per_sequence=per_sequence,
        )
        np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_a_one_sided_loss_is_that_of_too_much_alone():
    used, full, half = jnp.asarray([30.0, 10.0]), jnp.full(2, 40.0), jnp.asarray([0.5])
    loss = partial(budget_loss, fraction=half, assigned=jnp.zeros(2, int), two_sided=False)
    # 40 of 80 are what is allowed; by themselves one is half above and one half below it.
    np.testing.assert_allclose(loss(used, full), 0)
    np.testing.assert_allclose(loss(used, full, per_sequence=True), 0.25)
    np.testing.assert_allclose(loss(used + 10, full), 0.5)
    np.testing.assert_allclose(loss(used - 10, full), 0)
    gradient = jax.grad(lambda used: loss(used, full, per_sequence=True))(used)
    assert gradient[0] > 0 and gradient[1] == 0


def test_budgets_are_compared_with_their_own_sequences_and_the_mean_counts():
    used, full = jnp.asarray([10.0, 20.0, 30.0]), jnp.asarray([40.0, 40.0, 40.0])
    fractions, assigned = jnp.asarray([1.0, 0.5, 0.25]), jnp.asarray([1, 1, 0])
    # (30 of 80 with 40 allowed, 30 of 40 with 40 allowed, nobody)
    np.testing.assert_allclose(budget_loss(used, full, fractions, assigned), (0.25 + 0.25 + 0) / 3, rtol=1e-6)
    one_sided = budget_loss(used, full, fractions, assigned, two_sided=False)
    np.testing.assert_allclose(one_sided, 0)
    alone = budget_loss(used, full, fractions, assigned, per_sequence=True)
    np.testing.assert_allclose(alone, ((0.5 + 0) / 2 + 0.25) / 3, rtol=1e-6)


@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize("used, expected", [(0.5, 0.5), (1.0, 0.0), (1.03, 0.0)])
def test_nothing_is_too_much_for_the_whole(used, expected, per_sequence):
    def loss(used):
        whole = jnp.ones(1), jnp.zeros(2, jnp.int32)
        return budget_loss(used, jnp.ones(2), *whole, per_sequence=per_sequence)

    given = jnp.full(2, used)
    assert float(loss(given)) == pytest.approx(expected)
    # Nothing closes a gate.
    assert (jax.grad(loss)(given) <= 0).all()


@pytest.mark.parametrize("per_sequence", [False, True])
def test_rows_without_tokens_and_budgets_without_rows_have_finite_gradients(per_sequence):
    fractions = jnp.asarray([0.5, 1.0])

    def loss(used):
        full = jnp.asarray([4.0, 0.0])
        return budget_loss(used, full, fractions, jnp.zeros(2, int), per_sequence=per_sequence)

    gradient = jax.grad(loss)(jnp.asarray([3.0, 0.0]))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[0], 0.25)


def test_half_of_the_draws_of_each_side_are_full():
    budgets = np.asarray(budget_tuples(LEVELS))
    draw = jax.jit(draw_budgets, static_argnames=("rows", "levels", "full_share", "joint"))
    drawn = budgets[np.asarray(draw(jax.random.key(0), 8000, LEVELS))]
    for side, levels in enumerate(LEVELS):
        shares = [(drawn[:, side] == level).mean() for level in levels]
        np.testing.assert_allclose(shares, [0.5] + [0.5 / (len(levels) - 1)] * (len(levels) - 1), atol=0.03)
    assert abs((drawn == 1).all(1).mean() - 0.25) < 0.03
    joint = budgets[np.asarray(draw(jax.random.key(0), 8000, LEVELS, joint=True))]
    assert abs((joint == 1).all(1).mean() - (0.5 + 0.125)) < 0.03
    np.testing.assert_array_equal(draw(jax.random.key(0), 5, ((1.0,), (1.0,))), 0)
    even = budgets[np.asarray(draw(jax.random.key(0), 8000, LEVELS, full_share=0.25))]
    np.testing.assert_allclose([(even[:, 0] == level).mean() for level in LEVELS[0]], 0.25, atol=0.03)
    assert abs((even[:, 1] == 1).mean() - 0.25) < 0.03
    joint = budgets[np.asarray(draw(jax.random.key(0), 8000, LEVELS, full_share=0.25, joint=True))]
    assert abs((joint == 1).all(1).mean() - (0.25 + 0.75 / 16)) < 0.03


def test_noise_grows_in_a_line_and_stays():
    scales = [
        float(noise_scale(jnp.asarray(step), 0.0, 5.0, 300_000)) for step in (0, 150_000, 300_000, 10**6)
    ]
    np.testing.assert_allclose(scales, [0, 2.5, 5, 5])


def test_a_logit_of_zero_is_open():
    np.testing.assert_array_equal(hard_gate(jnp.asarray([-1e-7, 0.0, 1.0])), [False, True, True])
    np.testing.assert_allclose(
        soft_gate(jnp.zeros(2), jnp.asarray([0.0, 1.0]), 2.0), [0.5, 1 / (1 + np.exp(-2))]
    )


def test_budgets_by_their_numbers():
    budgets = budget_tuples(LEVELS)
    assert len(budgets) == 8 and budgets[full_budget(budgets)] == (1.0, 1.0)
    assert budgets[find_budget(budgets, 0.5)] == (0.5, 0.5)
    assert find_budget(budgets, None) == full_budget(budgets)
    one_side = budget_tuples(((1.0,), (1.0, 0.5)))
    assert [find_budget(one_side, wanted) for wanted in (1, 0.5, (1, 0.5))] == [0, 1, 1]
    with pytest.raises(ConfigError, match=r"not trained for the budget 1,0.3; .* 1,1 1,0.5"):
        find_budget(one_side, 0.3)
    with pytest.raises(ConfigError, match=r"not trained for the budget 0.5,0.5; .* 1,1$"):
        find_budget(budget_tuples(((1.0,), (1.0,))), 0.5)
    assert find_budget(((0.5, 0.75), (0.75, 0.75)), None) == 1
    assert budgets[find_budget(budgets, (1, 0.5))] == (1.0, 0.5)
    assert (parse_budget("0.5"), parse_budget("1,0.25")) == (0.5, (1.0, 0.25))
    with pytest.raises(ConfigError, match=r"not trained for the budget 0.3,0.3; .* 1,1 1,0.5 0.75,1"):
        find_budget(budgets, 0.3)
    with pytest.raises(ConfigError, match="no budgets: leave --budget out"):
        find_budget((), 0.5)
    with pytest.raises(ConfigError, match="'half': give a number"):
        parse_budget("half")
    for wrong in ((0.0,), (1.5,), (0.5, 0.5)):
        with pytest.raises(ConfigError, match="give different numbers above 0"):
            budget_tuples((wrong,))
