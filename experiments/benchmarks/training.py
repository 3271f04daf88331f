"""Training speed of flaxnmt beside JoeyNMT and Hugging Face, and its share of the machine's matmul peak.

All systems train a post-norm Transformer of one size, with dropout 0.1 at the same sites, label smoothing 0.1,
Adam and float32, on the same cores; they take turns, and only target tokens that are not padding count. They are
measured twice: a step alone on the same batches, and training as the toolkit's own command does it
(`training_commands`). Peers run in their own environment (`make bench-peers-env`).

    python -m experiments.benchmarks.training --sizes small base
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.benchmarks import common, ours, training_commands
from experiments.benchmarks.peers.sizes import DROPOUT, DROPOUT_SITES, PAD, SIZES, Size, summary
from experiments.benchmarks.profiles import in_words, profile
from flaxnmt.models.flops import forward_flops
from flaxnmt.training.meters import CompilationCounter, measure_matmul_peak

NAMES = {"flaxnmt": "flaxnmt", "joeynmt": "JoeyNMT", "huggingface": "Hugging Face MarianMTModel"}
Peer = Literal["joeynmt", "huggingface"]
Shape = tuple[int, int, int]
PROFILED = 3
"""Steps in a profile."""


@dataclass(frozen=True)
class Options:
    """Training benchmark."""

    sizes: tuple[Literal["tiny", "small", "base"], ...] = ("small", "base")
    peers: tuple[Peer, ...] = ("joeynmt", "huggingface")
    base_peers: tuple[Peer, ...] = ("huggingface",)
    """Peers at size base, where a step of JoeyNMT takes half a minute."""
    commands: training_commands.Commands = field(default_factory=training_commands.Commands)
    rounds: int = 3
    cycles: int = 2
    """Timed passes over the batches in a round; one at size base."""
    shapes: tuple[Shape, ...] = ((168, 24, 24), (128, 32, 32), (80, 48, 48))
    """(rows, source length, target length) of the batches: about 4096 padded target tokens each."""
    fill: float = 0.75
    """Shortest sentence of a batch as a share of its longest."""
    cores: int = 2
    peers_python: Path = common.PEERS_PYTHON
    results: Path = common.RESULTS


def make_batches(size: Size, shapes: tuple[Shape, ...], fill: float) -> list[dict]:
    """Random padded batches {"source": int32[B, S], "target": int32[B, T]}."""
    return [
        {
            "source": common.random_ids(rows, source, size, 2 * seed, fill),
            "target": common.random_ids(rows, target, size, 2 * seed + 1, fill),
        }
        for seed, (rows, source, target) in enumerate(shapes)
    ]


def save_batches(path: Path, batches: list[dict]) -> None:
    """As the peers read them."""
    np.savez(path, **{f"{side}_{i}": ids for i, batch in enumerate(batches) for side, ids in batch.items()})


def run_ours(training: ours.Training, batches: list[dict]) -> Callable[[int], dict]:
    """Compiles the step for every shape; returns a function that times so many passes over the batches."""
    for index in range(len(batches)):
        training.step(index)
    tokens = [int((batch["target"] != PAD).sum()) for batch in batches]

    def round_of(cycles: int) -> dict:
        losses, seconds = [], []
        for index in list(range(len(batches))) * cycles:
            start = time.perf_counter()
            losses.append(training.step(index))
            seconds.append(time.perf_counter() - start)
        return {"parameters": training.parameters, "losses": losses, **summary(seconds, tokens * cycles)}

    return round_of


def measure(name: str, options: Options) -> dict:
    """One size: rounds of all systems, matmul peaks before and after, compilations after warm-up."""
    size, cycles, peers = SIZES[name], options.cycles, options.peers
    if name == "base":
        cycles, peers = 1, options.base_peers
    batches = make_batches(size, options.shapes, options.fill)
    peaks = [measure_matmul_peak()]
    own = ours.make_training(size, batches)
    systems = {"flaxnmt": partial(run_ours(own, batches), cycles)}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        data = Path(directory) / "batches.npz"
        save_batches(data, batches)
        for peer in peers:
            arguments = {
                "--peer": peer,
                "--size": name,
                "--data": data,
                "--warmup": len(batches),
                "--steps": cycles * len(batches),
                "--threads": options.cores,
            }
            systems[peer] = stack.enter_context(common.Peer(options.peers_python, "train_peer.py", arguments))
        with CompilationCounter() as compilations:
            rounds = common.interleave(systems, options.rounds)
    peaks.append(measure_matmul_peak())
    shares = profile(lambda: [own.step(0) for _ in range(PROFILED)], own.program(0))
    # Forward once, backward twice; padding is multiplied as well, element-wise work counts as nothing.
    config = ours.make_model(size).config
    shapes = [((rows, source), (rows, target)) for rows, source, target in options.shapes]
    flops = 3 * sum(forward_flops(config, size.vocabulary, *pair) for pair in shapes) * cycles
    rate = statistics.median(flops / sum(result["seconds"]) for result in rounds["flaxnmt"])
    targets = np.concatenate([batch["target"].ravel() for batch in batches])
    return {
        "size": name,
        **common.compare(rounds, cycle=len(batches)),
        "compilations": compilations.total,
        "padding": float((targets == PAD).mean()),
        "peak_flops": peaks,
        "flops": rate,
        "peak_share": rate / statistics.median(peaks),
        "profile": shares,
    }


def describe(row: dict) -> str:
    """The section of one size."""
    before, after = (peak / 1e9 for peak in row["peak_flops"])
    return (
        f"## A step alone, {row['size']}\n\n{common.compare_table(row, NAMES)}\n\n"
        f"flaxnmt does {row['flops'] / 1e9:.1f} GFLOP/s of matrix products, {row['peak_share']:.2f} of the "
        f"matmul peak of the same process ({before:.1f} GFLOP/s before, {after:.1f} after). Profile, of the time of a step "
        f"on the first batch, what runs on either core, the first of these that does: {in_words(row['profile'])}. Padding: "
        f"{row['padding']:.0%} of the target positions. Compilations after warm-up: {row['compilations']}."
    )


def main(options: Options) -> None:
    common.prepare(options.cores)
    rows = [measure(name, options) for name in options.sizes]
    machine = common.machine()
    text = "\n\n".join(describe(row) for row in rows)
    by_command = {}
    if options.commands.rounds and "joeynmt" in options.peers:
        by_command = training_commands.measure(
            options.peers_python, SIZES["small"], options.commands, options.cores
        )
        text += f"\n\n## Training by command, small\n\n{training_commands.describe(by_command)}"
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, medians of {options.rounds} rounds in which the systems "
        f"take turns; batches (rows, source, target) {list(options.shapes)}; dropout {DROPOUT} on "
        f"{', '.join(DROPOUT_SITES)}. The peers' attention projections have biases, which is the whole "
        "difference in parameters."
    )
    print(conditions, text, sep="\n\n")
    row = {"options": common.settings(options), "machine": machine, "sizes": rows, "commands": by_command}
    common.write_results("training_speed", "Training speed", f"{conditions}\n\n{text}", row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
