"""Estimates: which pole is the longest, and by how much, for programs whose numbers are known."""

import dataclasses
import math

import pytest

from experiments import configs
from flaxnmt.models.flops import forward_flops, sequence_flops
from flaxnmt.sharding import make_mesh
from flaxnmt.training.masking import RATE
from tpu.hlo import Collective
from tpu.program import Program
from tpu.roofline import added_up, beam_flops, estimate, further_flops, step_flops
from tpu.slices import parse_slice
from tpu.work import train_step

PROGRAM = Program(
    arguments=12 * 2**20,
    parameters=4 * 2**20,
    temporaries=2**20,
    outputs=0,
    code=0,
    collectives={},
    touched=819e6,
)
V5E = parse_slice("v5e-16")


def test_poles_are_work_and_bytes_over_the_speeds_of_a_chip():
    found = estimate([PROGRAM], 16 * 197e9, V5E, 1, tokens=1000, efficiency=0.5)
    assert (
        found.flops == 197e9 and found.compute == pytest.approx(2e-3) and found.memory == pytest.approx(1e-3)
    )
    assert found.collectives == 0 and found.longest == "products" and found.seconds == pytest.approx(2e-3)
    # 200 MB twice around rings that send at 200 GB/s.
    slow = dataclasses.replace(PROGRAM, collectives={"all-reduce": Collective(3, 200_000_000)})
    found = estimate([slow], 0, V5E, 1, tokens=1000, efficiency=0.5)
    assert found.collectives == pytest.approx(2e-3) and found.longest == "collectives"


def test_gradients_cross_the_network_between_slices():
    one, two = (
        estimate([PROGRAM], 0, V5E, slices, 1, 0.5, gradients=64 * 2**20).collectives for slices in (1, 2)
    )
    # A sixteenth of them from each chip, both ways, at 25 Gbit/s.
    assert one == 0 and two == pytest.approx(2 * 64 * 2**20 / 16 / (25e9 / 8))


@pytest.mark.slow
def test_the_network_asks_not_how_parameters_lie_on_a_slice():
    config = configs.load("text_tiny")
    config = config.replace(data=dataclasses.replace(config.data, rows_multiple=8))
    weights = {
        train_step(config, make_mesh(*sizes), ((8, 16), (8, 16))).weights
        for sizes in ((8, 1, 1), (1, 8, 1), (2, 2, 2))
    }
    assert len(weights) == 1 and weights.pop() > 2**20


def test_programs_count_as_often_as_they_are_called():
    calls = [
        dataclasses.replace(PROGRAM, times=times, collectives={"all-reduce": Collective(2, 100)})
        for times in (1, 3)
    ]
    assert added_up(calls) == {"all-reduce": Collective(8, 400)}
    assert estimate(calls, 0, V5E, 1, 1, 0.5).memory == pytest.approx(4e-3)


def test_a_core_of_a_chip_has_half_of_its_speeds():
    v3, v5e = (estimate([PROGRAM], 1e12, parse_slice(name), 1, 1, 1.0) for name in ("v3-64", "v5e-32"))
    assert v3.memory / v5e.memory == pytest.approx(2 * 819 / 900)
    assert v3.compute / v5e.compute == pytest.approx(197 / 123)


def test_work_of_a_step_and_of_a_position():
    config = configs.load("transformer_base")
    shape = (8, 16), (8, 12)
    vocabulary = config.data.tokenizer.vocab_size
    forward, layers = (forward_flops(config.model, size, *shape) for size in (vocabulary, 0))
    assert step_flops(config, shape) == 3 * forward
    again = config.replace(model=dataclasses.replace(config.model, remat=True))
    # What is computed again takes time, and is no work of the model.
    assert step_flops(again, shape) == 3 * forward and 0 < layers < forward
    assert (further_flops(config, shape), further_flops(again, shape)) == (0, layers)
    kept, twice = (estimate([], 1e12, V5E, 1, 1, 0.5, further=more) for more in (0, 1e12 / 3))
    assert twice.flops == kept.flops and twice.compute == pytest.approx(kept.compute * 4 / 3)
    masked = configs.load("masked_tiny")
    of_layers = sequence_flops(masked.model, 0, (8, 16), math.ceil(RATE * 16))
    again = masked.replace(model=dataclasses.replace(masked.model, remat=True))
    assert further_flops(again, ((8, 16), None)) == of_layers > 0
    encoders = [
        config.replace(
            model=dataclasses.replace(
                config.model,
                remat=remat,
                encoder=dataclasses.replace(config.model.encoder, branches=("attention:1", branch)),
            )
        )
        for remat, branch in ((False, "fnet:3"), (True, "fnet:3"), (True, "attention:3"))
    ]
    fnet, again, attention = (further_flops(one, shape) for one in encoders)
    # Two products of 512 x 257 for each of 8 x 16 words in three layers, forward, backward, and once more.
    assert fnet == 2 * 3 * 8 * 16 * 4 * 512 * 257 and again - fnet / 2 * 3 > 0 and attention > 0
    assert again == fnet / 2 * 3 + forward_flops(encoders[1].model, 0, *shape)
    classes = configs.load("classify_small")
    tokens, of_two = (8, 16), dataclasses.replace(classes.model, classes=2)
    logits = [2 * outputs * classes.model.d_model for outputs in (1, 16, 16)]
    work = [
        step_flops(classes.replace(model=dataclasses.replace(of_two, head=head)), (tokens, None))
        for head in ("classes", "labels", "spans")
    ]
    # Of the last layer a class needs queries, output projection and feed-forward network of one token alone.
    d, f = classes.model.d_model, classes.model.encoder.feed_forward
    others = (4 * d * d + 4 * d * 16 + 4 * d * f) * 15
    more = [2 * (found - logits[0]) + others * (found > logits[0]) for found in logits]
    assert [found - work[0] for found in work] == [3 * 8 * found for found in more]
    d, f, layers = 512, 2048, 6
    # Queries, keys, values, output; queries and output over the source; two matrices; twelve and sixteen places seen.
    layer = 8 * d * d + 4 * d * d + 4 * d * f + 4 * d * (12 + 16)
    expected = 8 * config.decoding.beam_size * (layers * layer + 2 * d * vocabulary)
    assert beam_flops(config, shape) == expected
