"""Configurations survive JSON, tell how they differ, and name what they do not know."""

import dataclasses
import json

import pytest

from experiments import configs
from flaxnmt.config import Config
from flaxnmt.config_io import differences, flatten, from_dict, nearest, to_dict
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import PRESETS

CONFIG = Config(model=PRESETS["tiny"])


@pytest.mark.parametrize("name", configs.names())
def test_golden_resolved_configs(name, golden):
    golden(f"config_{name}.txt", json.dumps(to_dict(configs.load(name)), indent=2) + "\n")


@pytest.mark.parametrize("name", configs.names())
def test_a_config_survives_json(name):
    config = configs.load(name)
    again = from_dict(Config, json.loads(json.dumps(to_dict(config))))
    assert again == config and differences(again, config) == []


@pytest.mark.parametrize("name", configs.names())
def test_every_config_says_command_and_hardware(name):
    text = configs.describe(name)
    assert f"python -m experiments.train {name} " in text and "Hardware" in text


def changed(**paths):
    config = to_dict(CONFIG)
    for path, value in paths.items():
        *parts, last = path.split("__")
        part = config
        for name in parts:
            part = part[name]
        part[last] = value
    return config


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("model__d_modle", 3,
         "config.model.d_modle: no such field in Seq2SeqConfig, did you mean 'd_model'?"),
        ("training__qqqqqq", 3, "config.training.qqqqqq: no such field in TrainingConfig"),
        ("model__encoder__attention__class", "MultiHed",
         "config.model.encoder.attention: unknown kind 'MultiHed': expected one of ['MultiHead'], "
         "did you mean 'MultiHead'?"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named_with_the_nearest_name(path, value, message):
    with pytest.raises(ConfigError) as error:
        from_dict(Config, changed(**{path: value}))
    assert str(error.value) == message


def test_a_missing_field_has_its_default():
    values = to_dict(CONFIG)
    del values["training"]["patience"], values["decoding"]
    assert from_dict(Config, values) == CONFIG


def test_parts_may_be_one_of_several_kinds():
    @dataclasses.dataclass(frozen=True)
    class First:
        size: int = 1

    @dataclasses.dataclass(frozen=True)
    class Second:
        size: int = 2

    @dataclasses.dataclass(frozen=True)
    class Whole:
        part: First | Second | None = None

    for whole in (Whole(), Whole(First(5)), Whole(Second(6))):
        assert from_dict(Whole, to_dict(whole)) == whole
    with pytest.raises(
        ConfigError, match=r"config\.part: unknown kind 'Third': expected one of \['First', 'Second'\]"
    ):
        from_dict(Whole, {"class": "Whole", "part": {"class": "Third"}})


def test_differences_name_fields_with_both_values():
    other = CONFIG.replace(
        model=dataclasses.replace(CONFIG.model, d_model=64, scan=True),
        data=dataclasses.replace(CONFIG.data, train=("a", "b")),
    )
    assert differences(CONFIG, other) == [
        "model.d_model: 128 -> 64",
        "model.scan: False -> True",
        "data.train: [] -> ['a', 'b']",
    ]


def test_flat_names_are_those_of_the_command_line():
    flat = flatten(CONFIG)
    assert flat["model.encoder.attention.heads"] == 4 and flat["data.tokenizer.kind"] == "bpe"
    assert len(flat) == len(set(flat))


def test_nearest_is_silent_where_nothing_is_near():
    assert nearest("zzz", ["batch", "seed"]) == ""
    assert nearest("sed", ["batch", "seed"]) == ", did you mean 'seed'?"
