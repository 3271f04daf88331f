"""Pictures of the sweep `budgets`, from the table of its ledger: figures 4, 5, 10, 11 and 12 of Bapna et al. 2020.

A table is a data frame with a row for each trial and each of its budgets (`flaxnmt.open_sweep(PATH).table`). Trials
are chosen by patterns of their names, as `--only` of the sweep does. Nothing is drawn that is not in the table.
"""

from collections.abc import Mapping

import numpy as np
import pandas
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.plots.common import LEFT_OUT, chosen, command, finish

GATED, PLAIN = "gated", "plain"
LAYERS, DECODER_LAYERS, NARROWER = "?-of-?-layers", "?-of-?-decoder-layers", "feed-forward-*"
SHORTER = "gated-shorter"
"""As long as these, which are compared with it."""
PARTS, CONSTANT_NOISE = "gated-m-*", "gated-constant-noise"

BUDGET = ["encoder_budget", "decoder_budget"]


def pending(table: pandas.DataFrame, *patterns: str) -> str:
    """One line with the commands that make the trials of which the table has none; empty where nothing is missing."""
    commands = [command("budgets", pattern) for pattern in patterns if chosen(table, pattern).empty]
    return f"{LEFT_OUT}: {', '.join(commands)}" if commands else ""


def draw_quality(table: pandas.DataFrame) -> Figure:
    """BLEU against computation, beside Transformers made smaller on both sides, or in the decoder (figures 4, 5)."""
    figure, (both, decoder) = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True, layout="constrained")
    gated, plain = chosen(table, GATED), chosen(table, PLAIN)
    _curve(both, gated, "one model, any budget", color="C0", linestyle="", marker=".", alpha=0.4)
    _curve(both, _even(gated), "one model, same budget on both sides", color="C0", marker="o")
    full = gated[gated["encoder_budget"] == gated["encoder_budget"].max()]
    _curve(decoder, full, "one model, full budget of the encoder", color="C0", marker="o")
    for axes, label, pattern, style in (
        (both, "fewer layers", LAYERS, dict(color="C1", marker="s")),
        (both, "narrower feed-forward", NARROWER, dict(color="C2", marker="^")),
        (decoder, "fewer decoder layers", DECODER_LAYERS, dict(color="C1", marker="s")),
    ):
        reduced = chosen(table, pattern)
        if not reduced.empty:
            _curve(axes, pandas.concat([plain, reduced]), label, linestyle="--", **style)
    for axes, title in ((both, "Encoder and decoder made smaller"), (decoder, "Decoder made smaller")):
        _curve(axes, plain, "plain Transformer", color="C3", marker="D", linestyle="")
        finish(axes, title, "MFLOPs a sentence")
    both.set_ylabel("BLEU")
    return figure


def draw_parts(table: pandas.DataFrame) -> Figure:
    """BLEU against computation for each number m of parts of a feed-forward network (figure 12)."""
    trials = {parts(rows): rows for _, rows in chosen(table, SHORTER, PARTS).groupby("name")}
    return _draw_even({f"m = {m}": trials[m] for m in sorted(trials)})


def draw_noise(table: pandas.DataFrame) -> Figure:
    """BLEU against computation for noise on gates that grows, and that is constant (figure 11)."""
    return _draw_even(
        {"noise grows": chosen(table, SHORTER), "noise is constant": chosen(table, CONSTANT_NOISE)}
    )


