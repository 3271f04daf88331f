"""Operations of each kind of attention over a document, counted and fitted (Trankova et al. 2024, table 1).

Multiply-adds count as 2; projections of words and sentences are left out, as in the paper's table, where they are
the same for all kinds. Exponents are those of the least-squares line through the logarithms of the counts.

    python -m experiments.benchmarks.complexity
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.benchmarks import common
from flaxnmt.models import build
from flaxnmt.models.config import AttentionKind, DocumentConfig, Seq2SeqConfig

ROWS: tuple[tuple[str, AttentionKind, str], ...] = (
    ("self-attention, sentence by sentence", "sentence", "n m^2"),
    ("self-attention, whole document", "document", "n^2 m^2"),
    ("attention over sentence encodings", "context", "n^2 m + n m"),
    ("conditional attention, top t", "conditional", "n^2 m + n t m^2 + n m"),
    ("hierarchical conditional attention, top t", "hierarchical", "n m t (log n + m) + n m"),
)
ENCODINGS = "source2token encodings"


@dataclass(frozen=True)
class Options:
    """Count of operations."""

    sentences: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    words: tuple[int, ...] = (8, 16, 32, 64, 128)
    t: int = 4
    heads: int = 4
    d_model: int = 256
    results: Path = common.RESULTS


def operations(kind: AttentionKind | None, sentences: int, words: int, options: Options) -> int:
    """Operations of one layer on one document; of the sentence encodings alone if the kind is None."""
    document = DocumentConfig(t=options.t, dispatched=True)

    def count(d_model: int) -> int:
        config = replace(Seq2SeqConfig(d_model=d_model), document=document)
        if kind is None:
            return build.sentence_encoder(config, "source2token").flops(sentences, words)
        sublayer, length = build.attention(config, kind, options.heads), sentences * words
        return sum(sublayer.flops(d_model, length, length, sentences))

    # Counts are a D^2 + b D: the projections are the first term, and all else the second.
    return 4 * count(options.d_model // 2) - count(options.d_model)


def exponent(sizes: tuple[int, ...], counts: list[int]) -> float:
    """Slope of log(count) over log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(counts), 1)[0])


def measure(options: Options) -> list[dict]:
    """A row for each layer of the paper's table."""
    n, m = options.sentences[len(options.sentences) // 2], options.words[len(options.words) // 2]
    rows = []
    for name, kind, formula in (*ROWS, (ENCODINGS, None, "n m")):
        by_sentences = [operations(kind, size, m, options) for size in options.sentences]
        by_words = [operations(kind, n, size, options) for size in options.words]
        rows.append(
            {
                "layer": name,
                "formula": formula,
                "operations": operations(kind, n, m, options),
                "exponent_sentences": exponent(options.sentences, by_sentences),
                "exponent_words": exponent(options.words, by_words),
            }
        )
    return rows


def main(options: Options) -> None:
    rows = measure(options)
    n, m = options.sentences[len(options.sentences) // 2], options.words[len(options.words) // 2]
    header = f"| layer | paper | MFLOP at n = {n}, m = {m} | exponent of n | exponent of m |"
    lines = [
        f"| {row['layer']} | O({row['formula']}) | {row['operations'] / 1e6:.1f} | "
        f"{row['exponent_sentences']:.2f} | {row['exponent_words']:.2f} |"
        for row in rows
    ]
    conditions = (
        f"n from {options.sentences[0]} to {options.sentences[-1]} sentences at m = {m}, m from "
        f"{options.words[0]} to {options.words[-1]} words at n = {n}; t = {options.t}, {options.heads} heads, "
        f"d = {options.d_model}; multiply-adds count as 2, projections are left out."
    )
    text = "\n".join([conditions, "", header, "| --- | --- | --- | --- | --- |", *lines])
    print(text)
    row = {"options": common.settings(options), "layers": rows}
    common.write_results("complexity", "Operations of attention over documents", text, row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
