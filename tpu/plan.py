"""Says, without a TPU, whether a training will compile and fit on a slice, and roughly how fast it will be.

    python -m tpu.plan CONFIG --slice v5e-16 [--slices 2] [--mesh data=4,fsdp=4] [--decode] [--price DOLLARS]
        [--section.field value ...]

Compiles the real training step, an update of all its batches, or with --decode one position of the beam search, with
the TPU compiler (`make tpu-install`), which takes a minute or so, and prints the bytes on a device, the collectives, and
an estimate of the time of a step. --sweep-mesh does so for every sensible mesh and ranks them. Exit codes: 0 it fits, 1 it
does not, 2 a mistake to correct.
"""

import dataclasses
import json
import math
import sys
from dataclasses import dataclass
from operator import le
from pathlib import Path
from typing import Annotated

import tyro

from experiments import configs
from flaxnmt.checks.model import check_model
from flaxnmt.checks.options import check_ranges, check_used
from flaxnmt.commands import MISTAKE, guarded, parsed, quiet
from flaxnmt.config import Config, MeshConfig
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import EncoderOnlyConfig
from flaxnmt.sharding import MESH_AXES, row_ways
from flaxnmt.translation.search import Search
from flaxnmt.translation.shapes import LONGEST, grid_plan, square_plan
from tpu import branches, roofline
from tpu.program import DoesNotFit, compile_work, prepare_environment
from tpu.said import Row, said_of
from tpu.slices import Slice, parse_slice
from tpu.work import Shape, beam_step, planned_mesh, train_step

DOES_NOT_FIT = 1


@dataclass(frozen=True)
class Arguments:
    slice: str
    """Such as v5e-16, v5p-128 or v3-64, as Google Cloud names it."""
    slices: int = 1
    """Joined by the data centre network; they share the data axis."""
    topology: str | None = None
    """Shape of the slice where it is not the usual one, such as 4x4x12."""
    decode: bool = False
    """Plan one position of the beam search in place of the training step."""
    source_length: int | None = None
    """Tokens of the sources; --data.max-length if not given. Of documents: words of a sentence."""
    target_length: int | None = None
    """Tokens of the targets; those of the sources if not given, in a search as many as it keeps room for."""
    sentences: int | None = None
    """Of a document; --data.max-sentences if not given."""
    sweep_mesh: bool = False
    """Compile for every sensible mesh and rank them."""
    efficiency: float = 0.5
    """Share of their peak that chips are assumed to reach in matrix products."""
    price: float | None = None
    """Dollars for a chip and hour; then the cost of the run is said."""
    json: Path | None = None
    """Append what was found to this file, a line of JSON for each mesh."""
    debug: bool = False
    """Show tracebacks."""
    config: Annotated[Config, tyro.conf.arg(name="")] = tyro.MISSING


def shape_of(config: Config, arguments: Arguments, ways: int = 1) -> Shape:
    """Shapes of the sources and targets of a batch; of a search those in which texts of these lengths are translated.

    ways: devices that share the rows of a search.

    Raises:
      ConfigError: where not even `rows_multiple` rows of these lengths are in a batch.
    """
    source = arguments.source_length or config.data.max_length
    target = arguments.target_length or source
    is_document = config.model.is_document
    sentences = (arguments.sentences or config.data.max_sentences,) if is_document else ()
    if arguments.decode:
        rows = config.decoding.batch_size
        if is_document:
            shapes = grid_plan(rows, max(*sentences, config.data.max_sentences), ways)
        else:
            shapes = square_plan(rows, ways)
        sizes = (*sentences, min(source, LONGEST))
        bucket = next(bucket for bucket in shapes.buckets if all(map(le, sizes, bucket.sizes)))
        padded = bucket.sizes if is_document else bucket.sizes[:1]
        room = Search.of(config.decoding).longest(padded[-1], prefix=0)
        return (bucket.rows, *padded), (bucket.rows, *padded[:-1], arguments.target_length or room)
    places = target * (sentences[0] if is_document else 1)
    multiple = config.data.rows_multiple
    rows = config.data.batch_tokens // places // multiple * multiple
    if not rows:
        raise ConfigError(
            f"a batch of --data.batch-tokens {config.data.batch_tokens} holds fewer than {multiple} rows "
            f"(--data.rows-multiple) of {places} target positions: make it larger, or give --target-length"
        )
    return (rows, *sentences, source), (rows, *sentences, target)


