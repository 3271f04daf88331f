"""Parameters that training leaves as they are, by name."""

from collections.abc import Collection
from fnmatch import fnmatchcase

import jax
import optax

from flaxnmt.config_io import nearest
from flaxnmt.errors import ConfigError
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.step import Objective
from flaxnmt.typing import PyTree

INITIALISED = "initialised"
"""Stands for every parameter that comes from another run."""


def frozen_names(
    names: Collection[str], freeze: Collection[str], initialised: Collection[str] = ()
) -> list[str]:
    """The names, among all of a model's, of parameters that are frozen.

    Args:
      names: paths such as `encoder/stack/layers_0/attention/sublayer/query`.
      freeze: beginnings of paths, in whole parts, such as `encoder/stack/layers_0`; each part may be a pattern with
        `*`, which also stands for several parts: `*/attention`. `INITIALISED` stands for all of `initialised`.
      initialised: names that come from another run.

    Raises:
      ConfigError: if one of them stands for no parameter, or all together for every one.
    """
    found: set[str] = set()
    for pattern in freeze:
        begins = f"{pattern.rstrip('/')}/*"
        given = pattern == INITIALISED
        some = initialised if given else [name for name in names if fnmatchcase(f"{name}/", begins)]
        if given and not some:
            raise ConfigError(
                f"--training.freeze {INITIALISED}: no parameter comes from another run; give --init-from"
            )
        if not some:
            known = dict.fromkeys(part for name in names for part in _beginnings(name))
            raise ConfigError(
                f"--training.freeze {pattern} is the beginning of no parameter{nearest(pattern, known)}"
            )
        found.update(some)
    if len(found) == len(names):
        raise ConfigError(f"--training.freeze {' '.join(freeze)} leaves no parameter to train: freeze fewer")
    return [name for name in names if name in found]


def frozen_mask(params: PyTree, names: Collection[str]) -> PyTree:
    """True for the parameters of these names, in a tree like theirs."""
    return jax.tree.unflatten(jax.tree.structure(params), [name in names for name in named_leaves(params)])


def held(objective: Objective, mask: PyTree) -> Objective:
    """The objective with no gradient for what is frozen, so that nobody computes one, nor counts it in a norm."""

    def hold(params, batch, key, update=0):
        stopped = jax.tree.map(lambda frozen, x: jax.lax.stop_gradient(x) if frozen else x, mask, params)
        return objective(stopped, batch, key, update)

    return hold


def freeze(optimizer: optax.GradientTransformation, mask: PyTree) -> optax.GradientTransformation:
    """The optimizer for what is not frozen alone: the rest has no update, no decay and no moments."""
    return optax.selective_transform(optimizer, freeze_mask=mask)


def _beginnings(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
