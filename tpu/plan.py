"""Says, without a TPU, whether a training will compile and fit on a slice, and roughly how fast it will be.

    python -m tpu.plan CONFIG --slice v5e-16 [--slices 2] [--decode] [--price DOLLARS] [--section.field value ...]

Compiles the real training step, or with --decode one position of the beam search, with the TPU compiler (`make
tpu-install`), which takes a minute or so, and prints the bytes on a device, the collectives, and an estimate of the time
of a step. Exit codes: 0 it fits, 1 it does not, 2 a mistake to correct.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments import configs
from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.config import Config, MeshConfig
from flaxnmt.errors import ConfigError
from tpu import branches, roofline
from tpu.program import (
    DoesNotFit,
    Shape,
    beam_step,
    compile_program,
    make_planned_mesh,
    prepare_environment,
    rules_of,
    train_step,
)
from tpu.slices import GIB, Slice, parse_slice

DOES_NOT_FIT = 1

Row = dict


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
    """Tokens of the targets; those of the sources if not given."""
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


def shape_of(config: Config, arguments: Arguments) -> Shape:
    """Shapes of the sources and targets of a batch.

    Raises:
      ConfigError: where not even `rows_multiple` rows of these lengths are in a batch.
    """
    source = arguments.source_length or config.data.max_length
    target = arguments.target_length or source
    is_document = config.model.is_document
    sentences = (arguments.sentences or config.data.max_sentences,) if is_document else ()
    if arguments.decode:
        rows = config.decoding.batch_size
        return (rows, *sentences, source), (rows, *sentences, target)
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
    from flaxnmt.sharding import use_mesh

    mesh, shape = make_planned_mesh(config, slice_, arguments.slices), shape_of(config, arguments)
    sizes = dict(mesh.shape)
    if shape[0][0] % (sizes["data"] * sizes["fsdp"]):
        name = "--decoding.batch-size" if arguments.decode else "--data.rows-multiple"
        raise ConfigError(
            f"batches of {shape[0][0]} rows do not divide by the {sizes['data'] * sizes['fsdp']} devices that share "
            f"them: make {name} a multiple of that"
        )
    generation = slice_.generation
    row = {
        "slice": slice_.name,
        "slices": arguments.slices,
        "chips": slice_.chips * arguments.slices,
        "mesh": sizes,
        "program": "beam step" if arguments.decode else "training step",
        "source": shape[0],
        "target": shape[1],
        "room": generation.memory // generation.planned_devices,
    }
    # Outside of the mesh, whose devices can run nothing: shapes of an optimizer are found by running its init.
    jitted, inputs, parameters = (beam_step if arguments.decode else train_step)(config, mesh, shape)
    try:
        with use_mesh(mesh) if arguments.decode else use_mesh(mesh, rules_of(config)):
            program = compile_program(jitted, inputs, parameters)
    except DoesNotFit as error:
        return row | {"fits": False, "used": error.used, "said": str(error)}
    flops = (roofline.beam_flops if arguments.decode else roofline.step_flops)(config, shape)
    tokens = roofline.target_positions(shape) // (shape[1][-1] if arguments.decode else 1)
    found = roofline.estimate(program, flops, slice_, arguments.slices, tokens, arguments.efficiency)
    encoders = None
    if not arguments.decode:
        encoders = branches.choice(config, shape, slice_, arguments.slices, arguments.efficiency)
    return row | {
        "fits": program.total <= row["room"],
        "used": program.total,
        "parameters": program.parameters,
        "arguments": program.arguments,
        "temporaries": program.temporaries,
        "outputs": program.outputs,
        "code": program.code,
        "collectives": {kind: dataclasses.asdict(one) for kind, one in program.collectives.items()},
        "flops": found.flops,
        "poles": found.poles,
        "seconds": found.seconds,
        "longest": found.longest,
        "tokens_per_second": found.tokens / found.seconds,
        "encoders": encoders and dataclasses.asdict(encoders),
    }


def meshes(slice_: Slice, slices: int) -> list[MeshConfig]:
    """Pure data parallelism, FSDP over a slice or a part of it, and both beside 2 or 4 ways of tensor parallelism."""
    devices = slice_.planned_devices
    found = []
    for model in (1, 2, 4):
        for fsdp in sorted({1, *(size for size in (4, 8, 16, devices // model) if size > 1)}):
            ways = fsdp * model
            if ways <= devices and devices % ways == 0:
                found.append(MeshConfig(devices * slices // ways, fsdp, model))
    return found


def advice(config: Config) -> list[str]:
    """What makes a training step smaller, in the order in which to try it."""
    hints = []
    if config.mesh.fsdp == 1:
        hints.append("--mesh.fsdp 4 or more: divides parameters, moments and gradients")
    if config.model.compute_dtype == "float32":
        hints.append("--model.compute-dtype bfloat16: halves activations")
    if not config.model.remat:
        hints.append("--model.remat: computes activations again in the backward pass")
    half, twice = config.data.batch_tokens // 2, 2 * config.training.accumulate
    hints.append(f"--data.batch-tokens {half} --training.accumulate {twice}: the same update in two parts")
    return hints


def said_of(row: Row, slice_: Slice, config: Config, arguments: Arguments) -> list[str]:
    """What the plan says, line by line."""
    mesh = " ".join(f"{name} {size}" for name, size in row["mesh"].items())
    count = f"{arguments.slices} slices of " if arguments.slices > 1 else ""
    lines = [
        f"{row['program']} on {count}{slice_.name} ({slice_.shape}, {slice_.chips} chips, {slice_.hosts} hosts), mesh "
        f"{mesh}, sources {list(row['source'])}, targets {list(row['target'])}"
    ]
    room = f"{row['room'] / GIB:.0f} GiB of a device"
    if not row["fits"]:
        used = f"{row['used'] / GIB:.2f} of the {room}" if row["used"] else row["said"]
        return [*lines, f"does not fit: {used}; try", *(f"  {hint}" for hint in advice(config))]
    parts = {
        "parameters": row["parameters"],
        "optimizer, batch" if not arguments.decode else "cache": row["arguments"] - row["parameters"],
        "activations and other temporaries": row["temporaries"],
        "outputs": row["outputs"],
        "code": row["code"],
    }
    collectives = ", ".join(
        f"{one['count']} {kind} ({one['bytes'] / 2**20:.1f} MiB)" for kind, one in row["collectives"].items()
    )
    poles = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in row["poles"].items())
    lines += [
        f"fits: {row['used'] / GIB:.2f} of the {room}: "
        + ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items()),
        f"collectives: {collectives or 'none'}",
        f"work: {row['flops'] / 1e9:.1f} GFLOP a chip; estimated {1e3 * row['seconds']:.1f} ms a step, "
        f"{row['tokens_per_second']:,.0f} target positions/s ({poles}; products at {arguments.efficiency:.0%} of the peak)",
    ]
    if row["encoders"]:
        lines.append(branches.Choice(**row["encoders"]).said())
    return lines + ([] if arguments.price is None else [price(row, config, arguments.price)])


def price(row: Row, config: Config, dollars: float) -> str:
    """What the whole run costs."""
    updates = config.training.max_steps
    if updates is None or row["program"] != "training step":
        return "price: of a training, and only where --training.max-steps says how long it is"
    hours = row["seconds"] * config.training.accumulate * updates / 3600
    cost = hours * row["chips"] * dollars
    return (
        f"price: {updates} updates take {hours:.1f} hours and {cost:,.0f} dollars, at {dollars:g} a chip hour"
    )


def plan(arguments: Arguments) -> int:
    """Compiles, prints, and says by the exit code whether it fits."""
    quiet()
    config, slice_ = arguments.config, parse_slice(arguments.slice, arguments.topology)
    if arguments.slices < 1:
        raise ConfigError(f"--slices {arguments.slices}: at least 1")
    prepare_environment()
    from flaxnmt.checks import check_model

    check_model(config)
    tried = meshes(slice_, arguments.slices) if arguments.sweep_mesh else [config.mesh]
    rows = []
    for mesh in tried:
        try:
            rows.append(measure(arguments, config.replace(mesh=mesh), slice_))
        except ConfigError as error:
            if not arguments.sweep_mesh:
                raise
            print(f"mesh data {mesh.data} fsdp {mesh.fsdp} model {mesh.model}: {error}")
    if arguments.json is not None:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    rows.sort(key=lambda row: (not row["fits"], row.get("seconds", 0)))
    for row in rows:
        for line in said_of(
            row,
            slice_,
            config.replace(mesh=MeshConfig(**row["mesh"], branches=config.mesh.branches)),
            arguments,
        ):
            print(line)
    return 0 if rows and rows[0]["fits"] else DOES_NOT_FIT


def parse(argv: list[str]) -> Arguments:
    """Arguments from a command line whose first word names a configuration."""
    if not argv or argv[0].startswith("-"):
        print(f"{__doc__}\nConfigurations: {', '.join(configs.names())}")
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    config = configs.load(argv[0])
    return parsed(
        lambda: tyro.cli(
            Arguments,
            args=argv[1:],
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
