"""Training as a user starts it: the command of flaxnmt and that of JoeyNMT on the same two text files.

Each command cuts the text into tokens, makes its batches of 4096 tokens, and logs its own speed: target tokens,
end symbols counted and padding not, by its own clock. JoeyNMT takes sentences in random order until rows x longest
row reaches 4096, as its documentation says ("no bucketing"); flaxnmt sorts them into a few shapes. That difference
belongs to the toolkits, so here it counts; `training.py` also has both on the same batches.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from experiments.benchmarks.common import table
from experiments.benchmarks.peers.sizes import ADAM_BETAS, DROPOUT, LABEL_SMOOTHING, Size
from flaxnmt.errors import RunError
from flaxnmt.training.metrics import read_metrics
from flaxnmt.typing import Int

LOG_MEAN, LOG_DEVIATION, LOG_CORRELATION = (3.18, 3.27), (0.59, 0.60), 0.96
"""Of the logarithms of source and target lengths of English-German news (WMT newstest, 8k joint BPE pieces)."""
LONGEST = 100
SPECIAL = 4
BATCH_TOKENS = 4096
WARMUP = 4000


@dataclass(frozen=True)
class Commands:
    """Training by the commands of flaxnmt and JoeyNMT, at size small."""

    rounds: int = 2
    """Runs of each command, in turns; none with 0."""
    pairs: int = 20000
    """Sentence pairs of the text."""
    updates: int = 32
    """Of flaxnmt, which compiles within the first ones."""
    peer_updates: int = 12
    every: int = 4
    """Updates in an interval."""


@dataclass(frozen=True)
class Text:
    """Parallel text of a given number of pairs, in which every word of the vocabulary occurs.

    Attributes:
      directory: holds `train.src`, `train.trg`, `dev.src`, `dev.trg` and `words.txt`, the vocabulary.
    """

    directory: Path

    @classmethod
    def write(cls, directory: Path, pairs: int, size: Size, seed: int = 1) -> "Text":
        random = np.random.default_rng(seed)
        words = np.array([f"w{number}" for number in range(size.vocabulary - SPECIAL)])
        (directory / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        for name, count in (("train", pairs), ("dev", 8)):
            for side, lengths in zip(("src", "trg"), sentence_lengths(count, random), strict=True):
                ids = np.resize(random.permutation(len(words)), lengths.sum())
                lines = np.split(words[random.permutation(ids)], np.cumsum(lengths)[:-1])
                text = "".join(f"{' '.join(line)}\n" for line in lines)
                (directory / f"{name}.{side}").write_text(text, encoding="utf-8")
        return cls(directory)


def sentence_lengths(pairs: int, random: np.random.Generator) -> tuple[Int[np.ndarray, "P"], ...]:
    """Words of each source and target: log-normal and correlated, as real text has them; 1 to LONGEST."""
    cross = LOG_CORRELATION * LOG_DEVIATION[0] * LOG_DEVIATION[1]
    covariance = [[LOG_DEVIATION[0] ** 2, cross], [cross, LOG_DEVIATION[1] ** 2]]
    lengths = np.exp(random.multivariate_normal(LOG_MEAN, covariance, 2 * pairs)).round().astype(int)
    kept = lengths[(lengths.max(1) <= LONGEST) & (lengths.min(1) >= 1)][:pairs]
    return kept[:, 0], kept[:, 1]


def run(command: list[str], environment: dict[str, str]) -> None:
    """Raises RunError with the last line of a command that fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunError(f"`{' '.join(command)}` failed: {last}")


def steady(directory: Path) -> list[dict]:
    """The intervals of a run's log in which nothing was compiled, but for the first."""
    rows = [row for row in read_metrics(directory) if row["kind"] == "train"]
    return [row for before, row in zip(rows, rows[1:]) if row["compilations"] == before["compilations"]]


def train_ours(cache: Path, text: Text, directory: Path, size: Size, updates: int, every: int) -> dict:
    """`python -m experiments.train`: tokens per second of each interval in which nothing was compiled.

    Programs that it compiles are kept in `cache`, for the next round.
    """
    path = text.directory
    options = {
        "run": directory,
        "max-steps": updates,
        "model.norm": "post",
        "model.d-model": size.d_model,
        **{f"model.{stack}.layers": size.layers for stack in ("encoder", "decoder")},
        **{f"model.{stack}.feed-forward": size.feed_forward for stack in ("encoder", "decoder")},
        **{f"model.{stack}.attention.heads": size.heads for stack in ("encoder", "decoder")},
        "model.dropout": DROPOUT,
        "data.tokenizer.kind": "word",
        "data.tokenizer.vocab-size": size.vocabulary,
        "data.batch-tokens": BATCH_TOKENS,
        "optimizer.schedule": "noam",
        "optimizer.warmup-steps": WARMUP,
        "training.label-smoothing": LABEL_SMOOTHING,
        "training.log-every": every,
        "training.evaluate-every": updates,
        "training.evaluate-translations": 0,
        "training.metric": "loss",
        "training.average": "none",
    }
    files = ["--train", path / "train.src", path / "train.trg", "--dev", path / "dev.src", path / "dev.trg"]
    flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "experiments.train", "text_small", *map(str, files), *flags]
    run(command, {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache)})
    intervals = steady(directory)
    record = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    return {
        "rates": [row["target_tokens_per_second"] for row in intervals],
        "padding": statistics.mean(row["padding"] for row in intervals),
        "parameters": record["parameters"],
    }


