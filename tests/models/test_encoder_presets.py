"""The encoders of Hu et al. 2023 at the paper's size: names, numbers of parameters, operations."""

import dataclasses
from typing import get_args

import jax
import pytest
from cases import slow_but
from small_models import parameter_shapes

from experiments.benchmarks.encoder_costs import xla_flops
from flaxnmt.models.config import ENCODER_SETS, PRESETS, EncoderConfig, EncoderOnlyConfig, MixingKind
from flaxnmt.models.flops import forward_flops, sequence_flops
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.sharding import unbox


def paper(name, **changes):
    branches = ENCODER_SETS.get(name, (f"{name}:6",))
    encoder = dataclasses.replace(PRESETS["base"].encoder, branches=branches)
    return dataclasses.replace(PRESETS["base"], encoder=encoder, **changes)


@pytest.mark.parametrize("name", slow_but(["quintuple"], [*get_args(MixingKind), *ENCODER_SETS]))
def test_golden_parameters_of_the_encoders_of_the_paper(name, golden):
    model = Seq2Seq(paper(name), 8000, 8000)
    shapes = jax.tree.leaves_with_path(unbox(parameter_shapes(model)["encoder"]))
    lines = [
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {leaf.shape}\n" for path, leaf in shapes
    ]
    golden(f"encoders_{name}.txt", "".join(lines))


def norm(d):
    return 2 * d


def parameters_of_a_layer(kind, place, d, f):
    """Scale and bias a norm; two matrices and two biases a feed-forward network."""
    feed_forward = 2 * d * f + f + d
    vectors = (6, 6, 12, 8, 12, 8, 6, 6, 12, 8, 12, 8)[place % 12]
    return {
        # Queries, keys, values, output.
        "attention": 4 * d * d + norm(d) + feed_forward + norm(d),
        # Four gates of the input and of the state before, and their biases.
        "lstm": 2 * 4 * d * d + 4 * d + norm(d),
        # Kernel of width 3 to twice the width, and biases; no norm.
        "convs2s": 3 * d * 2 * d + 2 * d,
        "fnet": norm(d) + feed_forward + norm(d),
        # K, V_1, V_2, S with biases, two sets of vectors, one matrix that enriches them.
        "static_expansion": 4 * (d * d + d) + 2 * vectors * d + d * d + norm(d),
    }[kind]


@pytest.mark.parametrize("size", ["base", pytest.param("small", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow_but(["quintuple"], [*get_args(MixingKind), *ENCODER_SETS]))
def test_models_have_as_many_parameters_as_their_equations(name, size):
    encoder = dataclasses.replace(PRESETS[size].encoder, branches=paper(name).encoder.branches)
    config, vocab = dataclasses.replace(PRESETS[size], encoder=encoder), 8000
    d, f = config.d_model, encoder.feed_forward
    assert encoder.feed_forward == config.decoder.feed_forward
    # One table of embeddings; a layer of the decoder is one of attention with a second attention and its norm.
    of_decoder = config.decoder.layers * (parameters_of_a_layer("attention", 0, d, f) + 4 * d * d + norm(d))
    expected = {"encoder": 0, "decoder": of_decoder + norm(d), "tables": vocab * d}
    for branch in encoder.branches:
        kind, layers = branch.split(":")
        expected["encoder"] += norm(d)
        expected["encoder"] += sum(parameters_of_a_layer(kind, place, d, f) for place in range(int(layers)))
    shapes = unbox(parameter_shapes(Seq2Seq(config, vocab, vocab)))
    counts = {part: sum(leaf.size for leaf in jax.tree.leaves(tree)) for part, tree in shapes.items()}
    assert counts["encoder"] == expected["encoder"]
    assert sum(counts.values()) == sum(expected.values())


@pytest.mark.parametrize(
    "name, length",
    slow_but(
        [("static_expansion", 32)],
        [*((kind, 32) for kind in (*get_args(MixingKind), "dual")), *((name, 128) for name in ENCODER_SETS)],
    ),
)
def test_work_is_what_xla_counts(name, length):
    """Of the paper's size, with the recurrence unrolled, since XLA counts a scanned body once."""
    config, vocab = paper(name), 8000
    model = Seq2Seq(config, vocab, vocab)
    counted = xla_flops(model, unbox(parameter_shapes(model)), length)
    assert abs(forward_flops(config, vocab, (1, length), (1, length)) / counted - 1) < 0.05


def test_the_combination_of_an_encoder_alone_counts():
    def work(combine):
        encoder = EncoderConfig(branches=("attention:1", "fnet:1"), combine=combine)
        return sequence_flops(EncoderOnlyConfig(d_model=8, encoder=encoder), 20, (3, 5), outputs=2)

    # A gate for each of two branches, which reads both.
    assert work("gated") - work("sum") == 3 * 5 * 2 * (2 * 8) * 2
