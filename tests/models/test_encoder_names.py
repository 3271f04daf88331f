"""Names of encoders: what there is not, and what does not fit together, is refused before anything is built."""

import dataclasses
import re

import pytest
from small_models import CONFIG

from flaxnmt.checks.model import check_model
from flaxnmt.config import Config
from flaxnmt.errors import ConfigError
from flaxnmt.models import build
from flaxnmt.models.config import DocumentConfig, ExpansionConfig


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"branches": ("attention", "gru:6")}, "no encoder is called 'gru'; there are attention, lstm"),
        ({"branches": ("conv:6",)}, "no encoder is called 'conv', did you mean 'convs2s'?; there are"),
        ({"branches": ("lstm:x",)}, "lstm:x: 'x' is no number of layers"),
        ({"branches": ("lstm:0",)}, "lstm:0: '0' is no number of layers"),
        (
            {"branches": ("convs2s:2",), "convolution": 4},
            "--model.encoder.convolution 4: the kernel has a row",
        ),
        (
            {"branches": ("convs2s:2",), "convolution_skip_scale": 0.0},
            "--model.encoder.convolution-skip-scale 0: give more than 0",
        ),
        (
            {"branches": ("static_expansion:2",), "expansion": ExpansionConfig(vectors=())},
            "at least 1 vector",
        ),
        (
            {"branches": ("static_expansion:2", "static_expansion:1"), "positions": "rotary"},
            "--model.positions rotary lies in attention, of which the encoder has none",
        ),
        (
            {"branches": ("attention:1", "convs2s:1"), "final_norm": "sum", "norm": "post"},
            "--model.encoder.final-norm sum with --model.norm post",
        ),
    ],
)
def test_encoders_that_there_are_not_are_refused(changes, said):
    model = {name: changes[name] for name in ("positions", "norm") if name in changes}
    encoder = {name: value for name, value in changes.items() if name not in model}
    config = dataclasses.replace(CONFIG, encoder=dataclasses.replace(CONFIG.encoder, **encoder), **model)
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_model(Config(model=config))


def test_distances_beside_an_encoder_that_knows_no_order_are_allowed():
    encoder = dataclasses.replace(CONFIG.encoder, branches=("attention:1", "static_expansion:2"))
    check_model(Config(model=dataclasses.replace(CONFIG, encoder=encoder, positions="rotary")))


def test_kinds_of_a_stack_are_named_or_refused():
    named = build.encoder(CONFIG, "lstm:2+attention:1")
    assert named == build.encoder(CONFIG, ("lstm", "lstm", "sentence"))
    with pytest.raises(ValueError, match="no layer is of kind 'attention'; there are sentence, document"):
        build.encoder(CONFIG, ["attention"])
    with pytest.raises(ValueError, match="at least one layer"):
        build.encoder(CONFIG, [])
    with pytest.raises(ConfigError, match="no encoder is called 'conv', did you mean 'convs2s'"):
        build.encoder(CONFIG, "conv:6")


def test_layers_of_documents_are_named_once():
    encoder = dataclasses.replace(CONFIG.encoder, branches=("lstm:1",))
    config = dataclasses.replace(CONFIG, encoder=encoder, document=DocumentConfig(layers=("document",)))
    with pytest.raises(ConfigError, match="both name the layers of the encoder"):
        check_model(Config(model=config))
