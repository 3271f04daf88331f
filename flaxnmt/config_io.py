"""Configurations as JSON and back, and how two of them differ."""

import dataclasses
import difflib
import types
import typing
from typing import Any

from flaxnmt.errors import ConfigError

KIND = "class"


def to_dict(config: Any) -> Any:
    """Plain dictionaries, with the class of each part under `class`."""
    if dataclasses.is_dataclass(config):
        fields = {field.name: to_dict(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {KIND: type(config).__name__, **fields}
    return [to_dict(item) for item in config] if isinstance(config, tuple) else config


def from_dict(declared: Any, values: Any, where: str = "config") -> Any:
    """The object of the declared type that `to_dict` wrote.

    Raises:
      ConfigError: for a field or kind that this version does not know, with the nearest name.
    """
    if isinstance(values, list):
        return tuple(from_dict(Any, item, where) for item in values)
    if not isinstance(values, dict):
        return values
    union = isinstance(declared, types.UnionType) or typing.get_origin(declared) is typing.Union
    choices = [
        kind
        for kind in (typing.get_args(declared) if union else (declared,))
        if dataclasses.is_dataclass(kind)
    ]
    named = {kind.__name__: kind for kind in choices}
    kind = values.get(KIND)
    if kind not in named:
        raise ConfigError(
            f"{where}: unknown kind {kind!r}: expected one of {sorted(named)}{nearest(str(kind), named)}"
        )
    hints = typing.get_type_hints(named[kind])
    unknown = set(values) - set(hints) - {KIND}
    if unknown:
        name = min(unknown)
        raise ConfigError(f"{where}.{name}: no such field in {kind}{nearest(name, hints)}")
    fields = {
        name: from_dict(hints[name], value, f"{where}.{name}")
        for name, value in values.items()
        if name != KIND
    }
    return named[kind](**fields)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{"model.d_model": 512, ...}, in the order of the fields."""
    flat = {}
    for name, value in config.items() if isinstance(config, dict) else to_dict(config).items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat


def told(config: Any, prefix: str = "") -> dict[str, Any]:
    """{"model.class": "Seq2SeqConfig", "model.d_model": 128, ...}: the kind of each part, and all that is not its default.

    The same configuration is told in the same way after a version has got new options.
    """
    found = {f"{prefix}{KIND}": type(config).__name__}
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), field.default
        if dataclasses.is_dataclass(value):
            found |= told(value, f"{prefix}{field.name}.")
        elif value != default:
            found[f"{prefix}{field.name}"] = value
    return found


def differences(old: Any, new: Any) -> list[str]:
    """One line for each field with another value, `name: old -> new`."""
    before, after = flatten(old), flatten(new)
    names = [name for name in (before | after) if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name)} -> {after.get(name)}" for name in names]


def nearest(name: str, known) -> str:
    """ ", did you mean X?" for the closest of the known names, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""
