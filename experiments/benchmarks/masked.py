"""Training speed of a masked language model beside Hugging Face's BertForMaskedLM on PyTorch.

Both train a post-norm encoder of one size with biases, GELU, learned positions, dropout 0.1 on embeddings, attention
weights and the output of every sub-layer, AdamW and float32, on the same sequences and cores, and take turns; tokens
that are not padding count. flaxnmt draws its masks within the step, and computes queries, feed-forward network of the
last layer and logits of chosen tokens alone; for the peer masks are drawn beforehand, and it computes those of all
tokens. It runs in an environment of its own (`make bench-peers-env`).

    python -m experiments.benchmarks.masked
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

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks import common
from experiments.benchmarks.ours import parameter_count
from experiments.benchmarks.peers.sizes import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DROPOUT,
    LEARNING_RATE,
    PAD,
    SIZES,
    Size,
    summary,
)
from flaxnmt.config import OptimizerConfig, TrainingConfig
from flaxnmt.data.tokenizers import ENCODER_SYMBOLS, MASK, SPECIALS
from flaxnmt.models.config import EncoderConfig, EncoderOnlyConfig, MultiHead
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.flops import sequence_flops
from flaxnmt.sharding import make_mesh, use_mesh
from flaxnmt.training.masking import RATE, choose, corrupt
from flaxnmt.training.meters import CompilationCounter, measure_matmul_peak
from flaxnmt.training.objectives import make_objective
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.state import init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep

NAMES = {"flaxnmt": "flaxnmt", "huggingface": "Hugging Face BertForMaskedLM"}
WORDS = len(SPECIALS) + len(ENCODER_SYMBOLS)


@dataclass(frozen=True)
class Options:
    """Masked language modelling benchmark."""

    sizes: tuple[Literal["tiny", "small", "base"], ...] = ("small", "base")
    layers: int = 4
    length: int = 128
    tokens: int = 4096
    """Of a batch, padding included."""
    batches: int = 3
    fill: float = 0.75
    """Shortest sequence of a batch as a share of its longest."""
    rounds: int = 3
    cycles: int = 2
    """Timed passes over the batches in a round."""
    peer: bool = True
    cores: int = 2
    peers_python: Path = common.PEERS_PYTHON
    results: Path = common.RESULTS


def make_model(size: Size, options: Options) -> EncoderOnly:
    config = EncoderOnlyConfig(
        d_model=size.d_model,
        encoder=EncoderConfig(options.layers, MultiHead(size.heads), size.feed_forward),
        norm="post",
        positions="learned",
        max_positions=options.length,
        activation="gelu",
        biases=True,
        dropout=DROPOUT,
        hidden_dropout=0.0,
    )
    return EncoderOnly(config, size.vocabulary)


def make_batches(size: Size, options: Options) -> list[np.ndarray]:
    """Padded sequences [B, L] of words."""
    rows = options.tokens // options.length
    ids = (
        common.random_ids(rows, options.length, size, seed, options.fill) for seed in range(options.batches)
    )
    return [np.where(batch == PAD, PAD, np.maximum(batch, WORDS)) for batch in ids]


def save_batches(path: Path, batches: Sequence[np.ndarray], size: Size) -> None:
    """As the peer reads them: with masks, and labels where something is to be said."""
    arrays, mask = {}, len(SPECIALS) + ENCODER_SYMBOLS.index(MASK)
    for i, tokens in enumerate(batches):
        keys = jax.random.split(jax.random.key(i))
        chosen, counts = choose(keys[0], jnp.asarray(tokens >= WORDS))
        words = WORDS, size.vocabulary
        arrays[f"tokens_{i}"] = corrupt(keys[1], jnp.asarray(tokens), chosen, counts, mask, words)
        rows = np.broadcast_to(np.arange(len(tokens))[:, None], chosen.shape)
        places = rows[np.asarray(counts)], np.asarray(chosen)[np.asarray(counts)]
        labels = np.full_like(tokens, -100)
        labels[places] = tokens[places]
        arrays[f"labels_{i}"] = labels
    np.savez(path, **arrays)


def run_ours(size: Size, batches: Sequence[np.ndarray], options: Options) -> Callable[[int], dict]:
    """Compiles the step; returns a function that times so many passes over the batches."""
    model = make_model(size, options)
    adam = OptimizerConfig("adamw", *ADAM_BETAS, ADAM_EPSILON, weight_decay=0.01)
    schedule = optax.constant_schedule(LEARNING_RATE)
    optimizer, mesh = make_optimizer(adam, schedule), make_mesh(devices=jax.devices()[:1])
    with use_mesh(mesh):
        init = partial(model.init, tokens=jnp.ones((1, 8), jnp.int32))
        _, shardings = state_shardings(init, optimizer, False, mesh)
        state = init_state(init, optimizer, False, shardings, seed=1)
    step = TrainStep(make_objective(model, TrainingConfig()), optimizer, schedule)
    update = CompiledStep(step, shardings, seed=1)
    counts = [int((tokens != PAD).sum()) for tokens in batches]

    def train(index: int) -> float:
        nonlocal state
        tokens = batches[index]
        with use_mesh(mesh):
            state, metrics = update(state, [{"tokens": tokens, "packed": np.zeros_like(tokens)}])
        return float(metrics["loss"])

    train(0)

    def round_of(cycles: int) -> dict:
        losses, seconds = [], []
        for index in list(range(len(batches))) * cycles:
            start = time.perf_counter()
            losses.append(train(index))
            seconds.append(time.perf_counter() - start)
        parameters = parameter_count(state.params)
        return {"parameters": parameters, "losses": losses, **summary(seconds, counts * cycles)}

    return round_of


def measure(name: str, options: Options) -> dict:
    """One size: rounds of both systems, matmul peaks before and after, compilations after warm-up."""
    size = SIZES[name]
    batches = make_batches(size, options)
    peaks = [measure_matmul_peak()]
    systems = {"flaxnmt": partial(run_ours(size, batches, options), options.cycles)}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        data = Path(directory) / "batches.npz"
        save_batches(data, batches, size)
        if options.peer:
            arguments = {
                "--size": name,
                "--layers": options.layers,
                "--data": data,
                "--warmup": 1,
                "--steps": options.cycles * len(batches),
                "--threads": options.cores,
            }
            peer = common.Peer(options.peers_python, "bert_peer.py", arguments)
            systems["huggingface"] = stack.enter_context(peer)
        with CompilationCounter() as compilations:
            rounds = common.interleave(systems, options.rounds)
    peaks.append(measure_matmul_peak())
    outputs = -int(-RATE * options.length // 1)
    config = make_model(size, options).config
    flops = 3 * sequence_flops(config, size.vocabulary, batches[0].shape, outputs) * len(batches)
    rate = statistics.median(flops * options.cycles / sum(result["seconds"]) for result in rounds["flaxnmt"])
    return {
        "size": name,
        **common.compare(rounds, cycle=len(batches)),
        "compilations": compilations.total,
        "padding": float(np.mean([(tokens == PAD).mean() for tokens in batches])),
        "peak_flops": peaks,
        "flops": rate,
        "peak_share": rate / statistics.median(peaks),
    }


def describe(row: dict, options: Options) -> str:
    """The section of one size."""
    size = SIZES[row["size"]]
    return (
        f"## {row['size']}: {options.layers} layers, {size.d_model}, {size.heads} heads, {size.feed_forward}\n\n"
        f"{common.compare_table(row, NAMES, unit='tokens/s')}\n\n"
        f"flaxnmt does {row['flops'] / 1e9:.1f} GFLOP/s of matrix products, {row['peak_share']:.2f} of the matmul peak "
        f"of the same process ({' and '.join(f'{peak / 1e9:.1f}' for peak in row['peak_flops'])} GFLOP/s before and "
        f"after). Padding: {row['padding']:.0%}. Compilations after warm-up: {row['compilations']}."
    )


def main(options: Options) -> None:
    common.prepare(options.cores)
    rows, machine = [measure(name, options) for name in options.sizes], common.machine()
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, medians of {options.rounds} rounds in which the systems take turns; "
        f"sequences of {options.length} tokens, {options.tokens} a batch, 8000 pieces; dropout {DROPOUT} on embeddings, "
        "attention weights and the output of every sub-layer; AdamW, float32. flaxnmt computes the logits, and the "
        "rows of the last layer, of the 15% of tokens that are to be said, and Hugging Face of all."
    )
    text = "\n\n".join([conditions, *(describe(row, options) for row in rows)])
    print(text)
    row = {"options": common.settings(options), "machine": machine, "sizes": rows}
    common.write_results(
        "masked_training_speed", "Training speed of a masked language model", text, row, options.results
    )


if __name__ == "__main__":
    common.run(main, Options, __doc__)
