"""Times training steps of a peer on given batches, a round for every line of standard input.

The batches are those of flaxnmt: an npz of `source_i`, `target_i` (int32, padded right with 0, eos 3).
"""

import argparse
import importlib
import time
from importlib.metadata import version

import numpy as np
import torch
from rounds import serve
from sizes import DROPOUT, DROPOUT_SITES, PAD, SIZES, summary

PEERS = {"joeynmt": "joeynmt_training", "huggingface": "huggingface_model"}
PACKAGES = {"joeynmt": "joeynmt", "huggingface": "transformers"}


def read_batches(path: str) -> list[dict]:
    """Batches without the columns that are padding in every row, as a peer's own collation makes them."""
    with np.load(path) as arrays:
        count = sum(name.startswith("source_") for name in arrays)
        sides = [{side: arrays[f"{side}_{i}"] for side in ("source", "target")} for i in range(count)]
    return [
        {side: ids[:, : int((ids != PAD).sum(1).max())] for side, ids in batch.items()} for batch in sides
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    peer = importlib.import_module(PEERS[options.peer])
    batches = read_batches(options.data)
    model, step = peer.make_step(SIZES[options.size], batches)
    for number in range(options.warmup):
        step(number % len(batches))
    facts = {
        "name": options.peer,
        "versions": {name: version(name) for name in (PACKAGES[options.peer], "torch")},
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "threads": torch.get_num_threads(),
        "attention": peer.ATTENTION,
        "dropout": {"rate": DROPOUT, "sites": DROPOUT_SITES, "modules": _dropout_sites(model)},
    }

    def round_of() -> dict:
        losses, seconds, tokens = [], [], []
        for number in range(options.steps):
            index = number % len(batches)
            start = time.perf_counter()
            losses.append(step(index))
            seconds.append(time.perf_counter() - start)
            tokens.append(int((batches[index]["target"] != PAD).sum()))
        return {**facts, "losses": losses, **summary(seconds, tokens)}

    serve(round_of)


def _dropout_sites(model: torch.nn.Module) -> dict:
    """Rates that the built model really holds, by module name."""
    rates: dict = {}
    for name, module in model.named_modules():
        found = {"p": module.p} if isinstance(module, torch.nn.Dropout) else {}
        for field in ("dropout", "activation_dropout"):
            if isinstance(getattr(module, field, None), float):
                found[field] = getattr(module, field)
        if found:
            rates[name] = found
    return rates


if __name__ == "__main__":
    main()
