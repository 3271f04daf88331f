"""What a budget saves by the clock: beam search and encoding of a model with gates at several shares of open gates.

Gates follow an imposed pattern: random control networks that differ from token to token, with biases that open the
wished share of them; with --run those of trained models, too, beside imposed ones of the same use. The share of the
full computation that is used is counted, not assumed. With all gates closed remains what no gate can save (logits,
embeddings, norms, control networks): the floor. A budget is kept by the clock if time <= time of the open model x
(floor + (1 - floor) x use + 0.15). Control networks and norms that only gates need are in the floor and, since budgets count
them, in the use, too; what a time is above both with these left out of the use stands beside it. Beside the open model the
plain Transformer of that size.

    python -m experiments.benchmarks.budgets [--run RUN ...]
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import common, ours
from experiments.benchmarks.peers.sizes import SIZES, Size
from flaxnmt import open_run
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.decoding.beam import beam_search
from flaxnmt.layers.segments import segments_here
from flaxnmt.models.config import BudgetConfig
from flaxnmt.models.flops import side_flops
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.run import Run
from flaxnmt.typing import Int, Params

Ids = Int[jax.Array, "B L"]

MARGIN, AIM = 0.15, 0.08
ALL, NONE = 1e3, -1e3
"""Biases that open, and close, every gate."""
WIDTH = 32
"""Tokens of the sentences that are encoded."""
TURN = 0.5
"""Seconds, at least, of a system's turn: of short calls it has several."""
LIMIT = (
    "What was found to limit the small size on two cores of an EPYC ([speed.md](speed.md)): XLA computes products of few rows "
    "and columns on one core of several, and to bring rows together and back costs as much as a product of some of them."
)


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
    rounds: int = 9
    cores: int = 2
    run: tuple[Path, ...] = ()
    """Trained models with the same budgets on both sides, such as 1 0.75 0.5 0.25: measured too."""
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
    """The two timed functions of a model, and the share of its computation that it uses.

    Attributes:
      model: with gates or without.
      source: what is translated, [sentences, S].
      text: what is encoded, [rows, 32].
    """

    def __init__(self, model: Seq2Seq, source: Ids, text: Ids, options: Options):
        self.model, self.source, self.text, self.options = model, source, text, options
        target, rows = options.target_length, len(source)
        lengths = jnp.full(rows, target)

        @jax.jit
        def search(params, source, budget):
            cache = model.apply(
                {"params": params},
                source,
                options.beam,
                target,
                budget=budget,
                segments=segments_here(),
                method="start",
            )
            step = partial(model.apply, {"params": params}, method="step")
            return beam_search(
                step, cache, lengths, max_length=target, beam_size=options.beam, min_lengths=lengths
            ).tokens

        @jax.jit
        def encode(params, text, budget):
            return model.apply({"params": params}, text, budget=budget, skip=True, method="encode")[0].memory

        self.search, self.encode = search, encode
        self.count = jax.jit(partial(model.apply, method="logits_and_use"))

    def use(self, params: Params, budget: int = 0) -> dict[str, float]:
        """Shares of the full computation of encoding, and of a search: of the sentences it finds."""
        source, text = (_budgets(ids, budget) for ids in (self.source, self.text))
        found = self.search(params, self.source, source)[:, 0]
        _, use = self.count({"params": params}, self.source, found, budget=source)
        _, encoding = self.count({"params": params}, self.text, self.text, budget=text)
        # A search computes every hypothesis of the beam in the decoder, and the source once; that the keys of the source, too,
        # are counted for each, adds less than a tenth to the decoder's weight, which matters where the sides use other shares.
        ungated = dataclasses.replace(self.model.config, budget=BudgetConfig())
        work = np.multiply(side_flops(ungated, self.source.shape[1], found.shape[1]), (1, self.options.beam))
        return {
            "search": float(np.average(use.mean(0), weights=work)),
            "encode": float(encoding[:, 0].mean()),
        }

    def timed(self, params: Params, budget: int = 0) -> dict[str, Callable[[], dict]]:
        def run(function, ids):
            budgets = _budgets(ids, budget)
            seconds = []
            while sum(seconds) < TURN:
                began = time.perf_counter()
                jax.block_until_ready(function(params, ids, budgets))
                seconds.append(time.perf_counter() - began)
            return {"seconds": statistics.median(seconds)}

        return {
            "search": partial(run, self.search, self.source),
            "encode": partial(run, self.encode, self.text),
        }


def _budgets(ids: Ids, budget: int) -> jax.Array:
    return jnp.full(len(ids), budget, jnp.int32)


