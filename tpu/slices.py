"""What a TPU slice is: chips, hosts, memory, speeds, and what Google Cloud, GKE and libtpu call it.

Numbers a chip are those of the system architecture pages of Google Cloud
(https://docs.cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e, tpu7x), read in November 2026. Interconnect is the sum
over the links of a chip in both directions; pages of v3 and v4 do not state it, and theirs follow from Jouppi et al.
2020 (four links of 656 Gbit/s in each direction) and 2023 (six of 400). Bandwidth between slices is that of the data
centre network, a chip; for v3 and v4 it is assumed.
"""

import math
import re
from dataclasses import dataclass

from flaxnmt.config_io import nearest
from flaxnmt.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True)
class Generation:
    """A kind of TPU chip.

    Attributes:
      name: as in `v5e-16`.
      accelerator: as Cloud writes it in an accelerator type.
      counts_cores: whether the number in a name is of cores, two a chip, or of chips.
      dimensions: of the interconnect: a 2D or 3D torus.
      devices: devices a chip; v4 and v5p join both cores into one (megacore).
      compiler: what libtpu calls that, so that its compiler sees as many devices as there are on the machine.
      memory: bytes of HBM a chip.
      flops: peak FLOP/s in bfloat16 a chip.
      bandwidth: of HBM, bytes/s a chip.
      interconnect: bytes/s a chip over all links, both directions.
      network: bytes/s a chip between slices.
      chips_per_host: of slices with more than one host.
      single_host: most chips that one host may have, in a slice of one host.
      runtime: version for Cloud TPU VMs; None where there are only GKE nodes.
      gke: label of the node pool; None where xpk, which makes clusters, has no such chips.
    """

    name: str
    accelerator: str
    counts_cores: bool
    dimensions: int
    devices: int
    compiler: str
    memory: int
    flops: float
    bandwidth: float
    interconnect: float
    network: float
    chips_per_host: int
    single_host: int
    runtime: str | None
    gke: str | None


GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation(
            "v3", "v3", True, 2, 2, "default", 32 * GIB, 123e12, 900e9, 656e9, 25e9 / 8, 4, 4, "tpu-ubuntu2204-base",
            None,
        ),
        Generation(
            "v4", "v4", True, 3, 1, "megacore", 32 * GIB, 275e12, 1200e9, 600e9, 25e9 / 8, 4, 4, "tpu-ubuntu2204-base",
            "tpu-v4-podslice",
        ),
        Generation(
            "v5e", "v5litepod", False, 2, 1, "default", 16 * GIB, 197e12, 819e9, 400e9, 25e9 / 8, 4, 8,
            "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice",
        ),
        Generation(
            "v5p", "v5p", True, 3, 1, "megacore", 95 * GIB, 459e12, 2765e9, 1200e9, 50e9 / 8, 4, 4, "v2-alpha-tpuv5",
            "tpu-v5p-slice",
        ),
        Generation(
            "v6e", "v6e", False, 2, 1, "default", 32 * GIB, 918e12, 1638e9, 800e9, 100e9 / 8, 4, 8, "v2-alpha-tpuv6e",
            "tpu-v6e-slice",
        ),
        Generation(
            "tpu7x", "tpu7x", True, 3, 2, "default", 192 * GIB, 2307e12, 7380e9, 1200e9, 100e9 / 8, 4, 4, None, "tpu7x",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """Chips of one generation that are joined by their interconnect.

    Attributes:
      generation: of the chips.
      topology: chips along each dimension.
    """

    generation: Generation
    topology: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.topology)

    @property
    def name(self) -> str:
        """As users write it: v5e-16."""
        return f"{self.generation.name}-{self.chips * (1 + self.generation.counts_cores)}"

    @property
    def accelerator_type(self) -> str:
        """As Cloud TPU has it: v5litepod-16."""
        return f"{self.generation.accelerator}-{self.chips * (1 + self.generation.counts_cores)}"

    @property
    def shape(self) -> str:
        """As GKE labels it: 4x4, 2x2x1."""
        return "x".join(map(str, self.topology))

    @property
    def libtpu(self) -> str:
        """The topology as libtpu's compiler knows it: v5e:4x4."""
        return f"{self.generation.name}:{self.shape}"

    @property
    def hosts(self) -> int:
        if self.chips <= self.generation.single_host:
            return 1
        return self.chips // self.generation.chips_per_host

    @property
    def devices(self) -> int:
        """Devices that JAX sees."""
        return self.chips * self.generation.devices


