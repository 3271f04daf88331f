"""Named configurations: each module holds one `config` whose docstring says paper, hardware, time and score."""

import importlib
import pkgutil
from pathlib import Path

from flaxnmt.config import Config
from flaxnmt.config_io import nearest
from flaxnmt.errors import ConfigError


def names() -> list[str]:
    """All configurations."""
    return sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))


def load(name: str) -> Config:
    """The configuration of this name.

    Raises:
      ConfigError: if there is none, with the nearest name.
    """
    if name not in names():
        raise ConfigError(
            f"no configuration {name!r}{nearest(name, names())}; there are {', '.join(names())}"
        )
    return importlib.import_module(f"experiments.configs.{name}").config


def describe(name: str) -> str:
    """What the module of a configuration says of it."""
    return importlib.import_module(f"experiments.configs.{name}").__doc__
