"""Meshes of TPU slices, one and several, as training and plans build them."""

import itertools
from dataclasses import dataclass, replace

import pytest

from flaxnmt.errors import ConfigError
from flaxnmt.sharding import make_mesh


@dataclass(frozen=True)
class Chip:
    """What JAX asks a TPU device where it arranges a mesh."""

    id: int
    coords: tuple[int, int, int]
    slice_index: int
    device_kind: str
    platform: str = "tpu"
    core_on_chip: int = 0
    process_index: int = 0


def chips(kind: str, shape: tuple[int, int, int], slices: int = 1) -> list[Chip]:
    places = [place[::-1] for place in itertools.product(*map(range, shape[::-1]))]
    return [
        Chip(len(places) * index + i, place, index, kind)
        for index in range(slices)
        for i, place in enumerate(places)
    ]


V5E, V5P, V6E = ("TPU v5 lite", (4, 4, 1)), ("TPU v5", (4, 4, 4)), ("TPU v6 lite", (4, 4, 1))


@pytest.mark.parametrize("sizes", [(4, 8, 1), (-1, 1, 1), (2, 16, 1), (4, 4, 2)])
def test_slices_share_the_data_axis_alone(sizes):
    mesh = make_mesh(*sizes, devices=chips(*V5E, slices=2))
    half = mesh.shape["data"] // 2
    first, second = mesh.devices[:half], mesh.devices[half:]
    assert {chip.slice_index for chip in first.flat} == {0}
    assert {chip.slice_index for chip in second.flat} == {1}
    assert len(set(mesh.devices.flat)) == 32


@pytest.mark.parametrize("kind, shape", [V5E, V5P, V6E])
@pytest.mark.parametrize("fsdp, model", [(8, 1), (1, 2), (2, 8), (4, 4)])
def test_axes_that_divide_no_whole_dimension_of_a_slice(kind, shape, fsdp, model):
    mesh = make_mesh(-1, fsdp, model, devices=chips(kind, shape))
    assert (mesh.shape["fsdp"], mesh.shape["model"]) == (fsdp, model)
    assert len(set(mesh.devices.flat)) == mesh.size


@pytest.mark.parametrize(
    "devices, sizes, said",
    [
        (chips(*V5E, slices=2), (1, 32, 1), "2 slices share the data axis alone, so make --mesh.data a multiple of 2"),
        (chips(*V5E, slices=3), (-1, 24, 1), "3 slices share the data axis alone"),
        (chips(*V5E)[:3] + chips(*V5E)[4:5], (-1, 1, 1), "these 4 devices make no whole slices of one size"),
        (chips(*V5E, slices=2)[:20], (-1, 1, 1), "these 20 devices make no whole slices of one size"),
    ],
)  # fmt: skip
def test_what_cannot_be_arranged_is_refused_in_one_line(devices, sizes, said):
    with pytest.raises(ConfigError, match=said) as error:
        make_mesh(*sizes, devices=devices)
    assert "\n" not in str(error.value)


def test_any_axis_may_cross_the_network_between_hosts_of_gpus():
    devices = [replace(chip, platform="gpu") for chip in chips("NVIDIA H100", (8, 1, 1), slices=2)]
    assert make_mesh(1, 16, 1, devices=devices).devices.ravel().tolist() == devices