OFFERED = {
    "v3": (4, 16, 32, 64, 128, 256, 512, 1024),
    "v4": (4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 2048),
    "v5e": (1, 4, 8, 16, 32, 64, 128, 256),
    "v5p": (4, 8, 16, 32),
    "v6e": (1, 4, 8, 16, 32, 64, 128, 256),
    "tpu7x": (1, 4, 8, 16, 32),
}
"""Chips of the slices to be had, by the section "Configurations" of each generation's page..."""
CUBE, CUBES, LONGEST = 64, {"v5p": 96, "tpu7x": 144}, 244
"""...and for some also so many whole cubes of 4x4x4 chips, in shapes of which no side is longer."""


def default_topology(chips: int, dimensions: int) -> tuple[int, ...]:
    """The most compact shape: 16 in 2D is 4x4; in 3D 8 is 2x2x2, 4 is 2x2x1, and 192, of whole cubes, is 4x4x12.

    Raises:
      ConfigError: for a number of chips that has no such shape.
    """
    if dimensions == 3 and chips >= CUBE and chips % CUBE == 0:
        cubes = chips // CUBE
        sides = [side for side in range(1, cubes + 1) if cubes % side == 0]
        shapes = [(a, b, cubes // (a * b)) for a in sides for b in sides if cubes % (a * b) == 0]
        ordered = [shape for shape in shapes if shape == tuple(sorted(shape))]
        return tuple(4 * side for side in min(ordered, key=lambda shape: shape[::-1]))
    exponent = chips.bit_length() - 1
    if chips < 1 or chips != 2**exponent:
        raise ConfigError(f"{chips} chips have no usual shape: give one with --topology, such as 4x4x12")
    parts = sorted(exponent // dimensions + (i < exponent % dimensions) for i in range(dimensions))
    if dimensions == 3 and exponent < 3:
        parts.reverse()
    return tuple(2**part for part in parts)


def is_offered(slice_: Slice) -> bool:
    """Whether Google Cloud has slices of this size and shape; of what is in whole cubes there is more than the usual one."""
    name, topology = slice_.generation.name, slice_.topology
    in_cubes = len(topology) == 3 and all(side % 4 == 0 for side in topology)
    if slice_.chips in OFFERED[name]:
        return in_cubes or topology == default_topology(slice_.chips, slice_.generation.dimensions)
    return in_cubes and slice_.chips <= CUBE * CUBES.get(name, 0) and max(topology) <= LONGEST


def parse_slice(name: str, topology: str | None = None) -> Slice:
    """The slice of a name as Google Cloud writes it: v3-64, v5e-16 or v5litepod-16, v5p-128, tpu7x-128.

    Numbers are of chips for v5e and v6e, and of cores, two a chip, for the others. `topology`, such as 4x4x12, says
    the shape where it is not the usual one.

    Raises:
      ConfigError: for a name that is none, and a size that is not to be had.
    """
    kinds = {generation.name: generation for generation in GENERATIONS.values()}
    kinds |= {generation.accelerator: generation for generation in GENERATIONS.values()}
    kind, _, number = name.partition("-")
    if kind not in kinds:
        raise ConfigError(
            f"no slice is called {name!r}{nearest(kind, list(kinds))}; there are {', '.join(GENERATIONS)}, each with a "
            "size, such as v5e-16"
        )
    generation = kinds[kind]
    cores = 1 + generation.counts_cores
    if not number.isdecimal() or not int(number) or int(number) % cores:
        counted = "cores, two a chip" if generation.counts_cores else "chips"
        raise ConfigError(f"{name}: the number counts {counted}, such as {generation.name}-{16 * cores}")
    chips = int(number) // cores
    sizes = f"there are {', '.join(f'{generation.name}-{size * cores}' for size in OFFERED[generation.name])}"
    if generation.name in CUBES:
        sizes += f" and multiples of {CUBE * cores} up to {CUBE * CUBES[generation.name] * cores}"
    if topology is None:
        usual = chips in OFFERED[generation.name] or chips % CUBE == 0
        found = Slice(generation, default_topology(chips, generation.dimensions)) if usual else None
        if found is None or not is_offered(found):
            raise ConfigError(f"{name}: slices of this size are not to be had; {sizes}")
        return found
    if not re.fullmatch(r"\d+(x\d+)+", topology):
        raise ConfigError(f"--topology {topology}: give the chips along each dimension, such as 4x4")
    shape = tuple(map(int, topology.split("x")))
    if math.prod(shape) != chips or len(shape) != generation.dimensions:
        raise ConfigError(
            f"--topology {topology} has {len(shape)} dimensions and {math.prod(shape)} chips; {name} has "
            f"{generation.dimensions} and {chips}"
        )
    if not is_offered(Slice(generation, shape)):
        raise ConfigError(f"{name} --topology {topology}: slices of this shape are not to be had; {sizes}")
    return Slice(generation, shape)
