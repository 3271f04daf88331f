"""Time of each encoder stack, forward and backward, beside self-attention and beside PyTorch.

All stacks have the same width and depth, the norms, skips and feed-forward networks of Hu et al. 2023, float32, no
dropout, and 4096 tokens without padding; gradients of the parameters and of the input. Systems take turns. The LSTM is
also compared with `flax.linen.RNN`. The products of the feed-forward networks are measured by themselves, too: what a
stack could reach at most with these kernels. Peers run in their own environment (`make bench-peers-env`).

    python -m experiments.benchmarks.encoders
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import linen as nn

from experiments.benchmarks import common
from flaxnmt.encoders.fnet import FourierMixing
from flaxnmt.layers.context import Context
from flaxnmt.layers.linear import linear
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.models import build
from flaxnmt.models.config import EncoderConfig, MultiHead, Seq2SeqConfig, parse_branch
from flaxnmt.models.encoder import Encoder, EncoderLayer
from flaxnmt.models.flops import encoder_flops
from flaxnmt.sharding import unbox

KINDS = ("attention", "lstm", "convs2s", "fnet", "transform", "static_expansion")
"""`transform` is FNet without its feed-forward networks: what `torch.fft` has to do with it."""

PEERS = (*KINDS[:-1], "products")


@dataclass(frozen=True)
class Options:
    """Benchmark of encoder stacks."""

    layers: int = 6
    d_model: int = 256
    heads: int = 4
    feed_forward: int = 1024
    rows: int = 128
    length: int = 32
    rounds: int = 3
    repetitions: int = 5
    """Timed passes in a round."""
    peers: bool = True
    """Compare with PyTorch."""
    cores: int = 2
    peers_python: Path = common.PEERS_PYTHON
    results: Path = common.RESULTS


class FlaxRecurrence(SubLayer):
    """`flax.linen.RNN` in the place of our LSTM."""

    d_model: int

    def setup(self):
        self.recurrence = nn.RNN(nn.OptimizedLSTMCell(self.d_model))

    def rows(self, x, shared, context: Context):
        return self.recurrence(x), None


class Products(nn.Module):
    """The products of feed-forward networks, with nothing between them."""

    layers: int
    d_model: int
    hidden: int

    @nn.compact
    def __call__(self, x, context: Context):
        initializer = nn.initializers.lecun_normal()
        for layer in range(self.layers):
            for name, widths in (("in", (self.d_model, self.hidden)), ("out", (self.hidden, self.d_model))):
                x = linear(x, self.param(f"w_{name}_{layer}", initializer, widths))
        return x, None

    def gflops(self, tokens: int) -> float:
        """Of both passes."""
        return 3e-9 * tokens * self.layers * 4 * self.d_model * self.hidden


def model_config(options: Options) -> Seq2SeqConfig:
    encoder = EncoderConfig(options.layers, MultiHead(options.heads), options.feed_forward)
    return Seq2SeqConfig(d_model=options.d_model, encoder=encoder, dropout=0.0)


def timed(encoder: nn.Module, options: Options, masked: bool) -> Callable[[], dict]:
    """Compiles both passes of a stack; returns a function that times so many of them."""
    draw = partial(jax.random.normal, shape=(options.rows, options.length, options.d_model))
    x, upstream = draw(jax.random.key(0)), draw(jax.random.key(1))
    mask = jnp.ones(x.shape[:-1], bool) if masked else None
    context = Context(query_mask=mask, key_mask=mask)
    params = unbox(jax.jit(encoder.init)(jax.random.key(2), x, context)["params"])

    @jax.jit
    def gradients(params, x, upstream, context):
        _, backward = jax.vjp(lambda params, x: encoder.apply({"params": params}, x, context)[0], params, x)
        return backward(upstream)

    jax.block_until_ready(gradients(params, x, upstream, context))

    def run() -> dict:
        seconds = []
        for _ in range(options.repetitions):
            start = time.perf_counter()
            jax.block_until_ready(gradients(params, x, upstream, context))
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}

    return run


def measure(options: Options) -> dict:
    """Median milliseconds of each system, and GFLOPs of a pass of ours."""
    config = model_config(options)
    systems, gflops = {}, {}
    for kind in KINDS:
        systems[kind] = timed(encoder_of(config, kind, options), options, masked=True)
        gflops[kind] = gflops_of(config, kind, options)
    products = Products(options.layers, options.d_model, options.feed_forward)
    systems["products"] = timed(products, options, masked=False)
    gflops["products"] = products.gflops(options.rows * options.length)
    plain = encoder_of(config, "fnet", options)
    systems["fnet, no mask"] = timed(plain, options, masked=False)
    systems["lstm, flax.linen.RNN"] = timed(with_flax_recurrence(config, options), options, masked=True)
    with contextlib.ExitStack() as stack:
        for kind, peer in peers_of(options).items():
            systems[f"{kind}, PyTorch"] = stack.enter_context(peer)
        rounds = common.interleave(systems, options.rounds)
    milliseconds = {
        name: 1e3 * statistics.median(second for result in results for second in result["seconds"])
        for name, results in rounds.items()
    }
    versions = {name: results[0].get("versions", {}) for name, results in rounds.items()}
    return {"milliseconds": milliseconds, "gflops": gflops, "versions": versions}


def peers_of(options: Options) -> dict[str, common.Peer]:
    """A stack of PyTorch for each kind that has one."""
    sizes = ("layers", "d_model", "heads", "feed_forward", "rows", "length", "repetitions")
    arguments = {f"--{name.replace('_', '-')}": getattr(options, name) for name in sizes}
    return {
        kind: common.Peer(
            options.peers_python,
            "encoder_peer.py",
            {"--kind": kind, **arguments, "--threads": options.cores},
        )
        for kind in (PEERS if options.peers else ())
    }


def encoder_of(config: Seq2SeqConfig, kind: str, options: Options) -> Encoder:
    """The stack that is measured, without the last norm of a pre-norm encoder, which PyTorch's have not either."""
    name = "fnet" if kind == "transform" else kind
    encoder = build.encoder(config, parse_branch(f"{name}:{options.layers}")).clone(final_norm=False)
    if kind != "transform":
        return encoder
    return with_layers(encoder, [layer.clone(feed_forward=None) for layer in encoder.stack.layers])


