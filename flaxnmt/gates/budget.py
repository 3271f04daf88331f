"""Budgets: which computation a sequence may use, and the loss that keeps to it (Bapna et al. 2020, section 3)."""

import itertools
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from flaxnmt.errors import ConfigError
from flaxnmt.typing import Array, Float, Int, PRNGKeyArray

Budget = tuple[float, ...]
"""A share of the full computation for each part of a model, such as (encoder, decoder)."""

Normaliser = Literal["budget", "total", "squared"]


def budget_tuples(levels: Sequence[Sequence[float]]) -> tuple[Budget, ...]:
    """All budgets, one for each combination of the levels of the parts; the place of each is its control symbol.

    Raises:
      ConfigError: for a level outside of (0, 1], or one that stands twice.
    """
    for part in levels:
        if len(set(part)) != len(part) or not all(0 < level <= 1 for level in part):
            raise ConfigError(f"budgets {list(part)}: give different numbers above 0 and up to 1")
    return tuple(itertools.product(*levels))


def full_budget(budgets: Sequence[Budget]) -> int:
    """The place of the largest budget."""
    return max(range(len(budgets)), key=lambda place: budgets[place])


def find_budget(budgets: Sequence[Budget], wanted: float | Sequence[float] | None) -> int:
    """The place of a budget; one number stands for all parts that can have less than all, None for the largest budget.

    Raises:
      ConfigError: if the model was not trained for it, with those it was trained for.
    """
    if not budgets:
        raise ConfigError("this model has no budgets: leave --budget out, or train with --model.budget")
    if wanted is None:
        return full_budget(budgets)
    parts = len(budgets[0])
    if isinstance(wanted, (int, float)):
        whole = [all(budget[part] == 1 for budget in budgets) for part in range(parts)]
        numbers = tuple(1.0 if always and not all(whole) else wanted for always in whole)
    else:
        numbers = tuple(wanted)
    for place, budget in enumerate(budgets):
        if len(numbers) == parts and all(abs(a - b) < 1e-6 for a, b in zip(numbers, budget)):
            return place
    known = " ".join(",".join(f"{level:g}" for level in budget) for budget in budgets)
    text = ",".join(f"{number:g}" for number in numbers)
    order = " (encoder,decoder)" * (parts > 1)
    raise ConfigError(f"the model was not trained for the budget {text}; its budgets{order} are {known}")


def parse_budget(text: str) -> float | tuple[float, ...]:
    """`0.5`, or `1.0,0.25` for encoder and decoder, as numbers.

    Raises:
      ConfigError: for anything else.
    """
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"budget {text!r}: give a number, or two with a comma for encoder and decoder"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def draw_budgets(
    key: PRNGKeyArray,
    rows: int,
    levels: Sequence[Sequence[float]],
    *,
    full_share: float = 0.5,
    joint: bool = False,
) -> Int[Array, " B"]:
    """A budget at random for each sequence, as places in `budget_tuples`.

    For each part a `full_share` of the draws are its largest level, the others uniform over the rest. A half is the paper's
    "half of the tasks at full budget", which makes a quarter of the pairs full on both sides. `joint`: that share of the
    sequences has the largest level on all parts at once, and the others are drawn as before.
    """
    keys = jax.random.split(key, len(levels) + 1)
    places = jnp.zeros(rows, jnp.int32)
    full = jnp.zeros(rows, jnp.int32)
    for part, part_key in zip(levels, keys[1:], strict=True):
        order = sorted(range(len(part)), key=lambda level: -part[level])
        below = (1 - full_share) / max(len(part) - 1, 1)
        chances = jnp.full(len(part), below).at[order[0]].set(full_share)
        drawn = jax.random.choice(part_key, len(part), (rows,), p=chances).astype(jnp.int32)
        places, full = places * len(part) + drawn, full * len(part) + order[0]
    if not joint:
        return places
    return jnp.where(jax.random.bernoulli(keys[0], full_share, (rows,)), full, places)


def budget_loss(
    used: Float[Array, " B"],
    full: Float[Array, " B"],
    fraction: Float[Array, " P"],
    assigned: Int[Array, " B"],
    *,
    normaliser: Normaliser = "budget",
    two_sided: bool = True,
    per_sequence: bool = False,
) -> Float[Array, ""]:
    """How far the computation of a batch is from its budgets (eq. 5-8), the mean over the P budgets.

    For the sequences of budget k, with sums over them: |used - p_k full| / (p_k full). With normaliser `total` it is
    |used / full - p_k|, p_k times as much, and with `squared`, which is ours, 1 / p_k times as much. Of the whole,
    p_k = 1, more is not too much: gates that are all open use it up, and what control networks cost beside that is not
    to be saved by closing some. A mean in place of the sum of eq. 8, so that the weight of the loss does not depend on
    how many budgets there are; a budget without a sequence contributes 0 to it, and still counts: where a batch has
    fewer sequences than there are budgets, the loss weighs less.

    Args:
      used: FLOPs that each sequence uses, in expectation.
      full: FLOPs that it could use; 0 for a row without tokens.
      fraction: p_k.
      assigned: the budget of each sequence.
      normaliser: what the difference is divided by.
      two_sided: also less than the budget costs; else only more.
      per_sequence: the constraint holds for each sequence by itself, and the mean over those of a budget counts.
    """
    budgets = fraction.shape[0]
    if per_sequence:
        distance = _distance(used, full, fraction[assigned], normaliser, two_sided)
        counted = (full > 0).astype(distance.dtype)
        sums, counts = (
            jax.ops.segment_sum(values, assigned, num_segments=budgets) for values in (distance, counted)
        )
        return (sums / jnp.maximum(counts, 1)).mean()
    used, full = (jax.ops.segment_sum(values, assigned, num_segments=budgets) for values in (used, full))
    return _distance(used, full, fraction, normaliser, two_sided).mean()


def _distance(used, full, fraction, normaliser: Normaliser, two_sided: bool):
    plan = fraction * full
    unit = {"budget": plan, "total": full, "squared": fraction * plan}[normaliser]
    # Where nothing could be used, no division takes part, in the gradient neither.
    over = jnp.where(full > 0, used - plan, 0.0) / jnp.where(full > 0, unit, 1.0)
    over = jnp.where((fraction < 1) | (over < 0), over, 0.0)
    return jnp.abs(over) if two_sided else jax.nn.relu(over)
