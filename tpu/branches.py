"""Whether encoders that read the same source pay side by side: a roofline of each, in turn and at the same time.

On the same devices the choice is between all encoders for few rows and some encoders for G times as many. What is
bounded by products takes G times as long for them, and nothing is gained. A recurrence is a chain of small products,
which take as long for few rows as for some more: there the longest encoder stands against the sum.
"""

import math
from dataclasses import dataclass

from flaxnmt.config import Config
from flaxnmt.encoders.fnet import transform_flops
from flaxnmt.models.config import ENCODER_SETS, EncoderKind, EncodingConfig
from flaxnmt.models.flops import encoder_flops
from tpu.slices import Slice
from tpu.work import Shape

STEP_SECONDS = 2e-6
"""Assumed of a position of a recurrence: no step of a loop is over sooner, however small. Nobody has measured it here."""

PASSES = 3
"""Of a training step: forward, and twice as much backward; with `remat` once more forward."""


@dataclass(frozen=True)
class Choice:
    """Encoders in turn against G groups of them side by side.

    Attributes:
      names: of the encoders.
      seconds: of each, for the rows of one device.
      groups: G.
      apart: seconds of each group, for G times as many rows.
      sent: bytes that a device receives: the source of its group, and the outputs of the others for its own rows.
      exchange: seconds for them.
    """

    names: tuple[str, ...]
    seconds: tuple[float, ...]
    groups: int
    apart: tuple[float, ...]
    sent: float
    exchange: float

    @property
    def in_turn(self) -> float:
        return sum(self.seconds)

    @property
    def side_by_side(self) -> float:
        return max(self.apart) + self.exchange

    @property
    def pays(self) -> bool:
        return self.side_by_side < self.in_turn

    def said(self) -> str:
        parts = ", ".join(
            f"{name} {1e3 * one:.2f}" for name, one in zip(self.names, self.seconds, strict=True)
        )
        flags = f"--mesh.branches --mesh.model {self.groups}"
        advice = f"pays: {flags}" if self.pays else f"does not pay ({flags}): to divide rows is faster"
        return (
            f"encoders: {parts} ms; in turn {1e3 * self.in_turn:.2f} ms, in {self.groups} groups side by side the longest "
            f"{1e3 * max(self.apart):.2f} ms and {1e3 * self.exchange:.2f} ms for {self.sent / 2**20:.1f} MiB exchanged: "
            f"{advice}"
        )


def seconds(
    model: EncodingConfig,
    kinds: tuple[EncoderKind, ...],
    rows: float,
    source: tuple[int, ...],
    slice_: Slice,
    efficiency: float,
) -> float:
    """Of an encoder in a training step of one device, with this many examples of its source.

    Products at a share of the peak, or reading the weights where that takes longer; a recurrence has both, and
    `STEP_SECONDS`, at each of its positions.
    """
    generation, per_chip = slice_.generation, slice_.generation.devices
    speed, bandwidth = generation.flops * efficiency / per_chip, generation.bandwidth / per_chip
    words, sentences = source[-1], math.prod(source[1:-1])
    transforms = kinds.count("fnet") * transform_flops(model.d_model, sentences * words)
    work = rows * (encoder_flops(model, kinds, words, sentences) + transforms)
    matrix = 4 * model.d_model**2
    step_work = 2 * rows * sentences * matrix
    steps = kinds.count("lstm") * words
    one = max(step_work / speed, matrix * model.dtype.itemsize / bandwidth, STEP_SECONDS)
    # The products of one word use every weight once.
    weights = encoder_flops(model, kinds, 1) / 2 - kinds.count("lstm") * matrix
    rest = max((work - steps * step_work) / speed, weights * model.dtype.itemsize / bandwidth)
    return (PASSES + model.remat) * (steps * one + rest)


def choice(config: Config, shape: Shape, slice_: Slice, slices: int, efficiency: float) -> Choice | None:
    """The best number of groups for a training step, rows over all devices; None without several encoders."""
    model, (source, _) = config.model, shape
    if not isinstance(model, EncodingConfig) or len(model.encoder_branches) < 2:
        return None
    branches, devices = model.encoder_branches, slice_.devices * slices
    names = tuple(part for name in model.encoder.branches for part in ENCODER_SETS.get(name, (name,)))
    rows = source[0] / devices

    def times(rows: float) -> tuple[float, ...]:
        return tuple(
            seconds(model.of_branch(place), kinds, rows, source, slice_, efficiency)
            for place, kinds in enumerate(branches)
        )

    def grouped(groups: int) -> Choice:
        found = times(rows * groups)
        # Source and outputs one way, their cotangents back.
        values = rows * math.prod(source[1:]) * model.d_model * model.dtype.itemsize
        sent = 2 * (groups - 1) * values * (1 + -(-len(branches) // groups))
        generation = slice_.generation
        speed = generation.interconnect / 2 / generation.devices
        apart = tuple(sum(found[group::groups]) for group in range(groups))
        return Choice(names, times(rows), groups, apart, sent, sent / speed)

    fitting = [groups for groups in range(2, len(branches) + 1) if slice_.devices % groups == 0]
    return min(map(grouped, fitting), key=lambda one: one.side_by_side, default=None)
