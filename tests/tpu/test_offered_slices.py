"""Sizes of slices that are to be had, and their usual shapes."""

import pytest

from flaxnmt.errors import ConfigError
from tpu.slices import GENERATIONS, OFFERED, parse_slice


@pytest.mark.parametrize("name", GENERATIONS)
def test_every_size_of_the_table_has_a_usual_shape(name):
    cores = 1 + GENERATIONS[name].counts_cores
    assert [parse_slice(f"{name}-{chips * cores}").chips for chips in OFFERED[name]] == [*OFFERED[name]]


# Rows of the tables of v4 and v5p that are no powers of two.
@pytest.mark.parametrize(
    "name, shape",
    [
        ("v4-1536", "8x8x12"),
        *[("v5p-384", "4x4x12"), ("v5p-640", "4x4x20"), ("v5p-768", "4x8x12"), ("v5p-1152", "4x12x12")],
        *[("v5p-1408", "4x4x44"), ("v5p-3456", "12x12x12"), ("v5p-10240", "16x16x20")],
        *[("v5p-12288", "16x16x24"), ("tpu7x-18432", "16x24x24")],
    ],
)
def test_sizes_in_whole_cubes_have_the_shapes_of_googles_tables(name, shape):
    found = parse_slice(name)
    assert (found.shape, found.name, found.accelerator_type) == (shape, name, name)


@pytest.mark.parametrize(
    "name", ["v5e-2", "v5e-512", "v6e-3", "v4-4", "v4-384", "v3-16", "v5p-12", "v5p-8576", "v5p-12416"]
)
def test_sizes_that_are_not_to_be_had_are_said_with_those_that_are(name):
    generation = name.partition("-")[0]
    with pytest.raises(
        ConfigError, match=rf"{name}: .* not to be had; there are {generation}-\d+, "
    ) as error:
        parse_slice(name)
    assert ("and multiples of 128 up to 12288" in str(error.value)) == (generation == "v5p")


def test_other_shapes_are_of_sizes_that_are_to_be_had():
    assert parse_slice("v5p-512", "4x4x16").chips == 256 and parse_slice("v4-1024", "4x8x16").chips == 512
    for name, topology in (
        *(("v5e-512", "16x32"), ("v5p-96", "2x4x6"), ("v5p-8192", "4x4x256"), ("v5e-16", "2x8")),
        *(("v5e-16", "1x16"), ("v5p-32", "1x1x16"), ("v4-64", "1x1x32"), ("tpu7x-16", "1x1x8")),
    ):
        with pytest.raises(ConfigError, match=f"{name} --topology {topology}: .* not to be had"):
            parse_slice(name, topology)
