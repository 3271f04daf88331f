"""Parameters and operations of the encoders of Hu et al. 2023 (table 9), with the sizes of its two groups of tasks.

Operations are multiply-adds counted as 2, of one pair of 128 tokens on both sides, forward, logits included. Beside them
is XLA's count of the same program, with recurrences unrolled, since XLA counts a scanned body once; it counts
element-wise work, too.

    python -m experiments.benchmarks.encoder_costs
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp

from experiments import configs
from experiments.benchmarks import common
from experiments.benchmarks.ours import parameter_count
from flaxnmt.config import Config
from flaxnmt.encoders import lstm
from flaxnmt.models.config import ENCODER_SETS, GROWTH, Seq2SeqConfig
from flaxnmt.models.flops import forward_flops
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.sharding import unbox


@dataclass(frozen=True)
class Options:
    """Count of parameters and operations."""

    configs: tuple[str, ...] = ("encoders_iwslt15_en_vi", "encoders_ted_gl_en")
    """Whose width, decoder and vocabulary the models have. Encoders have the paper's numbers of layers in all of them."""
    length: int = 128
    results: Path = common.RESULTS


def with_branches(model: Seq2SeqConfig, branches: tuple[str, ...]) -> Seq2SeqConfig:
    return dataclasses.replace(model, encoder=dataclasses.replace(model.encoder, branches=branches))


def encoders() -> dict[str, tuple[str, ...]]:
    """The paper's: each kind alone, and one to five side by side."""
    alone = {f"{kind}:6": (f"{kind}:6",) for kind in GROWTH}
    return alone | {name: branches for name, branches in ENCODER_SETS.items() if name != "base"}


def xla_flops(model: Seq2Seq, params, length: int) -> float:
    """XLA's count of the forward pass, every step of a recurrence by itself."""
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    with mock.patch.object(lstm.lax, "scan", functools.partial(jax.lax.scan, unroll=True)):
        lowered = jax.jit(model.apply).lower({"params": params}, ids, ids)
    return lowered.cost_analysis()["flops"]


def measure(recipe: Config, length: int) -> list[dict]:
    """A row for each set of encoders."""
    rows = []
    for name, branches in encoders().items():
        config, pieces = with_branches(recipe.model, branches), recipe.data.tokenizer.vocab_size
        model = Seq2Seq(config, pieces, pieces)
        ids = jnp.zeros((1, 2), jnp.int32)
        params = unbox(jax.eval_shape(model.init, jax.random.key(0), ids, ids)["params"])
        shape = (1, length)
        rows.append(
            {
                "encoders": name,
                "branches": branches,
                "parameters": parameter_count(params),
                "of_encoder": parameter_count(params["encoder"]),
                "flops": forward_flops(config, pieces, shape, shape),
                "xla_flops": xla_flops(model, params, length),
            }
        )
    return rows


def describe(rows: list[dict]) -> str:
    lines = [
        (
            row["encoders"],
            " + ".join(row["branches"]),
            f"{row['parameters'] / 1e6:.2f}",
            f"{row['of_encoder'] / 1e6:.2f}",
            f"{row['flops'] / 1e9:.2f}",
            f"{row['xla_flops'] / 1e9:.2f}",
            f"{row['flops'] / row['xla_flops']:.3f}",
        )
        for row in rows
    ]
    header = ("model", "encoders", "parameters, M", "of the encoder, M", "GFLOPs", "XLA, GFLOPs", "ratio")
    return common.table(header, lines)


def main(options: Options) -> None:
    jax.config.update("jax_platforms", "cpu")
    recipes = {name: configs.load(name) for name in options.configs}
    rows = {name: measure(recipe, options.length) for name, recipe in recipes.items()}
    conditions = (
        f"One table of shared pieces for source, target and output; {options.length} tokens on both sides, forward, "
        "multiply-adds counted as 2, logits included. XLA's count has element-wise work in it and ours has not. The "
        "paper's table has one column for En-Vi, En-It and Sk-En, and one for Gl-En and Sp-En, whose size is lost."
    )
    sections = [
        f"## {name}: d {recipe.model.d_model}, {recipe.model.decoder.layers} decoder layers, "
        f"{recipe.data.tokenizer.vocab_size} pieces\n\n{describe(rows[name])}"
        for name, recipe in recipes.items()
    ]
    text = "\n\n".join([conditions, *sections])
    print(text)
    record = {"options": common.settings(options), "configs": rows}
    common.write_results("encoder_costs", "Costs of encoders", text, record, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
