"""Runs of a size for tests: a corpus of copied words on which a tiny model learns something in seconds."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = "one two three four five six seven eight nine ten".split()

# One shape everywhere, so that each program is compiled once.
TINY = (
    "discourse_demo --model.d-model 32 --model.dropout 0.05 "
    "--model.encoder.layers 1 --model.encoder.feed-forward 64 --model.encoder.attention.heads 4 "
    "--model.decoder.layers 1 --model.decoder.feed-forward 64 --model.decoder.attention.heads 4 "
    "--data.buckets 1 --data.batch-tokens 512 --optimizer.learning-rate 0.01 --optimizer.warmup-steps 20 "
    "--training.label-smoothing 0 --decoding.batch-size 8"
).split()

# Of one length too: noise on gates grows until the last update, which makes it part of the program. Its control networks learn
# so fast that gates are decided by then.
TINY_BUDGETS = [
    *TINY,
    *"--model.budget.encoder 1 0.5 --model.budget.decoder 1 0.5 --model.budget.blocks 2 --max-steps 120".split(),
    *"--model.budget.control-scale 5".split(),
]

TINY_DOCUMENTS = [
    "discourse_document",
    *TINY[1:],
    *"--model.document.layers hierarchical --model.document.always-keep-own --model.document.count unit".split(),
    *"--model.document.t 2 --data.rows-multiple 2 --data.max-sentences 6".split(),
    *"--optimizer.schedule inverse_sqrt --training.evaluate-translations 5".split(),
]

# Hardly trained: its scores and selections mean nothing, and their shapes and sums do.
TINY_DISCOURSE = (
    "discourse_document --train discourse:train:40 --dev discourse:dev:1 --test discourse:dev:1 "
    "--model.d-model 16 --model.document.layers sentence hierarchical --model.document.t 2 --model.decoder.layers 1 "
    "--data.tokenizer.vocab-size 300 --data.batch-tokens 1024 --data.buckets 1 --max-steps 6 "
    "--training.evaluate-every 3 --training.log-every 2"
).split()


def sentences(count: int, seed: float) -> list[str]:
    """Lines of one to seven words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 7))) for _ in range(count)]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_corpus(directory: Path, seed: int = 0) -> list[str]:
    """Writes train, dev and test files whose target is their source, unless they are there; the options that name them."""
    directory.mkdir(parents=True, exist_ok=True)
    options = []
    for number, (name, count) in enumerate({"train": 600, "dev": 8, "test": 8}.items(), start=seed):
        files = [directory / f"{name}.{side}" for side in ("source", "target")]
        if not files[1].exists():
            for file in files:
                write_lines(file, sentences(count, number))
        options += [f"--{name}", *map(str, files)]
    return options


def document_line(texts: list[str]) -> str:
    """A document whose target is its source, a paragraph for every two sentences, as a JSON line."""
    parts = [texts[i : i + 2] for i in range(0, len(texts), 2)]
    return json.dumps({"paragraphs": [{"src": part, "tgt": part} for part in parts]})


def write_documents(directory: Path) -> list[str]:
    """Like `write_corpus`: documents of up to six sentences as JSON lines; for evaluation all of one shape."""
    directory.mkdir(parents=True, exist_ok=True)
    options = []
    for seed, (name, count) in enumerate({"train": 200, "dev": 3, "test": 3}.items()):
        file = directory / f"{name}.jsonl"
        if not file.exists():
            draw = random.Random(seed)
            fewest = 1 if name == "train" else 5
            texts = [sentences(draw.randint(fewest, 6), seed=draw.random()) for _ in range(count)]
            write_lines(file, [document_line(text) for text in texts])
        options += [f"--{name}", str(file)]
    return options


def start(
    module: str, *arguments: str, platform: str = "cpu", variables: dict[str, str] | None = None, **options
) -> subprocess.Popen:
    """A process of a command, as a user starts it, on one device where the variables ask for no more."""
    environment = {**os.environ, "JAX_PLATFORMS": platform, "PYTHONPATH": str(ROOT)} | (variables or {})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], env=environment, text=True, **pipes | options
    )


def finish(process: subprocess.Popen, code: int = 0, text: str | None = None) -> tuple[str, str]:
    """What a process wrote to its output and error streams, once it has ended with this exit code."""
    out, err = process.communicate(text, timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}\n{err[-3000:]}"
    return out, err
