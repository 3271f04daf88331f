import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.config import OptimizerConfig
from flaxnmt.errors import ConfigError
from flaxnmt.training.schedules import make_schedule

STEPS = np.arange(1, 12001, 7)


def rates(schedule):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(0, 12000, 7)))


def test_noam_is_the_formula_of_the_paper():
    schedule = make_schedule(OptimizerConfig(schedule="noam", factor=3.0, warmup_steps=4000), 512, None)
    expected = 3.0 * 512**-0.5 * np.minimum(STEPS**-0.5, STEPS * 4000**-1.5)
    np.testing.assert_allclose(rates(schedule), expected, rtol=1e-5)
    assert float(schedule(3999)) == pytest.approx(3.0 * (512 * 4000) ** -0.5, rel=1e-6)


def test_inverse_sqrt_climbs_in_a_line_and_falls_with_the_root():
    config = OptimizerConfig(schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=2000)
    expected = 5e-3 * np.where(STEPS < 2000, STEPS / 2000, (2000 / STEPS) ** 0.5)
    np.testing.assert_allclose(rates(make_schedule(config, 128, None)), expected, rtol=1e-5)


def test_cosine_ends_at_its_final_fraction_and_stays():
    config = OptimizerConfig(schedule="cosine", learning_rate=2e-3, warmup_steps=500, final_fraction=0.1)
    share = np.clip((STEPS - 500) / (8000 - 500), 0, 1)
    falling = 2e-3 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * share)))
    expected = np.where(STEPS < 500, 2e-3 * STEPS / 500, falling)
    schedule = make_schedule(config, 128, 8000)
    np.testing.assert_allclose(rates(schedule), expected, rtol=1e-5, atol=1e-9)
    assert float(schedule(7999)) == pytest.approx(2e-4, rel=1e-5)


def test_linear_ends_at_its_final_fraction_and_stays():
    config = OptimizerConfig(schedule="linear", learning_rate=2e-3, warmup_steps=500, final_fraction=0.1)
    left = np.clip((8000 - STEPS) / (8000 - 500), 0, 1)
    expected = 2e-3 * np.minimum(STEPS / 500, 0.1 + 0.9 * left)
    np.testing.assert_allclose(rates(make_schedule(config, 128, 8000)), expected, rtol=1e-5, atol=1e-9)


def test_constant_has_no_warm_up():
    schedule = make_schedule(OptimizerConfig(schedule="constant", learning_rate=0.25), 128, None)
    assert float(schedule(0)) == float(schedule(10**6)) == 0.25


@pytest.mark.parametrize("name", ["noam", "inverse_sqrt", "cosine", "linear", "constant"])
def test_first_update_has_a_positive_rate(name):
    assert make_schedule(OptimizerConfig(schedule=name), 128, 10**5)(0) > 0


@pytest.mark.parametrize("max_steps", [None, 100, 4000])
@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_what_falls_to_an_end_needs_one_after_the_warm_up(name, max_steps):
    with pytest.raises(ConfigError, match="--max-steps") as error:
        make_schedule(OptimizerConfig(schedule=name, warmup_steps=4000), 128, max_steps)
    assert "\n" not in str(error.value)


def test_warm_up_is_at_least_one_step():
    with pytest.raises(ConfigError, match="warmup_steps is 0"):
        make_schedule(OptimizerConfig(warmup_steps=0), 128, None)
