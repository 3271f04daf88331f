"""What FSDP leaves whole is listed, and refused where it is much: a broken rule does not pass."""

import dataclasses

import jax
import pytest
from small_models import parameter_shapes, small_model

from flaxnmt.errors import ConfigError
from flaxnmt.models.config import PRESETS
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.sharding import Rules, check_sharded, in_few_words, make_mesh, unsharded


@pytest.fixture(scope="module")
def boxed():
    return parameter_shapes(Seq2Seq(PRESETS["small"], 8000, 8000))


def fsdp():
    return make_mesh(1, 4, 1, jax.devices()[:4])


def test_norms_and_biases_alone_are_whole(boxed):
    names = check_sharded(boxed, fsdp())
    assert names and {name.split("/")[-1] for name in names} <= {"scale", "bias", "b_in", "b_out"}
    assert unsharded(boxed, fsdp())[1] < 0.01


@pytest.mark.parametrize(
    "broken", [Rules(embed=None), Rules(embed="model"), Rules(embed="data", mlp=None, heads=None, vocab=None)]
)
def test_a_broken_rule_is_refused_with_the_parameters_that_it_leaves_whole(boxed, broken):
    if broken.embed == "model":
        # Two dimensions of one matrix on one axis is an error of its own.
        with pytest.raises(ConfigError, match="put two dimensions on one mesh axis"):
            check_sharded(boxed, fsdp(), broken)
        return
    with pytest.raises(ConfigError, match=r"100% of the parameters would be whole on every device \(.*table"):
        check_sharded(boxed, fsdp(), broken)


def test_what_layers_have_alike_is_said_once():
    names = [
        "stack/layers_0/norm/scale",
        "norm/scale",
        "stack/layers_11/norm/scale",
        "stack/layers_0/norm/bias",
    ]
    said = "stack/layers_*/norm/scale (2), norm/scale, stack/layers_*/norm/bias"
    assert in_few_words(names) == said and in_few_words([]) == ""


def test_without_fsdp_all_may_be_whole(boxed):
    assert check_sharded(boxed, make_mesh(4, 1, 1, jax.devices()[:4]), Rules(embed=None)) == []


def test_a_model_too_small_for_it_is_told_so():
    config = dataclasses.replace(small_model().config, d_model=4, positions="learned", max_positions=8)
    tiny = parameter_shapes(Seq2Seq(config, 8, 8))
    with pytest.raises(ConfigError, match="a larger model, or --mesh.fsdp 1"):
        check_sharded(tiny, fsdp())
