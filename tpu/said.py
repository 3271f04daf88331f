"""What a plan says, line by line: bytes, collectives, work, time, price, and what to change where it does not fit."""

from flaxnmt.config import Config
from flaxnmt.sharding import in_few_words
from tpu import branches
from tpu.slices import GIB, Slice

Row = dict
"""What is known of one mesh, as JSON has it."""


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


def search_advice(config: Config, source: int, target: int) -> list[str]:
    """What makes a step of the search smaller, in the order in which to try it."""
    decoding, hints = config.decoding, []
    if decoding.batch_size > 1:
        hints.append(f"--decoding.batch-size {decoding.batch_size // 2}: fewer sentences at a time")
    if decoding.beam_size > 1:
        hints.append(f"--decoding.beam-size {decoding.beam_size // 2}: fewer hypotheses, each with a cache")
    hints.append(
        f"--source-length {source // 2} --target-length {target // 2}: as long as sentences are (--data.max-length, "
        "--decoding.max-length-factor)"
    )
    if config.model.compute_dtype == "float32":
        hints.append("--model.compute-dtype bfloat16: halves keys and values")
    return hints


def said_of(row: Row, slice_: Slice, config: Config, efficiency: float, dollars: float | None) -> list[str]:
    """What the plan says, line by line."""
    is_search = row["program"] == "beam step"
    mesh = " ".join(f"{name} {size}" for name, size in row["mesh"].items())
    count = f"{row['slices']} slices of " if row["slices"] > 1 else ""
    of = f" of {row['batches']} batches" if row["batches"] > 1 else ""
    lines = [
        f"{row['program']}{of} on {count}{slice_.name} ({slice_.shape}, {slice_.chips} chips, {slice_.hosts} hosts), mesh "
        f"{mesh}, sources {list(row['source'])}, targets {list(row['target'])}"
    ]
    if row["whole"]:
        lines.append(f"whole on every device: {in_few_words(row['whole'])}")
    room = f"{row['room'] / GIB:.0f} GiB of a device"
    if not row["fits"]:
        used = f"{row['used'] / GIB:.2f} of the {room}" if row["used"] else row["said"]
        hints = search_advice(config, row["source"][-1], row["target"][-1]) if is_search else advice(config)
        return [*lines, f"does not fit: {used}; try", *(f"  {hint}" for hint in hints)]
    kept = "cache" if is_search else "optimizer, batch" + ", gradients" * (row["batches"] > 1)
    parts = {
        "parameters": row["parameters"],
        kept: row["arguments"] - row["parameters"],
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
        f"{row['tokens_per_second']:,.0f} target positions/s ({poles}; products at {efficiency:.0%} of the peak)",
    ]
    if row["unknown_loops"]:
        lines.append(
            f"at least that: {row['unknown_loops']} loops do not say how often they go round, and count once"
        )
    if row["encoders"]:
        lines.append(branches.Choice(**row["encoders"]).said())
    return lines + ([] if dollars is None else [price(row, config, dollars)])


def price(row: Row, config: Config, dollars: float) -> str:
    """What the whole run costs, or 1000 updates of one that does not say how many it takes."""
    if row["program"] != "training step":
        return "price: of a training, which this is not"
    updates = config.training.max_steps or 1000
    hours = row["seconds"] * updates / 3600
    cost = hours * row["chips"] * dollars
    return (
        f"price: {updates} updates take {hours:.1f} hours and {cost:,.0f} dollars, at {dollars:g} a chip hour"
    )
