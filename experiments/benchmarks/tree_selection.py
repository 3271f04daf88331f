"""Selection of sentences by the tree beside flat selection, from 64 to 4096 sentences.

Every word of a document looks for the t sentences that are most relevant to it: flat selection scores all of
them, the tree about 2t nodes a level. Projections and encodings are left out on both sides; the sums of keys on
the paths of the tree are in. Both take turns.

    python -m experiments.benchmarks.tree_selection
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from experiments.benchmarks import common
from flaxnmt.attention.selection import select_sentences
from flaxnmt.attention.tree import level_sizes, traverse
from flaxnmt.attention.tree_costs import traverse_flops


@dataclass(frozen=True)
class Options:
    """Benchmark of selection."""

    sentences: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    words: int = 32
    """Words in a sentence, all of which select."""
    t: int = 4
    heads: int = 4
    head_size: int = 64
    rounds: int = 5
    cores: int = 2
    results: Path = common.RESULTS


def timed(function: Callable, *arguments) -> Callable[[], dict]:
    """Compiles and runs once; returns a function that times one run."""
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))

    def run() -> dict:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return {"seconds": time.perf_counter() - start}

    return run


def measure(sentences: int, options: Options) -> dict:
    """Median milliseconds of a document of so many sentences, and operations a word."""
    draw = partial(jax.random.normal, dtype=jnp.float32)
    key, *seeds = jax.random.split(jax.random.key(0), 2 + len(level_sizes(sentences)))
    words = (1, options.heads, options.words * sentences)
    query, upstream = draw(key, (*words, options.head_size)), draw(seeds[0], (*words, options.t))
    keys = tuple(
        draw(seed, (1, options.heads, size, options.head_size))
        for seed, size in zip(seeds[1:], level_sizes(sentences))
    )
    masks = tuple(jnp.ones((1, level.shape[2]), bool) for level in keys)

    def flat(query, keys):
        return select_sentences(query, keys[0], masks[0], options.t)

    def tree(query, keys):
        return traverse(query, keys, masks, options.t)

    def gradient(select, query, keys, upstream):
        return jax.grad(lambda *inputs: jnp.sum(select(*inputs).relevance * upstream), (0, 1))(query, keys)

    systems = {
        "flat forward": timed(flat, query, keys[:1]),
        "tree forward": timed(tree, query, keys),
        "flat both": timed(partial(gradient, flat), query, keys[:1], upstream),
        "tree both": timed(partial(gradient, tree), query, keys, upstream),
    }
    rounds = common.interleave(systems, options.rounds)
    milliseconds = {
        name: 1e3 * statistics.median(r["seconds"] for r in results) for name, results in rounds.items()
    }
    operations = {
        "flat": options.heads * 2 * options.head_size * sentences,
        "tree": options.heads * traverse_flops(sentences, options.t, options.head_size),
    }
    return {"sentences": sentences, "milliseconds": milliseconds, "operations_per_word": operations}


def wins_from(rows: list[dict], kind: str) -> int | None:
    """The number of sentences from which on the tree is faster at all sizes measured."""
    first = None
    for row in rows:
        if row["milliseconds"][f"tree {kind}"] >= row["milliseconds"][f"flat {kind}"]:
            first = None
        elif first is None:
            first = row["sentences"]
    return first


def describe(rows: list[dict]) -> str:
    """The table, and from which size the tree wins."""
    header = ["sentences"]
    for name in ("forward", "forward and backward"):
        header += [f"flat, {name} (ms)", f"tree, {name} (ms)", "flat / tree"]
    lines = []
    for row in rows:
        cells = [row["sentences"]]
        for kind in ("forward", "both"):
            flat, tree = (row["milliseconds"][f"{system} {kind}"] for system in ("flat", "tree"))
            cells += [flat, tree, flat / tree]
        lines.append([*cells, *row["operations_per_word"].values()])
    wins = {name: wins_from(rows, kind) for name, kind in (("forward", "forward"), ("with backward", "both"))}
    sentences = [
        f"{name} the tree is {f'faster from {size} sentences on' if size else 'not faster at the largest size'}"
        for name, size in wins.items()
    ]
    table = common.table((*header, "flat, operations a word", "tree, operations a word"), lines)
    return f"{table}\n\nOf the sizes measured, {'; '.join(sentences)}."


def main(options: Options) -> None:
    common.prepare(options.cores)
    rows = [measure(sentences, options) for sentences in options.sentences]
    machine = common.machine()
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, medians of {options.rounds} rounds in which both take turns; "
        f"all {options.words} words of every sentence select {options.t} sentences in each of {options.heads} heads "
        f"of size {options.head_size}, float32. Operations are multiply-adds counted as 2 of the scores (the tree's "
        "grow by a constant with each doubling, which a test checks on the compiled program)."
    )
    text = describe(rows)
    print(conditions, text, sep="\n\n")
    row = {"options": common.settings(options), "machine": machine, "sizes": rows}
    common.write_results(
        "tree_selection", "Selection by the tree", f"{conditions}\n\n{text}", row, options.results
    )


if __name__ == "__main__":
    common.run(main, Options, __doc__)
