"""Encoders side by side or in turn: chains are worth devices of their own, products are not."""

import dataclasses

import pytest

from experiments import configs
from flaxnmt.checks.model import check_model
from flaxnmt.config import MeshConfig
from flaxnmt.errors import ConfigError
from tpu.branches import PASSES, STEP_SECONDS, choice
from tpu.slices import parse_slice

V5E, WORDS = parse_slice("v5e-16"), 32


def config_with(*branches):
    config = configs.load("encoders_iwslt15_en_vi")
    encoder = dataclasses.replace(config.model.encoder, branches=branches)
    return config.replace(model=dataclasses.replace(config.model, encoder=encoder, compute_dtype="bfloat16"))


def chosen(rows, *branches):
    return choice(config_with(*branches), ((rows, WORDS), (rows, WORDS)), V5E, 1, 0.5)


def test_recurrences_are_chains_and_pay_side_by_side():
    found = chosen(64, "lstm:9", "lstm:9")
    chain = PASSES * 9 * WORDS * max(STEP_SECONDS, 4 * 512**2 * 2 / 819e9)
    assert found.pays and found.groups == 2 and found.names == ("lstm:9", "lstm:9")
    assert found.seconds == pytest.approx((chain, chain), rel=0.1) and min(found.seconds) > chain
    assert max(found.apart) < 1.1 * chain
    # Source one way and an output the other, of as many rows as a device has, and their cotangents.
    assert found.sent == 2 * 2 * (64 / 16) * WORDS * 512 * 2
    assert "pays: --mesh.branches --mesh.model 2" in found.said()


def test_products_take_as_long_for_twice_the_rows():
    found = chosen(4096, "attention:6", "static_expansion:12")
    assert not found.pays and "does not pay" in found.said()
    assert found.apart == pytest.approx([2 * one for one in found.seconds])


def test_encoders_that_compute_again_take_a_pass_more():
    config = config_with("lstm:2", "attention:6")
    again = config.replace(model=dataclasses.replace(config.model, remat=True))
    kept, twice = (choice(one, ((64, WORDS), (64, WORDS)), V5E, 1, 0.5) for one in (config, again))
    assert twice.seconds == pytest.approx([4 / 3 * one for one in kept.seconds])
    assert twice.exchange == kept.exchange


def test_one_long_recurrence_is_no_shorter_for_having_devices_of_its_own():
    found = chosen(512, "triple")
    assert max(found.apart) > found.seconds[2] > 0.7 * found.in_turn


def test_of_one_encoder_there_is_nothing_to_say():
    assert chosen(64, "attention:6") is None
    config = configs.load("text_small")
    assert choice(config, ((64, WORDS), (64, WORDS)), V5E, 1, 0.5) is None


@pytest.mark.parametrize(
    "model, branches", [(1, ("dual",)), (4, ("dual",)), (2, ("attention:6",)), (-1, ("dual",))]
)
def test_groups_without_an_encoder_are_refused(model, branches):
    mesh = MeshConfig(model=model, branches=True)
    with pytest.raises(ConfigError, match=f"--mesh.branches with --mesh.model {model}"):
        check_model(config_with(*branches).replace(mesh=mesh))
    check_model(config_with("dual").replace(mesh=MeshConfig(model=2, branches=True)))