def train_joeynmt(
    python: Path, threads: int, text: Text, directory: Path, size: Size, updates: int, every: int
) -> dict:
    """`python -m joeynmt train`: tokens per second as its log says, the first interval left out."""
    path, log = text.directory, directory / "train.log"
    config = path / "joeynmt.yaml"
    # JSON is YAML.
    config.write_text(json.dumps(joeynmt_config(text, directory, size, updates, every)), encoding="utf-8")
    run(
        [str(python), "-m", "joeynmt", "train", str(config), "--skip-test"],
        {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
    )
    content = log.read_text(encoding="utf-8")
    rates = [float(rate) for rate in re.findall(r"Tokens per Sec:\s+([\d.]+)", content)]
    return {"rates": rates[1:], "parameters": int(re.search(r"Total params: (\d+)", content)[1])}


def joeynmt_config(text: Text, directory: Path, size: Size, updates: int, every: int) -> dict:
    """The same model, optimizer and dropout; everything that is not named here is JoeyNMT's default."""
    stack = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.d_model,
        "ff_size": size.feed_forward,
        "dropout": DROPOUT,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": DROPOUT},
    }
    side = {"level": "word", "max_length": LONGEST, "voc_file": str(text.directory / "words.txt")}
    return {
        "name": "benchmark",
        "model_dir": str(directory),
        "use_cuda": False,
        "normalization": "tokens",
        "data": {
            "train": str(text.directory / "train"),
            "dev": str(text.directory / "dev"),
            "dataset_type": "plain",
            "src": {"lang": "src", **side},
            "trg": {"lang": "trg", **side},
        },
        "testing": {},
        "training": {
            "optimizer": "adam",
            "adam_betas": list(ADAM_BETAS),
            "scheduling": "noam",
            "learning_rate_warmup": WARMUP,
            "learning_rate_min": 0.0,
            "label_smoothing": LABEL_SMOOTHING,
            "batch_size": BATCH_TOKENS,
            "batch_type": "token",
            "updates": updates,
            "logging_freq": every,
            "validation_freq": 1000 * every,
        },
        "model": {
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }


def one_round(
    python: Path, size: Size, options: Commands, threads: int, cache: Path, number: int
) -> dict[str, dict]:
    """One run of each command; each second round begins with the peer's."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        text = Text.write(directory, options.pairs, size, seed=number + 1)
        own, peer = partial(train_ours, cache), partial(train_joeynmt, python, threads)
        systems = [("flaxnmt", own, options.updates), ("joeynmt", peer, options.peer_updates)]
        return {
            system: train(text, directory / system, size, updates, options.every)
            for system, train, updates in (systems if number % 2 == 0 else systems[::-1])
        }


def measure(python: Path, size: Size, options: Commands, threads: int) -> dict:
    """Both commands in turns, on the same text: their tokens per second in every interval of all rounds."""
    with tempfile.TemporaryDirectory() as cache:
        results = [
            one_round(python, size, options, threads, Path(cache), number) for number in range(options.rounds)
        ]
    rounds = {name: [result[name] for result in results] for name in ("flaxnmt", "joeynmt")}
    rates = {name: [rate for one in ones for rate in one["rates"]] for name, ones in rounds.items()}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "rates": rates,
        "tokens_per_second": medians,
        "ratio": medians["flaxnmt"] / medians["joeynmt"],
        "parameters": {name: ones[0]["parameters"] for name, ones in rounds.items()},
        "padding": statistics.mean(one["padding"] for one in rounds["flaxnmt"]),
    }


def describe(row: dict) -> str:
    """The section of a size."""
    names = {"flaxnmt": "`python -m experiments.train`", "joeynmt": "`python -m joeynmt train`"}
    lines = [
        (
            names[name],
            row["parameters"][name],
            speed,
            f"{min(row['rates'][name]):.0f} to {max(row['rates'][name]):.0f}",
            row["tokens_per_second"]["flaxnmt"] / speed,
        )
        for name, speed in row["tokens_per_second"].items()
    ]
    header = ("command", "parameters", "target tokens/s", "range", "flaxnmt / command")
    return (
        "Each toolkit's own command on the same text, with its own batches of 4096 tokens (rows x longest row; "
        "flaxnmt puts sentences of like length together, JoeyNMT takes them as they come), data loading and "
        "logging included; lengths are drawn as those of news text (log-normal, source mean 28, target 31 "
        "words, longest 100); speeds are what each command logs, in the intervals after warm-up.\n\n"
        f"{table(header, lines)}\n\n"
        f"Padding in flaxnmt's batches: {row['padding']:.0%} of the positions of both sides."
    )