def draw_gates(table: pandas.DataFrame, value: str = "on") -> Figure:
    """Heat maps of the gates of the encoder and of the decoder by budget, means over seeds (figure 10).

    Args:
      table: with trials of one kind.
      value: `on` or `mixed` of `flaxnmt.looking.of_gates`.
    """
    grids = [gate_grid(table, stack, value) for stack in ("encoder", "decoder")]
    rows, columns = max(map(len, grids)), grids[0].shape[1]
    size = 2 * (1.7 + 0.22 * columns) + 0.8, 1.2 + 0.19 * rows
    figure, panels = plt.subplots(1, 2, figsize=size, layout="constrained")
    for axes, stack, grid in zip(panels, ("encoder", "decoder"), grids):
        image = axes.imshow(grid, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower")
        axes.set_yticks(range(len(grid)), _gate_names(grid.index), fontsize="x-small")
        axes.set_xticks(
            range(columns), [f"{own:g}, {other:g}" for own, other in grid], rotation=90, fontsize="x-small"
        )
        other = "decoder" if stack == "encoder" else "encoder"
        axes.set(title=stack.capitalize(), xlabel=f"budget of {stack}, {other}")
        axes.tick_params(length=0)
        for place in _changes(grid.index.get_level_values("layer")):
            axes.axhline(place, color="white", linewidth=1.5)
        for place in _changes(grid.columns.get_level_values(0)):
            axes.axvline(place, color="white", linewidth=1.5)
    labels = {"on": "share of tokens let through", "mixed": "share of sentences with both decisions"}
    figure.colorbar(image, ax=list(panels), label=labels[value])
    return figure


def draw_use(table: pandas.DataFrame) -> Figure:
    """The share of the computation that was used against the budget, and the time of decoding against computation."""
    figure, (use, time) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    gated = chosen(table, GATED)
    for side, color, shift in (("encoder", "C0", -0.008), ("decoder", "C1", 0.008)):
        budget, used = f"{side}_budget", f"{side}_use"
        # Side by side, or the bars of one side would hide those of the other.
        use.plot(gated[budget] + shift, gated[used], ".", color=color, alpha=0.3)
        seeds = gated.groupby([budget, "seed"])[used].mean().groupby(budget).agg(["mean", "std"])
        style = dict(label=side, color=color, marker="o", capsize=3)
        use.errorbar(seeds.index + shift, seeds["mean"], seeds["std"], **style)
    use.axline((0, 0), slope=1, color="0.5", linestyle=":", label="budget, and 5 points around it")
    use.fill_between([0, 1.05], [-0.05, 1.0], [0.05, 1.1], color="0.5", alpha=0.12, linewidth=0)
    use.set_ylabel("share of the full computation used")
    finish(use, "Use", "budget")
    style = dict(value="decoding_seconds", linestyle="")
    _curve(time, gated, "one model, all budgets", color="C0", marker="o", **style)
    reduced = chosen(table, PLAIN, LAYERS, DECODER_LAYERS, NARROWER)
    if not reduced.empty:
        _curve(time, reduced, "plain and reduced Transformers", color="C3", marker="D", **style)
    time.set_ylabel("seconds of decoding")
    finish(time, "Time", "MFLOPs a sentence")
    time.set_ylim(0, None)
    return figure


def parts(rows: pandas.DataFrame) -> int:
    """m, the number of gates of a feed-forward network."""
    return 1 + max(gate["part"] for gates in rows["gates"] for gate in gates)


def points(rows: pandas.DataFrame, value: str) -> pandas.DataFrame:
    """Mean and standard deviation over seeds, for each trial and budget, from the least computation up.

    Returns:
      columns `mflops`, `mean`, `std`; the last is NaN for a single seed.
    """
    # Baselines have no budgets.
    groups = rows.groupby(["name", *BUDGET], dropna=False)
    found = groups[value].agg(["mean", "std"]).assign(mflops=groups["flops"].mean() / 1e6)
    return found.sort_values("mflops")


def gate_grid(table: pandas.DataFrame, stack: str, value: str) -> pandas.DataFrame:
    """What each gate of the encoder or decoder does at each budget, mean over seeds.

    Returns:
      rows by (layer, block, gate, part), columns by (budget of this side, of the other), both from small to large.
    """
    gates = table[[*BUDGET, "gates"]].explode("gates", ignore_index=True)
    gates = gates[BUDGET].join(pandas.DataFrame(gates["gates"].tolist()))
    own = BUDGET if stack == "encoder" else BUDGET[::-1]
    return gates[gates["stack"] == stack].pivot_table(
        value, index=["layer", "block", "gate", "part"], columns=own
    )


def _curve(axes: Axes, rows: pandas.DataFrame, label: str, value: str = "bleu", **style) -> None:
    found = points(rows, value)
    axes.errorbar(found["mflops"], found["mean"], found["std"], label=label, capsize=3, **style)


def _draw_even(lines: Mapping[str, pandas.DataFrame]) -> Figure:
    """BLEU of models that have the same budget on both sides, a line for each."""
    figure, axes = plt.subplots(figsize=(5.8, 4.2), layout="constrained")
    for (label, rows), marker in zip(lines.items(), "os^Dv<>"):
        _curve(axes, _even(rows), label, marker=marker)
    axes.set_ylabel("BLEU")
    finish(axes, "", "MFLOPs a sentence")
    return figure


def _even(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Rows with the same budget on both sides."""
    return rows[rows["encoder_budget"] == rows["decoder_budget"]]


def _gate_names(index: pandas.MultiIndex) -> list[str]:
    """A label for each gate; the first one of a layer says which layer it is."""
    names, last = [], None
    for layer, block, gate, part in index:
        several = sum(other[:3] == (layer, block, gate) for other in index) > 1
        name = f"{block.replace('_', '-')}{', keys' if gate == 'keys' else ''}{f' {part + 1}' if several else ''}"
        names.append(name if layer == last else f"layer {layer + 1}   {name}")
        last = layer
    return names


def _changes(values: pandas.Index) -> np.ndarray:
    """Places between neighbours that differ, in the coordinates of an image."""
    return np.flatnonzero(values[1:] != values[:-1]) + 0.5
