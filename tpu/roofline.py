"""How fast a compiled program would be: work, bytes and bytes of collectives over the speeds of a slice."""

import math
from dataclasses import dataclass

from flaxnmt.config import Config
from flaxnmt.encoders.fnet import transform_flops
from flaxnmt.gates.block import GatedBlock
from flaxnmt.models import build
from flaxnmt.models.config import DecoderOnlyConfig, EncoderOnlyConfig
from flaxnmt.models.flops import forward_flops, sequence_flops
from flaxnmt.training.masking import RATE
from tpu.hlo import Collective
from tpu.program import Program
from tpu.slices import Slice
from tpu.work import Shape


@dataclass(frozen=True)
class Estimate:
    """Seconds by what limits them.

    Attributes:
      flops: of the model on each chip, without what is computed beside it.
      compute: matrix products, all that are computed, at the assumed share of the peak.
      memory: reading and writing HBM, as XLA counts bytes, every round of a loop.
      collectives: over half of the links of a device, and between slices over the network.
      tokens: target positions of a step.
    """

    flops: float
    compute: float
    memory: float
    collectives: float
    tokens: int

    @property
    def poles(self) -> dict[str, float]:
        return {"products": self.compute, "memory": self.memory, "collectives": self.collectives}

    @property
    def seconds(self) -> float:
        """The longest of them: as if products, memory and collectives overlapped wholly."""
        return max(self.poles.values())

    @property
    def longest(self) -> str:
        return max(self.poles, key=self.poles.__getitem__)


def step_flops(config: Config, shape: Shape) -> float:
    """Of the model in a training step: forward, and twice as much backward."""
    return 3 * _forward(config, shape)


def further_flops(config: Config, shape: Shape) -> float:
    """Of a training step, beside those of the model: the layers forward once more where nothing of them is kept, and the
    products by which TPUs transform the features of FNet, forward and backward."""
    again = _forward(config, shape, logits=False) if config.model.remat else 0
    layers = sum(kinds.count("fnet") for kinds in getattr(config.model, "encoder_branches", ()))
    transform = transform_flops(config.model.d_model, math.prod(shape[0]))
    return again + (2 + config.model.remat) * layers * transform


def _forward(config: Config, shape: Shape, logits: bool = True) -> float:
    vocabulary, (tokens, _) = config.data.tokenizer.vocab_size, shape
    match config.model:
        case EncoderOnlyConfig(head="masked"):
            said = math.ceil(RATE * tokens[-1])
        case EncoderOnlyConfig(head=head):
            vocabulary = 2 if head == "spans" else config.model.classes
            said = 1 if head == "classes" else tokens[-1]
        case DecoderOnlyConfig(task="language"):
            said = tokens[-1]
        case _:
            return forward_flops(config.model, vocabulary * logits, *shape)
    return sequence_flops(config.model, vocabulary * logits, tokens, said)


def beam_flops(config: Config, shape: Shape) -> float:
    """Of the last position of all hypotheses; keys and values of the source are there already."""
    (source, target), model = shape, config.model
    if isinstance(model, DecoderOnlyConfig):
        (layer, *_) = build.causal_decoder(model).stack.layers
        blocks = ((layer.attention, source[-1] + target[-1], 1), (layer.feed_forward, 1, 0))
    else:
        layer, words = build.decoder_layer(model), math.prod(source[1:])
        blocks = (
            (layer.attention, target[-1], 1),
            (layer.cross_attention, words if model.document.cross == "document" else source[-1], 0),
            (layer.context, words, 0),
            (layer.feed_forward, 1, 0),
        )
    work = 0
    for block, looked_at, new in blocks:
        if block is None:
            continue
        for sublayer in block.sublayers if isinstance(block, GatedBlock) else (block.sublayer,):
            work += sublayer.flops(model.d_model, 1, looked_at)[1] + sublayer.flops(model.d_model, 1, new)[0]
    logits = 2 * model.d_model * config.data.tokenizer.vocab_size
    hypotheses = math.prod(source[:-1]) * config.decoding.beam_size
    return hypotheses * (model.decoder.layers * work + logits)


def estimate(
    programs: list[Program],
    flops: float,
    slice_: Slice,
    slices: int,
    tokens: int,
    efficiency: float,
    gradients: float = 0,
    further: float = 0,
) -> Estimate:
    """Of a step that calls these programs and does this work on so many slices, and `further` that is not the model's.

    Collectives of one slice are taken to be rings: a reduction goes round twice, all else once. Between slices
    `gradients`, the bytes of those of all devices of a slice, cross the network once in each direction, an equal part
    of them from every device, however they lie on them.
    """
    generation, per_chip = slice_.generation, slice_.generation.devices
    chips = slice_.chips * slices
    moved = sum(
        (2 if kind == "all-reduce" else 1) * found.bytes for kind, found in added_up(programs).items()
    )
    network = 0.0
    if slices > 1:
        network = 2 * gradients / slice_.devices / (generation.network / per_chip)
    return Estimate(
        flops=flops / chips,
        compute=(flops + further) / (chips * generation.flops * efficiency),
        memory=sum(one.times * one.touched for one in programs) / (generation.bandwidth / per_chip),
        collectives=moved / (generation.interconnect / 2 / per_chip) + network,
        tokens=tokens,
    )


def added_up(programs: list[Program]) -> dict[str, Collective]:
    """Collectives of a step, by kind."""
    found: dict[str, Collective] = {}
    for program in programs:
        for kind, one in program.collectives.items():
            before = found.get(kind, Collective(0, 0))
            found[kind] = Collective(
                before.count + program.times * one.count, before.bytes + program.times * one.bytes
            )
    return found


def target_positions(shape: Shape) -> int:
    return math.prod(shape[1])
