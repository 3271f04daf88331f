"""Beam search of flaxnmt beside Hugging Face `generate` and CTranslate2.

All systems translate the same sentences to outputs of one forced length, with a post-norm Transformer of one
size, random parameters, cached keys and values and float32, on the same cores; they take turns. CTranslate2
in int8 is shown for information. Peers run in their own environment (`make bench-peers-env`). Then our cache in
segments, of which steps read those in use, beside one array, with as much room as the outputs need and with more.

    python -m experiments.benchmarks.decoding --sizes small base
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.benchmarks import common, ours
from experiments.benchmarks.peers.sizes import SIZES, Size, summary
from flaxnmt.layers.segments import segments_here
from flaxnmt.training.meters import CompilationCounter

NAMES = {
    "flaxnmt": "flaxnmt",
    "huggingface": "Hugging Face `generate`",
    "ctranslate2": "CTranslate2 float32",
    "ctranslate2 int8": "CTranslate2 int8",
}


@dataclass(frozen=True)
class Options:
    """Decoding benchmark."""

    sizes: tuple[Literal["tiny", "small", "base"], ...] = ("small", "base")
    peers: tuple[Literal["huggingface", "ctranslate2"], ...] = ("huggingface", "ctranslate2")
    sentences: int = 64
    source_length: int = 15
    """Tokens of every source sentence, eos included."""
    target_length: int = 20
    """Tokens of every output: as many decoder steps in all systems."""
    beam: int = 4
    rounds: int = 3
    repetitions: int = 3
    """Timed translations of all sentences in a round."""
    rooms: tuple[int, ...] = (1, 2, 4)
    """Room in the cache, in lengths of the outputs, at which segments are compared with one array."""
    cores: int = 2
    peers_python: Path = common.PEERS_PYTHON
    results: Path = common.RESULTS


def run_ours(size: Size, source: np.ndarray, target_length: int, beam: int, **cache) -> Callable[[int], dict]:
    """Compiles the search; returns a function that times so many translations of all sentences."""
    parameters, translate = ours.make_translate(size, source, target_length, beam, **cache)
    translate()

    def round_of(repetitions: int) -> dict:
        seconds, tokens, lengths = [], [], set()
        for _ in range(repetitions):
            start = time.perf_counter()
            produced = translate()
            seconds.append(time.perf_counter() - start)
            tokens.append(sum(produced))
            lengths |= set(produced)
        return {"parameters": parameters, "lengths": sorted(lengths), **summary(seconds, tokens)}

    return round_of


def measure(name: str, options: Options) -> dict:
    """One size: rounds of all systems, the lengths that they produced, compilations after warm-up."""
    size = SIZES[name]
    source = common.random_ids(options.sentences, options.source_length, size, seed=1)
    ours_round = run_ours(size, source, options.target_length, options.beam)
    systems = {"flaxnmt": partial(ours_round, options.repetitions)}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        data = Path(directory) / "source.npz"
        np.savez(data, source=source)
        for peer in options.peers:
            arguments = {
                "--peer": peer,
                "--size": name,
                "--data": data,
                "--target-length": options.target_length,
                "--beam": options.beam,
                "--repetitions": options.repetitions,
                "--threads": options.cores,
            }
            systems[peer] = stack.enter_context(
                common.Peer(options.peers_python, "decode_peer.py", arguments)
            )
        with CompilationCounter() as compilations:
            rounds = common.interleave(systems, options.rounds)
    if "ctranslate2" in rounds:
        rounds["ctranslate2 int8"] = [{**result, **result["int8"]} for result in rounds["ctranslate2"]]
    lengths = {
        kind: sorted({n for result in results for n in result["lengths"]}) for kind, results in rounds.items()
    }
    return {
        "size": name,
        **common.compare(rounds),
        "lengths": lengths,
        "compilations": compilations.total,
        "caches": measure_caches(size, source, options),
    }


def measure_caches(size: Size, source: np.ndarray, options: Options) -> list[dict]:
    """Median milliseconds of a translation of all sentences by room and number of segments."""
    sizes = [(room, segments) for room in options.rooms for segments in (1, segments_here())]
    systems = {
        str((room, segments)): partial(
            run_ours(
                size,
                source,
                options.target_length,
                options.beam,
                room=room * options.target_length,
                segments=segments,
            ),
            options.repetitions,
        )
        for room, segments in sizes
    }
    rounds = common.interleave(systems, options.rounds)
    return [
        {
            "room": room * options.target_length,
            "segments": segments,
            "milliseconds": 1e3
            * statistics.median(s for result in rounds[str((room, segments))] for s in result["seconds"]),
        }
        for room, segments in sizes
    ]


def describe(row: dict) -> str:
    """The section of one size."""
    lengths = ", ".join(
        f"{NAMES[name]} {', '.join(map(str, values))}" for name, values in row["lengths"].items()
    )
    return (
        f"## {row['size']}\n\n{common.compare_table(row, NAMES)}\n\n"
        f"Lengths produced: {lengths}. Compilations after warm-up: {row['compilations']}.\n\n"
        f"{describe_caches(row['caches'])}"
    )


def describe_caches(caches: Sequence[dict]) -> str:
    """A line for each room, with the time of one array and of segments."""
    lines = [
        (one["room"], one["milliseconds"], parts["milliseconds"], parts["milliseconds"] / one["milliseconds"])
        for one, parts in zip(caches[::2], caches[1::2], strict=True)
    ]
    several = f"{segments_here()} segments, ms"
    return common.table(("room for an output", "one array, ms", several, "segments / one array"), lines)


def main(options: Options) -> None:
    common.prepare(options.cores)
    rows = [measure(name, options) for name in options.sizes]
    machine = common.machine()
    text = "\n\n".join(describe(row) for row in rows)
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, medians of {options.rounds} rounds of "
        f"{options.repetitions} in which the systems take turns; {options.sentences} sentences of "
        f"{options.source_length} tokens to {options.target_length} tokens each, beam {options.beam}. "
        "The peers' attention projections have biases, which is the whole difference in parameters. "
        "CTranslate2 takes all sentences as one batch or 32 at a time, whichever is faster."
    )
    print(conditions, text, sep="\n\n")
    row = {"options": common.settings(options), "machine": machine, "sizes": rows}
    common.write_results("decoding_speed", "Decoding speed", f"{conditions}\n\n{text}", row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