def measure(name: str, options: Options) -> list[dict]:
    """Rows of one size, for encoding and search, of gates that follow an imposed pattern."""
    size = SIZES[name]
    ids = (
        common.random_ids(options.sentences, options.source_length, size, seed=1),
        common.random_ids(options.encoded // WIDTH, WIDTH, size, seed=2),
    )
    gated, plain = (System(make_model(size, blocks), *ids, options) for blocks in (options.blocks, None))
    params = ours.init_params(gated.model)
    patterns = {f"{share:g}": (_opened(params, share), 0) for share in options.shares}
    plain_params = ours.init_params(plain.model)
    return _rows(
        gated, params, patterns, {"size": name, "gates": "imposed"}, options, plain.timed(plain_params)
    )


def measure_run(run: Run, options: Options) -> list[dict]:
    """Rows of a trained model, on its training text, and of imposed patterns of the same use."""
    text = TokenCorpus.open(run.directory / "data" / "train").source
    ids = (
        _sentences(text, *shape)
        for shape in ((options.sentences, options.source_length), (options.encoded // WIDTH, WIDTH))
    )
    gated, params = System(run.model, *ids, options), jax.tree.map(jnp.asarray, run.params)
    budgets = run.config.model.budgets
    both = {f"{encoder:g}": place for place, (encoder, decoder) in enumerate(budgets) if encoder == decoder}
    label = {"size": f"d {run.config.model.d_model}, {run.model.target_vocab} pieces"}
    trained = {name: (params, place) for name, place in both.items()}
    rows = _rows(gated, params, trained, label | {"gates": "trained"}, options)
    same = {
        f"{row['gates open']}, {row['task']}": (_of_use(gated, params, row["task"], row["use"]), 0)
        for row in rows
        if row["gates open"] != "1"
    }
    return rows + _rows(gated, params, same, label | {"gates": "imposed"}, options)


def _sentences(text: TokenArray, rows: int, width: int) -> Ids:
    """Those of the text whose length is nearest to the width: hardly padded, longer ones cut."""
    nearest = np.argsort(np.abs(text.lengths - width), kind="stable")
    return jnp.asarray(text.padded(np.resize(nearest, rows), width))


def _opened(params: Params, share: float) -> Params:
    """With that share of the gates open, about."""
    return imposed(params, NormalDist().inv_cdf(share))


def _of_use(gated: System, params: Params, task: str, use: float) -> Params:
    """With so many gates open that this share of the computation is used: of some biases the nearest.

    That is to a hundredth where gates are many; of few tokens, some open together.
    """
    # Training has made hidden units of control networks larger than they are at first.
    low, high = -32.0, 32.0
    found = []
    for _ in range(14):
        middle = (low + high) / 2
        opened = imposed(params, middle)
        off = gated.use(opened)[task] - use
        found.append((abs(off), opened))
        if abs(off) < 0.01:
            break
        low, high = (middle, high) if off < 0 else (low, middle)
    return min(found, key=lambda one: one[0])[1]


def _rows(
    gated: System,
    params: Params,
    patterns: dict[str, tuple[Params, int]],
    label: dict,
    options: Options,
    plain: dict[str, Callable[[], dict]] | None = None,
) -> list[dict]:
    """A row for each pattern (parameters, and place of the budget) and task."""
    ends = {"open": (imposed(params, ALL), 0), "closed": (imposed(params, NONE), 0)}
    rows = []
    for task in ("encode", "search"):
        systems = {name: gated.timed(*pattern)[task] for name, pattern in (ends | patterns).items()}
        systems |= {} if plain is None else {"plain": plain[task]}
        # They are compiled, and share one heap, which first grows to what all of them need.
        common.interleave(systems, 1)
        rounds = common.interleave(systems, options.rounds)
        seconds = {name: [turn["seconds"] for turn in found] for name, found in rounds.items()}
        floor = _over(seconds["closed"], seconds["open"])
        always = gated.use(*ends["closed"])[task]
        for name, pattern in patterns.items():
            use = gated.use(*pattern)[task]
            ratio, ideal = _over(seconds[name], seconds["open"]), floor + (1 - floor) * use
            rows.append(
                label
                | {
                    "task": task, "gates open": name, "use": use, "floor": floor, "time": ratio,
                    "over": ratio - ideal, "over_once": ratio - ideal + (1 - floor) * always,
                    "milliseconds": 1e3 * statistics.median(seconds[name]),
                }
                | ({} if plain is None else {"open_over_plain": _over(seconds["open"], seconds["plain"])})
            )  # fmt: skip
    return rows


def _over(seconds: list[float], others: list[float]) -> float:
    """Median of the ratios of one round each: a machine that is slower for a minute is so for both."""
    return statistics.median(map(truediv, seconds, others))


def describe(rows: list[dict]) -> str:
    header = (
        "size",
        "gates",
        "task",
        "share or budget",
        "use",
        "floor",
        "time / open",
        "above floor and use",
        "control counted once",
        "ms",
        "open / plain",
    )
    names = (
        "size",
        "gates",
        "task",
        "gates open",
        "use",
        "floor",
        "time",
        "over",
        "over_once",
        "milliseconds",
        "open_over_plain",
    )
    text = common.table(header, [[row.get(name, "") for name in names] for row in rows])
    worst = max(row["over"] for row in rows)
    said = f"{text}\n\nAbove floor + (1 - floor) x use: at most {worst:.3f} (bar {MARGIN}, aim {AIM})."
    # A trained model has no plain one beside it.
    if beside := [row["open_over_plain"] for row in rows if "open_over_plain" in row]:
        said += f" With all gates open, at most {max(beside):.2f} times the plain Transformer (bar 1.25)."
    return f"{said} {LIMIT}"


def main(options: Options) -> None:
    common.prepare(options.cores)
    # A directory that holds no run is found out before minutes have gone by.
    runs = [open_run(directory) for directory in options.run]
    rows = [row for size in options.sizes for row in measure(size, options)]
    for run in runs:
        rows += measure_run(run, options)
    machine = common.machine()
    conditions = (
        f"{machine['cpu']}, {options.cores} cores, medians of {options.rounds} rounds in which all take turns, of "
        f"{TURN} s or a call, ratios within a round; encoding of {options.encoded} tokens, beam {options.beam} search of "
        f"{options.sentences} sentences of {options.source_length} tokens to {options.target_length}, 8000 pieces "
        f"where nothing else is said, float32, m = {options.blocks}."
    )
    text = describe(rows)
    print(conditions, text, sep="\n\n")
    row = {"options": common.settings(options), "machine": machine, "rows": rows}
    common.write_results("budgets", "Budgets by the clock", f"{conditions}\n\n{text}", row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
