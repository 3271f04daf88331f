"""Names of slices, their shapes, hosts and devices, as the pages of Google Cloud have them."""

import pytest

from flaxnmt.errors import ConfigError
from tpu.slices import GENERATIONS, GIB, default_topology, parse_slice

# name, as Cloud TPU has it, topology, chips, hosts, devices
SLICES = [
    ("v3-8", "v3-8", "2x2", 4, 1, 8),
    ("v3-64", "v3-64", "4x8", 32, 8, 64),
    ("v4-64", "v4-64", "2x4x4", 32, 8, 32),
    ("v4-8", "v4-8", "2x2x1", 4, 1, 4),
    ("v5e-4", "v5litepod-4", "2x2", 4, 1, 4),
    ("v5e-8", "v5litepod-8", "2x4", 8, 1, 8),
    ("v5e-16", "v5litepod-16", "4x4", 16, 4, 16),
    ("v5e-256", "v5litepod-256", "16x16", 256, 64, 256),
    ("v5p-8", "v5p-8", "2x2x1", 4, 1, 4),
    ("v5p-128", "v5p-128", "4x4x4", 64, 16, 64),
    ("v5p-2048", "v5p-2048", "8x8x16", 1024, 256, 1024),
    ("v6e-256", "v6e-256", "16x16", 256, 64, 256),
    ("tpu7x-16", "tpu7x-16", "2x2x2", 8, 2, 16),
]


@pytest.mark.parametrize("name, accelerator, topology, chips, hosts, devices", SLICES)
def test_slices_are_what_their_names_say(name, accelerator, topology, chips, hosts, devices):
    found = parse_slice(name)
    assert (found.name, found.accelerator_type, found.shape) == (name, accelerator, topology)
    assert (found.chips, found.hosts, found.devices) == (chips, hosts, devices)
    assert found.libtpu == f"{found.generation.name}:{topology}"
    assert parse_slice(accelerator) == found


@pytest.mark.parametrize(
    "chips, dimensions, shape", [(1, 2, (1, 1)), (32, 2, (4, 8)), (512, 3, (8, 8, 8)), (2, 3, (2, 1, 1))]
)
def test_usual_shapes_are_the_most_compact(chips, dimensions, shape):
    assert default_topology(chips, dimensions) == shape


def test_other_shapes_are_named():
    assert parse_slice("v5p-512", "4x4x16").chips == 256
    with pytest.raises(ConfigError, match="3 chips have no usual shape: give one with --topology"):
        default_topology(3, 2)
    with pytest.raises(
        ConfigError, match="--topology 4x4 has 2 dimensions and 16 chips; v5p-32 has 3 and 16"
    ):
        parse_slice("v5p-32", "4x4")
    with pytest.raises(ConfigError, match="--topology four: give the chips along each dimension"):
        parse_slice("v5e-16", "four")


@pytest.mark.parametrize(
    "name, said",
    [
        ("v5-16", "no slice is called 'v5-16', did you mean 'v5"),
        ("h100-8", "no slice is called 'h100-8'"),
        ("v5e", "v5e: the number counts chips, such as v5e-16"),
        ("v5e-0", "the number counts chips"),
        ("v4-7", "the number counts cores, two a chip, such as v4-32"),
        ("v5p-x", "the number counts cores"),
    ],
)
def test_what_is_no_slice_is_said(name, said):
    with pytest.raises(ConfigError) as error:
        parse_slice(name)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_generations_become_faster_and_larger():
    """By chip: no number is off by a power of ten, or of another chip."""
    order = ("v3", "v4", "v5p", "tpu7x")
    for one, other in zip(order, order[1:]):
        before, after = GENERATIONS[one], GENERATIONS[other]
        assert 1 < after.flops / before.flops < 10 and 1 < after.bandwidth / before.bandwidth < 3
        assert 1 <= after.memory / before.memory < 4
    for generation in GENERATIONS.values():
        assert 16 * GIB <= generation.memory <= 192 * GIB and generation.network < generation.interconnect
        # A product with a matrix of a thousand columns is not bound by memory.
        assert 100 < generation.flops / generation.bandwidth < 700
