"""Times beam search of a peer at a forced output length and prints one line of JSON."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
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
    run = {"huggingface": _huggingface, "ctranslate2": _ctranslate2}[options.peer]
    result = {"name": options.peer, "threads": options.threads, **run(SIZES[options.size], source, options)}
    json.dump(result, sys.stdout)
    print()


def _huggingface(size: Size, source: np.ndarray, options: argparse.Namespace) -> dict:
    import huggingface_model
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = huggingface_model.make_model(size)
    translate = huggingface_model.make_translate(model, source, options.target_length, options.beam)
    return {
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        **_measure(translate, options.repetitions),
    }


def _ctranslate2(size: Size, source: np.ndarray, options: argparse.Namespace) -> dict:
    import ctranslate2_model

    with tempfile.TemporaryDirectory() as directory:
        parameters = ctranslate2_model.build(size, directory)

        def measure(compute_type: str, max_batch_size: int) -> dict:
            translate = ctranslate2_model.make_translate(
                directory,
                source,
                options.target_length,
                options.beam,
                compute_type,
                options.threads,
                max_batch_size,
            )
            return {"max_batch_size": max_batch_size, **_measure(translate, options.repetitions)}

        # All sentences as one batch, or the 32 that CTranslate2's file translation takes: the faster counts.
        trials = {
            kind: [measure(kind, rows) for rows in (len(source), 32)] for kind in ("float32", "int8_float32")
        }
    best = {kind: max(rows, key=lambda row: row["tokens_per_second"]) for kind, rows in trials.items()}
    return {
        "versions": {"ctranslate2": version("ctranslate2")},
        "parameters": parameters,
        **best["float32"],
        "int8": best["int8_float32"],
    }


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
