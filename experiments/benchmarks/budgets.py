"""What a budget saves by the clock: beam search and encoding of a model with gates at several shares of open gates.

Gates follow an imposed pattern: random control networks that differ from token to token, with biases that open the
wished share of them. The share of the full computation that is used is counted, not assumed. With all gates closed
remains what no gate can save (logits, embeddings, norms, control networks): the floor. A budget is kept by the clock
if time <= time of the open model x (floor + (1 - floor) x use + 0.15). Beside it the plain Transformer of that size.

    python -m experiments.benchmarks.budgets
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.benchmarks import common, ours
from experiments.benchmarks.peers.sizes import SIZES, Size
from flaxnmt.decoding.beam import beam_search
from flaxnmt.models.config import BudgetConfig
from flaxnmt.models.flops import side_flops
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.typing import Params

MARGIN, AIM = 0.15, 0.08
ALL, NONE = 1e3, -1e3
"""Biases that open, and close, every gate."""


@dataclass(frozen=True)
class Options:
    """Benchmark of budgets."""

    sizes: tuple[Literal["tiny", "small", "base"], ...] = ("small", "base")
    shares: tuple[float, ...] = (0.75, 0.5, 0.25)
    """Of gates that are open."""
    sentences: int = 64
    source_length: int = 15
    target_length: int = 20
    beam: int = 4
    encoded: int = 4096
    """Tokens that are encoded, in sentences of 32."""
    blocks: int = 4
    rounds: int = 5
    cores: int = 2
    results: Path = common.RESULTS


def make_model(size: Size, blocks: int | None) -> Seq2Seq:
    """Pre-norm, without gates where `blocks` is None."""
    budget = BudgetConfig() if blocks is None else BudgetConfig((1.0,), (1.0,), blocks)
    config = dataclasses.replace(ours.make_model(size).config, norm="pre", budget=budget)
    return Seq2Seq(config, size.vocabulary, size.vocabulary)


def imposed(params: Params, bias: float) -> Params:
    """Parameters whose control networks are random; `bias` in units of the standard deviation of logits, about."""
    random = np.random.default_rng(0)

    def change(path, leaf):
        names = [key.key for key in path]
        if not names[-2].endswith("control"):
            return leaf
        if names[-1] == "w_out":
            # Without a mean over hidden units, which are all positive, logits lie about 0.
            drawn = random.normal(size=leaf.shape)
            return jnp.asarray((drawn - drawn.mean(0)) / len(drawn) ** 0.5, jnp.float32)
        return jnp.full(leaf.shape, bias) if names[-1] == "b_out" else leaf

    return jax.tree_util.tree_map_with_path(change, params)


class System:
    """The two timed functions of a model, and the share of its computation that it uses."""

    def __init__(self, size: Size, options: Options, blocks: int | None):
        self.model = model = make_model(size, blocks)
        self.options = options
        self.source = common.random_ids(options.sentences, options.source_length, size, seed=1)
        self.text = common.random_ids(options.encoded // 32, 32, size, seed=2)
        target = options.target_length
        lengths = jnp.full(options.sentences, target)

        @jax.jit
        def search(params, source):
            cache = model.apply({"params": params}, source, options.beam, target, method="start")
            step = partial(model.apply, {"params": params}, method="step")
            return beam_search(
                step, cache, lengths, max_length=target, beam_size=options.beam, min_lengths=lengths
            ).tokens

        self.search = search
        self.encode = jax.jit(
            lambda params, text: model.apply({"params": params}, text, skip=True, method="encode")[0].memory
        )
        self.count = jax.jit(partial(model.apply, method="logits_and_use"))

    def use(self, params) -> dict[str, float]:
        """Shares of the full computation of encoding, and of a search: of the sentences it finds."""
        found = self.search(params, self.source)[:, 0]
        _, use = self.count({"params": params}, self.source, found)
        _, encoding = self.count({"params": params}, self.text, self.text)
        # A search computes every hypothesis of the beam in the decoder, and the source once.
        ungated = dataclasses.replace(self.model.config, budget=BudgetConfig())
        work = np.multiply(
            side_flops(ungated, self.options.source_length, self.options.target_length),
            (1, self.options.beam),
        )
        search = np.average(use.mean(0), weights=work)
        return {"search": float(search), "encode": float(encoding[:, 0].mean())}

    def timed(self, params) -> dict[str, Callable[[], dict]]:
        def run(function, ids):
            jax.block_until_ready(function(params, ids))
            began = time.perf_counter()
            jax.block_until_ready(function(params, ids))
            return {"seconds": time.perf_counter() - began}

        return {
            "search": partial(run, self.search, self.source),
            "encode": partial(run, self.encode, self.text),
        }


def measure(name: str, options: Options) -> list[dict]:
    """Rows of one size, for encoding and search."""
    size = SIZES[name]
    gated, plain = System(size, options, options.blocks), System(size, options, None)
    params = ours.init_params(gated.model)
    biases = {"open": ALL, "closed": NONE} | {
        f"{share:g}": NormalDist().inv_cdf(share) for share in options.shares
    }
    variants = {share: imposed(params, bias) for share, bias in biases.items()}
    rows = []
    for task in ("encode", "search"):
        systems = {share: gated.timed(variant)[task] for share, variant in variants.items()}
        systems["plain"] = plain.timed(ours.init_params(plain.model))[task]
        rounds = common.interleave(systems, options.rounds)
        seconds = {key: statistics.median(r["seconds"] for r in found) for key, found in rounds.items()}
        floor = seconds["closed"] / seconds["open"]
        for share in options.shares:
            key = f"{share:g}"
            use = gated.use(variants[key])[task]
            ratio, ideal = seconds[key] / seconds["open"], floor + (1 - floor) * use
            rows.append(
                {
                    "size": name, "task": task, "share": share, "use": use, "floor": floor, "time": ratio,
                    "over": ratio - ideal, "milliseconds": 1e3 * seconds[key],
                    "open_over_plain": seconds["open"] / seconds["plain"],
                }
            )  # fmt: skip
    return rows


def describe(rows: list[dict]) -> str:
    header = (
        "size",
        "task",
        "gates open",
        "use",
        "floor",
        "time / open",
        "above floor and use",
        "ms",
        "open / plain",
    )
    names = ("size", "task", "share", "use", "floor", "time", "over", "milliseconds", "open_over_plain")
    text = common.table(header, [[row[name] for name in names] for row in rows])
    worst = max(row["over"] for row in rows)
    return (
        f"{text}\n\nAbove floor + (1 - floor) x use: at most {worst:.3f} (bar {MARGIN}, aim {AIM}). With all gates open, "
        f"at most {max(row['open_over_plain'] for row in rows):.2f} times the plain Transformer (bar 1.25)."
    )


def main(options: Options) -> None:
    common.use_cores(options.cores)
    rows = [row for size in options.sizes for row in measure(size, options)]
    machine = common.machine()
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, medians of {options.rounds} rounds in which all take turns; encoding "
        f"of {options.encoded} tokens, beam {options.beam} search of {options.sentences} sentences of "
        f"{options.source_length} tokens to {options.target_length}, 8k vocabulary, float32, m = {options.blocks}."
    )
    text = describe(rows)
    print(conditions, text, sep="\n\n")
    row = {"options": common.settings(options), "machine": machine, "rows": rows}
    common.write_results("budgets", "Budgets by the clock", f"{conditions}\n\n{text}", row, options.results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
