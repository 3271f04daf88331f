"""How fast a corpus becomes batches, and what that would take for a corpus of any size.

    python -m experiments.benchmarks.data_throughput CORPUS [CORPUS ...] --pairs 300000 --vocab-size 32000

CORPUS is what `--train` of training takes. Its sentence pairs are repeated until there are `--pairs` of them
in two text files; reading and tokenising these, planning the buckets and loading batches are measured, each
in a process of its own, and scaled to `--project` pairs (36 million: WMT14 English-French). Linux only.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.benchmarks import common
from experiments.jobs import apart
from flaxnmt.data import tokenizers
from flaxnmt.data.batches import TrainBatches
from flaxnmt.data.buckets import padding_share, plan_buckets
from flaxnmt.data.readers import read
from flaxnmt.data.shards import TokenCorpus, tokenize_corpus

MIB = 1 << 20


@dataclass(frozen=True)
class Options:
    """Measures tokenising and loading of a corpus."""

    corpus: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Documents as JSON lines, TSV, or two parallel text files."""
    pairs: int = 200_000
    """Pairs to measure on; the corpus is repeated or cut to this size."""
    vocab_size: int = 8000
    max_length: int = 128
    batch_tokens: int = 4096
    buckets: int = 5
    workers: int = 0
    """Threads that tokenise; 0 is one per core."""
    batches: int = 1000
    """Batches to load."""
    project: int = 36_000_000
    """Pairs of the corpus that the last column is about."""
    results: Path = common.RESULTS


def peak_bytes() -> int:
    """Largest resident memory of this process so far, mapped files included."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def prepare(options: Options, folder: Path) -> None:
    """Writes the repeated corpus as two text files, and a vocabulary of both."""
    pairs = [sentence for document in read(*options.corpus) for sentence in document]
    for name in ("source", "target"):
        with open(folder / name, "w", encoding="utf-8") as file:
            for pair in islice(cycle(pairs), options.pairs):
                file.write(f"{getattr(pair, name)}\n")
    texts = (text for pair in pairs for text in (pair.source, pair.target))
    tokenizers.train("bpe", texts, options.vocab_size).save(folder / "vocabulary.model")


def tokenize(options: Options, folder: Path) -> dict[str, float]:
    """Text files to a tokenised corpus on disk."""
    tokenizer = tokenizers.load(folder / "vocabulary.model")
    encode = partial(tokenizer.encode, threads=1)
    before, start, cpu_start = peak_bytes(), time.perf_counter(), time.process_time()
    corpus = tokenize_corpus(
        read(folder / "source", folder / "target"),
        encode,
        encode,
        folder / "data",
        vocab_size=tokenizer.vocab_size,
        fingerprint={},
        workers=options.workers,
    )
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "memory": peak_bytes() - before,
        "disk": sum(path.stat().st_size for path in (folder / "data").iterdir()),
        "text": sum((folder / name).stat().st_size for name in ("source", "target")),
        "tokens": float(corpus.target.lengths.mean()),
    }


def load(options: Options, folder: Path) -> dict[str, Any]:
    """Tokenised corpus to batches."""
    before, start = peak_bytes(), time.perf_counter()
    corpus = TokenCorpus.open(folder / "data")
    lengths = corpus.source.lengths, corpus.target.lengths
    plan = plan_buckets(
        *lengths, max_length=options.max_length, batch_tokens=options.batch_tokens, buckets=options.buckets
    )
    batches = TrainBatches(corpus, plan, seed=1)
    index = {"index_seconds": time.perf_counter() - start, "index_memory": peak_bytes() - before}
    stream = batches.iterate(0)
    next(stream)
    start = time.perf_counter()
    rows = sum(len(next(stream)["target"]) for _ in range(options.batches))
    seconds = time.perf_counter() - start
    return index | {
        "batches_per_second": options.batches / seconds,
        "pairs_per_second": rows / seconds,
        "epoch": len(batches),
        "plan": str(plan),
        "padding": padding_share(plan, *lengths),
        "skipped": str(batches.skipped),
    }


def table(options: Options, tokenized: dict, loaded: dict) -> str:
    """The results in Markdown, measured and scaled; time, disk and the index grow with the pairs."""
    scale = options.project / options.pairs
    speed = options.pairs / tokenized["seconds"]
    rows = [
        ("tokenising, pairs/s", f"{speed:,.0f}", f"{speed:,.0f}"),
        ("tokenising, pairs per CPU second", *(f"{options.pairs / tokenized['cpu_seconds']:,.0f}",) * 2),
        (
            "tokenising, minutes",
            f"{tokenized['seconds'] / 60:.2f}",
            f"{tokenized['seconds'] * scale / 60:.1f}",
        ),
        ("tokenising, peak memory above the start, MiB", *(f"{tokenized['memory'] / MIB:.0f}",) * 2),
        ("text, bytes per pair", *(f"{tokenized['text'] / options.pairs:.0f}",) * 2),
        ("tokenised, bytes per pair", *(f"{tokenized['disk'] / options.pairs:.0f}",) * 2),
        ("tokenised, MiB", *(f"{tokenized['disk'] * s / MIB:,.0f}" for s in (1, scale))),
        (
            "plan and index at the start of a run, seconds",
            *(f"{loaded['index_seconds'] * s:.2f}" for s in (1, scale)),
        ),
        (
            "plan and index, peak memory, MiB",
            *(f"{loaded['index_memory'] * s / MIB:,.0f}" for s in (1, scale)),
        ),
        ("loading, batches/s", *(f"{loaded['batches_per_second']:,.0f}",) * 2),
        ("loading, pairs/s", *(f"{loaded['pairs_per_second']:,.0f}",) * 2),
        ("batches per epoch", *(f"{loaded['epoch'] * s:,.0f}" for s in (1, scale))),
    ]
    head = f"| | {options.pairs:,} pairs, measured | {options.project:,} pairs, scaled |\n|---|---:|---:|\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apart(prepare, options, folder)
        tokenized = apart(tokenize, options, folder)
        loaded = apart(load, options, folder)
    source, target = loaded["padding"]
    machine, names = common.machine(), [Path(name).name for name in options.corpus]
    text = (
        f"{machine['cpu']}, {os.cpu_count()} cores, {options.pairs:,} pairs of {' '.join(names)}.\n\n"
        f"{table(options, tokenized, loaded)}\n\n"
        f"Vocabulary of {options.vocab_size}, {tokenized['tokens']:.1f} target tokens a pair. Buckets, rows x (source, "
        f"target): {loaded['plan']}; padding {source:.1%} of the source and {target:.1%} of the target positions; left "
        f"out: {loaded['skipped']}."
    )
    print(text)
    row = {
        "options": common.settings(options) | {"corpus": names},
        "machine": machine,
        "tokenized": tokenized,
        "loaded": loaded,
    }
    common.write_results("data_throughput", "From text to batches", text, row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