def gflops_of(config: Seq2SeqConfig, kind: str, options: Options) -> float:
    """Matrix products of both passes."""
    if kind != "transform":
        layers = parse_branch(f"{kind}:{options.layers}")
        return 3e-9 * options.rows * encoder_flops(config, layers, options.length)
    shape = config.d_model, options.length, options.length
    return 3e-9 * options.rows * options.layers * sum(FourierMixing().flops(*shape))


def with_layers(encoder: Encoder, layers: Sequence[EncoderLayer]) -> Encoder:
    return encoder.clone(stack=encoder.stack.clone(layers=tuple(layers)))


def with_flax_recurrence(config: Seq2SeqConfig, options: Options) -> Encoder:
    """The LSTM encoder with Flax's recurrence in each of its blocks."""
    encoder = encoder_of(config, "lstm", options)
    recurrence = FlaxRecurrence(options.d_model, parent=None)
    return with_layers(
        encoder,
        [layer.clone(mixing=layer.mixing.clone(sublayer=recurrence)) for layer in encoder.stack.layers],
    )


def describe(row: dict) -> str:
    """A line for each kind of encoder: time, beside self-attention, beside others, beside what products take alone."""
    times = row["milliseconds"]
    speeds = {kind: gflop / times[kind] * 1e3 for kind, gflop in row["gflops"].items()}
    lines = []
    for kind in (*KINDS, "products"):
        peer = times.get(f"{kind}, PyTorch")
        lines.append(
            (
                kind,
                row["gflops"][kind],
                times[kind],
                speeds[kind],
                speeds[kind] / speeds["products"],
                times[kind] / times["attention"],
                peer if peer else "-",
                peer / times[kind] if peer else "-",
            )
        )
    header = (
        "encoder",
        "GFLOP",
        "ms",
        "GFLOP/s",
        "of products'",
        "of self-attention",
        "PyTorch, ms",
        "PyTorch / ours",
    )
    rest = (
        f"`flax.linen.RNN` with `OptimizedLSTMCell` takes {times['lstm, flax.linen.RNN']:.0f} ms, "
        f"{times['lstm, flax.linen.RNN'] / times['lstm']:.2f} times as long as our LSTM. FNet without a mask, by the "
        f"plain FFT, takes {times['fnet, no mask']:.0f} ms; with one each sentence is transformed over "
        "its own length, and models of translation always have one. `transform` is FNet without its feed-forward networks, "
        "`products` these networks' products with nothing between them: no stack can be faster than its kernels, and "
        "those of PyTorch are Intel's MKL. "
        "On other machines some are slower than PyTorch ([speed.md](speed.md))."
    )
    return f"{common.table(header, lines)}\n\n{rest}"


def main(options: Options) -> None:
    common.prepare(options.cores)
    row = measure(options)
    machine = common.machine()
    torch = row["versions"].get("lstm, PyTorch", {}).get("torch")
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, {options.layers} layers, d {options.d_model}, ffn "
        f"{options.feed_forward}, {options.rows} x {options.length} tokens, float32, forward and backward; medians of "
        f"{options.rounds} rounds of {options.repetitions} in which the systems take turns"
        f"{f'; PyTorch {torch}' if torch else ''}. GFLOP are matrix products of both passes, as counted."
    )
    text = describe(row)
    print(conditions, text, sep="\n\n")
    record = {"options": common.settings(options), "machine": machine, **row}
    common.write_results("encoders", "Encoder stacks", f"{conditions}\n\n{text}", record, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