def measure(arguments: Arguments, config: Config, slice_: Slice) -> Row:
    """Compiles for the mesh of the configuration: what the compiler says, and what follows from it.

    Raises:
      ConfigError: for what does not go together.
    """
    if arguments.decode and isinstance(config.model, EncoderOnlyConfig):
        raise ConfigError("--decode: a model that is an encoder alone decodes nothing; leave it out")
    mesh = planned_mesh(config, slice_, arguments.slices)
    shape = shape_of(config, arguments, row_ways(mesh))
    generation, batches = slice_.generation, 1 if arguments.decode else config.training.accumulate
    work = (beam_step if arguments.decode else train_step)(config, mesh, shape)
    row = {
        "slice": slice_.name,
        "slices": arguments.slices,
        "chips": slice_.chips * arguments.slices,
        "mesh": dict(mesh.shape),
        "program": "beam step" if arguments.decode else "training step",
        "batches": batches,
        "source": shape[0],
        "target": shape[1],
        "room": generation.memory // generation.devices,
        "whole": work.whole,
    }
    try:
        programs = compile_work(work, mesh)
    except DoesNotFit as error:
        return row | {"fits": False, "used": error.used, "said": str(error)}
    flops = (roofline.beam_flops if arguments.decode else roofline.step_flops)(config, shape)
    tokens = roofline.target_positions(shape) // (shape[1][-1] if arguments.decode else 1)
    found = roofline.estimate(
        programs,
        batches * flops,
        slice_,
        arguments.slices,
        batches * tokens,
        arguments.efficiency,
        gradients=0 if arguments.decode else batches * work.weights,
        further=0 if arguments.decode else batches * roofline.further_flops(config, shape),
    )
    encoders = None
    if not arguments.decode:
        encoders = branches.choice(config, shape, slice_, arguments.slices, arguments.efficiency)
    largest = max(programs, key=lambda program: program.total)
    return row | {
        "fits": largest.total <= row["room"],
        "used": largest.total,
        "parameters": largest.parameters,
        "arguments": largest.arguments,
        "temporaries": largest.temporaries,
        "outputs": largest.outputs,
        "code": largest.code,
        "collectives": {kind: dataclasses.asdict(one) for kind, one in roofline.added_up(programs).items()},
        "unknown_loops": sum(program.unknown for program in programs),
        "flops": found.flops,
        "poles": found.poles,
        "seconds": found.seconds,
        "longest": found.longest,
        "tokens_per_second": found.tokens / found.seconds,
        "encoders": encoders and dataclasses.asdict(encoders),
    }


