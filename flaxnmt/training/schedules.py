"""Learning rate as a function of the number of finished updates.

The update that follows `count` finished ones is step `count + 1`, so that the first update already has a
positive rate, and the update at step `warmup_steps` has the peak.
"""

import jax.numpy as jnp
import optax

from flaxnmt.config import OptimizerConfig
from flaxnmt.errors import ConfigError


def noam(factor: float, warmup_steps: int, d_model: int) -> optax.Schedule:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (Vaswani et al. 2017, eq. 3).

    Peaks at step `warmup_steps` with factor * (d_model * warmup_steps)^-0.5.
    """
    return inverse_sqrt(factor * (d_model * warmup_steps) ** -0.5, warmup_steps)


def inverse_sqrt(peak: float, warmup_steps: int) -> optax.Schedule:
    """Linear from 0 to `peak` at step `warmup_steps`, then peak * (warmup_steps / step)^0.5."""

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return peak * jnp.minimum(step / warmup_steps, jnp.sqrt(warmup_steps / step))

    return schedule


def cosine(peak: float, warmup_steps: int, max_steps: int, final_fraction: float) -> optax.Schedule:
    """Linear from 0 to `peak` at step `warmup_steps`, half a cosine to its fraction at `max_steps`."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, max_steps, final_fraction * peak)
    return lambda count: schedule(count + 1)


def linear(peak: float, warmup_steps: int, max_steps: int, final_fraction: float) -> optax.Schedule:
    """Linear from 0 to `peak` at step `warmup_steps`, and linear to its fraction at `max_steps` (Devlin et al. 2019)."""

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        left = jnp.clip((max_steps - step) / (max_steps - warmup_steps), 0, 1)
        return peak * jnp.minimum(step / warmup_steps, final_fraction + (1 - final_fraction) * left)

    return schedule


def make_schedule(config: OptimizerConfig, d_model: int, max_steps: int | None) -> optax.Schedule:
    """The schedule that the configuration names; constant has no warm-up.

    Raises:
      ConfigError: for a warm-up of less than one step, or for one that falls without an end after the warm-up.
    """
    if config.warmup_steps < 1:
        raise ConfigError(
            f"optimizer.warmup_steps is {config.warmup_steps}: give at least 1, which means no warm-up"
        )
    match config.schedule:
        case "noam":
            return noam(config.factor, config.warmup_steps, d_model)
        case "inverse_sqrt":
            return inverse_sqrt(config.learning_rate, config.warmup_steps)
        case "constant":
            return optax.constant_schedule(config.learning_rate)
    if max_steps is None or max_steps <= config.warmup_steps:
        raise ConfigError(
            f"schedule {config.schedule} with {config.warmup_steps} warm-up steps and --max-steps {max_steps}: "
            "give a --max-steps that is larger than the warm-up"
        )
    falling = {"cosine": cosine, "linear": linear}[config.schedule]
    return falling(config.learning_rate, config.warmup_steps, max_steps, config.final_fraction)
