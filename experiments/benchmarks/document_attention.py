"""Dispatched conditional attention beside attention over the whole document, forward and backward.

Both start from queries, keys and values (and, for conditional attention, the selector's queries and keys), so
that the projections, which are the same, hide nothing. One document in float32; the forms take turns.

    python -m experiments.benchmarks.document_attention --sentences 32 64 128 256
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import common
from flaxnmt.attention.dispatch import conditional_attention
from flaxnmt.attention.dot_product import dot_product_attention
from flaxnmt.attention.selection import select_sentences

MEGABYTE = 2**20


@dataclass(frozen=True)
class Options:
    """Document attention benchmark."""

    sentences: tuple[int, ...] = (32, 64, 128, 256)
    words: int = 32
    """Words of a sentence."""
    t: int = 4
    """Sentences that a word looks at."""
    heads: int = 4
    head_size: int = 64
    rounds: int = 5
    repetitions: int = 3
    """Timed calls in a round; one of the whole document where it takes more than a second."""
    cores: int = 2
    results: Path = common.RESULTS


def whole_document(query, key, value, *_):
    """[1, H, L, K] over all words of the document."""
    return dot_product_attention(query, key.reshape(query.shape), value.reshape(query.shape))


def conditional(query, key, value, selector_query, selector_key, t: int):
    """[1, H, L, K] over the words of t sentences that each word selects."""
    word_mask = jnp.ones((1, *key.shape[2:4]), bool)
    selection = select_sentences(selector_query, selector_key, word_mask.any(-1), t)
    return conditional_attention(query, key, value, word_mask, selection)


def make_inputs(sentences: int, options: Options) -> tuple[jax.Array, ...]:
    """Random queries, keys, values, selector queries and keys, and the gradient that comes from above."""
    random = np.random.default_rng(0)
    heads, size = options.heads, options.head_size
    rows = (1, heads, sentences * options.words, size)
    words = (1, heads, sentences, options.words, size)
    shapes = (rows, words, words, rows, (1, heads, sentences, size), rows)
    return tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)


def compile_gradient(form: Callable, inputs: tuple[jax.Array, ...]):
    """The compiled function of the inputs that computes the output's product with the last, and all gradients."""

    def loss(upstream, *arrays):
        return (form(*arrays) * upstream).sum()

    *arrays, upstream = inputs
    return jax.jit(jax.value_and_grad(loss, range(1, 1 + len(arrays)))).lower(upstream, *arrays).compile()


def timed(compiled, inputs: tuple[jax.Array, ...], repetitions: int) -> list[float]:
    """Seconds of each call, one at least and no more once they took a second."""
    *arrays, upstream = inputs
    seconds: list[float] = []
    while not seconds or len(seconds) < repetitions and sum(seconds) < 1:
        start = time.perf_counter()
        jax.block_until_ready(compiled(upstream, *arrays))
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(sentences: int, options: Options) -> dict:
    """One document: median seconds and temporaries of both forms, and how many times faster is conditional."""
    inputs = make_inputs(sentences, options)
    forms = {"whole": whole_document, "conditional": partial(conditional, t=options.t)}
    compiled = {name: compile_gradient(form, inputs) for name, form in forms.items()}
    systems = {name: partial(timed, call, inputs, options.repetitions) for name, call in compiled.items()}
    for run in systems.values():
        run()
    rounds = common.interleave(systems, options.rounds)
    medians = {name: [statistics.median(result) for result in results] for name, results in rounds.items()}
    return {
        "sentences": sentences,
        "seconds": {name: statistics.median(values) for name, values in medians.items()},
        "range": {name: [min(values), max(values)] for name, values in medians.items()},
        "temporaries": {
            name: call.memory_analysis().temp_size_in_bytes / MEGABYTE for name, call in compiled.items()
        },
        "ratio": statistics.median(medians["whole"]) / statistics.median(medians["conditional"]),
    }


def describe(rows: list[dict]) -> str:
    """The table of all documents."""
    header = (
        "sentences", "whole document, ms", "conditional, ms", "times faster",
        "whole document, MiB", "conditional, MiB", "MiB per doubling",
    )  # fmt: skip
    lines = []
    for before, row in zip([None, *rows], rows):
        growth = "-"
        if before is not None:
            ratio = row["temporaries"]["conditional"] / before["temporaries"]["conditional"]
            growth = float(ratio ** (1 / np.log2(row["sentences"] / before["sentences"])))
        seconds, temporaries = row["seconds"], row["temporaries"]
        lines.append(
            (
                row["sentences"],
                1e3 * seconds["whole"],
                1e3 * seconds["conditional"],
                row["ratio"],
                temporaries["whole"],
                temporaries["conditional"],
                growth,
            )
        )
    return common.table(header, lines)


def main(options: Options) -> None:
    common.prepare(options.cores)
    rows = [measure(sentences, options) for sentences in options.sentences]
    machine = common.machine()
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, float32, forward and backward, one document of sentences of "
        f"{options.words} words, t = {options.t}, {options.heads} heads of {options.head_size}, without the "
        f"projections; medians of {options.rounds} rounds in which the forms take turns. MiB are XLA's temporaries."
    )
    text = f"{conditions}\n\n{describe(rows)}"
    print(text)
    row = {"options": common.settings(options), "machine": machine, "documents": rows}
    common.write_results("document_attention", "Attention over documents", text, row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