def meshes(slice_: Slice, slices: int) -> list[MeshConfig]:
    """Pure data parallelism, FSDP over a slice or a part of it, and both beside 2 or 4 ways of tensor parallelism."""
    devices = slice_.devices
    found = []
    for model in (1, 2, 4):
        for fsdp in sorted({1, *(size for size in (4, 8, 16, devices // model) if size > 1)}):
            ways = fsdp * model
            if ways <= devices and devices % ways == 0:
                found.append(MeshConfig(devices * slices // ways, fsdp, model))
    return found


def plan(arguments: Arguments) -> int:
    """Compiles, prints, and says by the exit code whether it fits."""
    quiet()
    config, slice_ = arguments.config, parse_slice(arguments.slice, arguments.topology)
    if arguments.slices < 1:
        raise ConfigError(f"--slices {arguments.slices}: at least 1")
    if arguments.price is not None and not 0 <= arguments.price < math.inf:
        raise ConfigError(f"--price {arguments.price:g}: dollars for a chip and hour, at least 0")
    if arguments.sentences is not None and not config.model.is_document:
        raise ConfigError("--sentences is of documents, and this is no model of documents: leave it out")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: there is no folder {arguments.json.parent}")
    if not 0 < arguments.efficiency <= 1:
        raise ConfigError(f"--efficiency {arguments.efficiency:g}: a share above 0, at most 1")
    for name in ("source_length", "target_length", "sentences"):
        if (given := getattr(arguments, name)) is not None and given < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {given}: at least 1")
    prepare_environment()
    check_ranges(config)
    check_model(config)
    check_used(config)
    if not arguments.sweep_mesh:
        rows = [measured(arguments, config, slice_)]
    else:
        rows = swept(arguments, config, slice_)
    for row in sorted(rows, key=lambda row: (not row["fits"], row.get("seconds", 0))):
        mesh = MeshConfig(**row["mesh"], branches=config.mesh.branches)
        for line in said_of(row, slice_, config.replace(mesh=mesh), arguments.efficiency, arguments.price):
            print(line)
    if not rows:
        return MISTAKE
    return 0 if any(row["fits"] for row in rows) else DOES_NOT_FIT


def measured(arguments: Arguments, config: Config, slice_: Slice) -> Row:
    """`measure`, kept in the file at once where one is asked for."""
    row = measure(arguments, config, slice_)
    if arguments.json is not None:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return row


def swept(arguments: Arguments, config: Config, slice_: Slice) -> list[Row]:
    """Of every sensible mesh that can be planned; each says in a line what it is, or why it cannot."""
    rows = []
    for mesh in meshes(slice_, arguments.slices):
        name = f"mesh data {mesh.data} fsdp {mesh.fsdp} model {mesh.model}"
        mesh = dataclasses.replace(mesh, branches=config.mesh.branches)
        try:
            row = measured(arguments, config.replace(mesh=mesh), slice_)
        except ConfigError as error:
            print(f"{name}: {error}", flush=True)
            continue
        rows.append(row)
        said = f"fits, {1e3 * row['seconds']:.1f} ms" if row["fits"] else "does not fit"
        print(f"{name}: {said}", flush=True)
    return rows


def with_mesh(argv: list[str]) -> list[str]:
    """The command line with `--mesh data=4,fsdp=4` in its long form, `--mesh.data 4 --mesh.fsdp 4`.

    Raises:
      ConfigError: for a text that gives no sizes of axes, each once.
    """
    if "--mesh" not in (words := [word.partition("=")[0] for word in argv]):
        return argv
    at = words.index("--mesh")
    _, joined, text = argv[at].partition("=")
    rest = argv[at + 1 :]
    if not joined:
        text, *rest = rest or [""]
    sizes = [part.partition("=") for part in text.split(",")]
    names = [name for name, _, _ in sizes]
    if (
        not set(names) <= set(MESH_AXES)
        or len(set(names)) < len(names)
        or not all(size.removeprefix("-").isdecimal() for *_, size in sizes)
    ):
        raise ConfigError(
            f"--mesh {text}: give the devices along each axis, such as data=4,fsdp=4,model=1; there are {', '.join(MESH_AXES)}"
        )
    return [*argv[:at], *(word for name, _, size in sizes for word in (f"--mesh.{name}", size)), *rest]


def parse(argv: list[str]) -> Arguments:
    """Arguments from a command line whose first word names a configuration."""
    if not argv or argv[0].startswith("-"):
        print(f"{__doc__}\nConfigurations: {', '.join(configs.names())}")
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    config = configs.load(argv[0])
    given = {word.partition("=")[0] for word in argv}
    if "--sweep-mesh" in given and given & {"--mesh", *(f"--mesh.{axis}" for axis in MESH_AXES)}:
        raise ConfigError("--sweep-mesh tries the meshes that there are: leave --mesh out")
    return parsed(
        lambda: tyro.cli(
            Arguments,
            args=with_mesh(argv[1:]),
            default=Arguments(slice=tyro.MISSING, config=config),
            config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
            prog=f"python -m tpu.plan {argv[0]}",
            description=__doc__,
        ),
        argv,
    )


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    return guarded(lambda: plan(parse(argv)), debug="--debug" in argv)


if __name__ == "__main__":
    sys.exit(main())
