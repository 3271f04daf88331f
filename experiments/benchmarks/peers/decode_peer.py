"""Times beam search of a peer at a forced output length, a round for every line of standard input."""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from rounds import serve
from sizes import SIZES, Size, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=("huggingface", "ctranslate2"), required=True)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--data", required=True, help="npz with `source`: int32, padded right with 0, eos 3")
    parser.add_argument("--target-length", type=int, default=20)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with np.load(options.data) as arrays:
        source = arrays["source"]
    make = {"huggingface": _huggingface, "ctranslate2": _ctranslate2}[options.peer]
    round_of = make(SIZES[options.size], source, options)
    serve(lambda: {"name": options.peer, "threads": options.threads, **round_of()})


def _huggingface(size: Size, source: np.ndarray, options: argparse.Namespace) -> Callable[[], dict]:
    import huggingface_model
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = huggingface_model.make_model(size)
    translate = huggingface_model.make_translate(model, source, options.target_length, options.beam)
    facts = {
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }
    return lambda: {**facts, **_measure(translate, options.repetitions)}


def _ctranslate2(size: Size, source: np.ndarray, options: argparse.Namespace) -> Callable[[], dict]:
    import ctranslate2_model

    directory = tempfile.TemporaryDirectory()
    parameters = ctranslate2_model.build(size, directory.name)
    facts = {"versions": {"ctranslate2": version("ctranslate2")}, "parameters": parameters}

    def measure(compute_type: str, max_batch_size: int) -> dict:
        # One translator at a time: the threads of another one could still be spinning.
        translate = ctranslate2_model.make_translate(
            directory.name,
            source,
            options.target_length,
            options.beam,
            compute_type,
            options.threads,
            max_batch_size,
        )
        return {"max_batch_size": max_batch_size, **_measure(translate, options.repetitions)}

    def fastest(compute_type: str) -> dict:
        # All sentences as one batch, or the 32 that CTranslate2's file translation takes: the faster counts.
        measured = [measure(compute_type, rows) for rows in (len(source), 32)]
        return max(measured, key=lambda row: row["tokens_per_second"])

    return lambda: {**facts, **fastest("float32"), "int8": fastest("int8_float32")}


def _measure(translate: Callable[[], list[int]], repetitions: int) -> dict:
    """Speed and the lengths really produced, after one translation that does not count."""
    lengths = translate()
    seconds, tokens = [], []
    for _ in range(repetitions):
        start = time.perf_counter()
        lengths = translate()
        seconds.append(time.perf_counter() - start)
        tokens.append(sum(lengths))
    return {"lengths": sorted(set(lengths)), **summary(seconds, tokens)}


if __name__ == "__main__":
    main()
