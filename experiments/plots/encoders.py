"""Pictures of the sweep `encoders`, from the table of its ledger: tables 4, 6 and 7 of Hu et al. 2023 as figures.

A table is a data frame with a row for each trial (`flaxnmt.open_sweep(PATH).table`). Nothing is drawn that is not in
it, and there is no figure (None) where it has nothing to draw.
"""

from collections.abc import Iterable, Sequence

import pandas
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.encoder_sets import (
    ALL,
    ALONE,
    BASE,
    COUPLES,
    DEEP,
    DEEPER,
    GROWN,
    PAIRS,
    PAPER,
    PARTNERS,
    SEEDS,
    SHALLOWER,
    SINGLE,
    TWICE,
    best_of,
    grown,
    mean_scores,
    measured_order,
    trial_name,
)
from experiments.plots.common import LEFT_OUT, chosen, command, finish
from experiments.synergy import Base, canonical, synergy_matrix
from flaxnmt.models.config import ENCODER_SETS

KINDS = {
    "attention": "Base",
    "static_expansion": "Static Expansion",
    "lstm": "LSTM",
    "convs2s": "ConvS2S",
    "fnet": "FNet",
}
READINGS: dict[Base, str] = {"single": "over the encoder alone", "duplicated": "over the encoder twice"}
ASIDE = dict(loc="upper left", bbox_to_anchor=(1.01, 1))
"""A legend that hides no bar."""

GAIN = "against.bleu"
"""BLEU above that of Base with the same corpus and seed."""


def names(sets: Iterable[Sequence[str]], pairs: Iterable[int] = (ALL,)) -> list[str]:
    """Of the trials with these encoders, on each of these sizes of the corpus; each once."""
    sets = list(sets)
    return list(dict.fromkeys(trial_name(encoders, size) for size in pairs for encoders in sets))


SYNERGY = names((*ALONE, *TWICE, *COUPLES))
DEPTH = names((BASE, *DEEPER))
COSTS = names((*SINGLE, *DEEP, *GROWN))
"""Trials of pictures and of the table of costs; those of `scaling` and `sizes` depend on what was measured."""


def scaling(table: pandas.DataFrame) -> list[str]:
    """Trials of the scaling: of the paper's order and of the measured ones, or of what has to be measured for them."""
    sets = [*GROWN, *SHALLOWER]
    for base, before in (("single", ALONE), ("duplicated", TWICE)):
        order = measured_order(_rows(table), base)
        sets += (*before, *COUPLES) if order is None else grown(order)
    return names(sets)


def sizes(table: pandas.DataFrame) -> list[str]:
    """Trials of the gain by size, with those of the best encoder alone, or with what has to be measured to know it."""
    alone = best_of(_rows(table), ALONE)
    of_alone = names(ALONE) if alone is None else names((alone,), PAIRS)
    return list(dict.fromkeys((*names(GROWN, PAIRS), *of_alone)))


def orders(table: pandas.DataFrame) -> dict[str, Sequence[str]]:
    """Of growth, by what they are called: that of the paper, with its LSTM and with that of 6 layers, and those that were
    measured; one that is the same as another has the names of both."""
    found = {base: measured_order(_rows(table), base) for base in READINGS}
    measured = {f"by synergy {READINGS[base]}": order for base, order in found.items() if order is not None}
    if len(measured) == 2 and len(set(map(tuple, measured.values()))) == 1:
        measured = {"by synergy, in both readings": found["single"]}
    named = {PAPER: "order of the paper", PARTNERS: "the same, LSTM 6"}
    for name, order in measured.items():
        also = named.get(tuple(order))
        named[tuple(order)] = name if also is None else f"{also}, and {name}"
    return {name: order for order, name in named.items()}


def pending(table: pandas.DataFrame, trials: Iterable[str]) -> str:
    """One line with the command that makes those trials that the table does not have with every seed; or nothing."""
    there = {(row["name"], row["seed"]) for row in _rows(table)}
    missing = [name for name in trials if not {(name, seed) for seed in SEEDS} <= there]
    return f"{LEFT_OUT}, or without all seeds: {command('encoders', *missing)}" if missing else ""


def label(encoder: str) -> str:
    """`lstm:18` as "LSTM 18"; "Base" alone has always the same layers."""
    kind, layers = encoder.split(":")
    return KINDS[kind] if (encoder,) == BASE else f"{KINDS[kind]} {layers}"


def draw_synergy(table: pandas.DataFrame) -> Figure | None:
    """Heat maps of the synergy s(row, column) in both readings of its definition (table 6)."""
    matrices = {base: synergies(table, base) for base in READINGS}
    limit = pandas.concat(matrices).abs().max(axis=None)
    if pandas.isna(limit):
        return None
    figure, panels = plt.subplots(1, 2, figsize=(12.5, 5.4), sharey=True, layout="constrained")
    for axes, (base, matrix) in zip(panels, matrices.items()):
        image = axes.imshow(matrix, cmap="RdBu", vmin=-limit or -1, vmax=limit or 1)
        spread = deviations(table, base)
        for row, one in enumerate(PARTNERS):
            for column, other in enumerate(PARTNERS):
                value, deviation = matrix.loc[one, other], spread.loc[one, other]
                if pandas.notna(value):
                    bar = "" if pandas.isna(deviation) else f"\n± {deviation:.2f}"
                    # The ends of the colours are dark.
                    color = "white" if abs(value) > 0.6 * limit else "black"
                    text = f"{value:+.2f}{bar}"
                    axes.text(column, row, text, ha="center", va="center", color=color, fontsize="small")
        axes.set_facecolor("0.85")
        places, labels = range(len(PARTNERS)), list(map(label, PARTNERS))
        axes.set_xticks(places, labels, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, labels)
        axes.tick_params(length=0)
        axes.set(title=f"BLEU {READINGS[base]}", xlabel="beside it")
    panels[0].set_ylabel("encoder")
    figure.colorbar(image, ax=list(panels), label="synergy, BLEU")
    return figure


def draw_scaling(table: pandas.DataFrame) -> Figure | None:
    """BLEU of one to five encoders, each point labelled with what was added (table 7)."""
    by = orders(table)
    lines = {name: growths(table, order) for name, order in by.items()}
    lines = {name: points for name, points in lines.items() if not points.empty}
    if not lines:
        return None
    figure, axes = plt.subplots(figsize=(9, 5.2), layout="constrained")
    means = pandas.concat({name: points["mean"] for name, points in lines.items()}, axis=1)
    drawn = set()
    highest, lowest = means.idxmax(axis=1), means.idxmin(axis=1)
    span = means.max(axis=None) - means.min(axis=None)
    for number, (name, points) in enumerate(lines.items()):
        # Side by side, or the bars of one would hide those of the other where both are the same model.
        aside = 0.06 * (number - (len(lines) - 1) / 2)
        _bars(axes, points.index + aside, points, name, color=f"C{number}", marker="os^D"[number])
        for count, mean, deviation in points.itertuples():
            if canonical(by[name][:count]) in drawn:
                # Some begin alike, or come to the same.
                continue
            drawn.add(canonical(by[name][:count]))
            added, bar = label(by[name][count - 1]), 0 if pandas.isna(deviation) else deviation
            # Away from the other lines.
            up, down = (((count + aside, mean + side * bar), (0, 6 * side)) for side in (1, -1))
            between = means.loc[count].drop([highest[count], lowest[count]], errors="ignore")
            # Two that are level would be written over each other: the first is written to the left.
            level = between[(between - mean).abs() < 0.05 * span].index
            beside = (count + aside, mean), (-8 if len(level) > 1 and name == level[0] else 8, 0)
            place, offset = up if name == highest[count] else down if name == lowest[count] else beside
            axes.annotate(
                added if count == 1 else f"+ {added}",
                place,
                xytext=offset,
                textcoords="offset points",
                ha={1: "left", 0: "center", -1: "right"}[(offset[0] > 0) - (offset[0] < 0)],
                va={1: "bottom", 0: "center", -1: "top"}[(offset[1] > 0) - (offset[1] < 0)],
                color=f"C{number}",
                fontsize="small",
                bbox=dict(facecolor="white", alpha=0.7, linewidth=0, pad=1),
            )
    axes.set_xticks(range(1, len(PAPER) + 1))
    # What is said beside the last point has room.
    axes.set_xlim(0.5, len(PAPER) + 1.1)
    axes.margins(y=0.14)
    axes.set_ylabel("BLEU")
    finish(axes, "", "encoders", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


def draw_sizes(table: pandas.DataFrame) -> Figure | None:
    """Gain over Base against the size of the training corpus, a line for each number of encoders and one for that which is
    the best by itself."""
    sets = {name.capitalize(): among for name, among in zip(ENCODER_SETS, GROWN)}
    alone = best_of(_rows(table), ALONE)
    if alone not in (None, BASE):
        sets[f"{label(*alone)} alone"] = alone
    lines = {name: gains(table, among) for name, among in sets.items() if among != BASE}
    lines = {name: line for name, line in lines.items() if not line.empty}
    if not lines:
        return None
    figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
    axes.axhline(0, color="0.4", linestyle="--", label="Base")
    for number, ((name, line), marker) in enumerate(zip(lines.items(), "os^Dv")):
        # Side by side, by a factor since the axis is logarithmic.
        shift = 1.02 ** (number - (len(lines) - 1) / 2)
        _bars(axes, line.index * shift, line, name, color=f"C{number}", marker=marker)
    axes.set_xscale("log")
    axes.minorticks_off()
    pairs = sorted({size for line in lines.values() for size in line.index})
    axes.set_xticks(pairs, [f"{size}{' (all)' if size == ALL else ''}" for size in pairs])
    axes.set_ylabel("BLEU over Base")
    finish(axes, "", "pairs in the training corpus", **ASIDE)
    return figure


def draw_depth(table: pandas.DataFrame) -> Figure | None:
    """BLEU of Base and another encoder by the layers of the latter, beside Base alone (table 4)."""
    points = depths(table)
    if points.empty:
        return None
    figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
    base = over_seeds(chosen(table, trial_name(BASE)), ["name"])
    for mean, deviation in base.itertuples(index=False):
        axes.axhline(mean, color="0.4", linestyle="--", label="Base")
        axes.axhspan(mean - deviation, mean + deviation, color="0.4", alpha=0.12, linewidth=0)
    for place, (kind, marker) in enumerate(zip(tuple(KINDS)[1:], "os^D")):
        if kind in points.index:
            line = points.loc[kind]
            x = line.index + 0.1 * (place - 1.5)
            _bars(axes, x, line, f"Base + {KINDS[kind]}", color=f"C{place}", marker=marker)
    axes.set_xticks(sorted(set(points.index.get_level_values("layers"))))
    axes.set_ylabel("BLEU")
    finish(axes, "", "layers of the second encoder", **ASIDE)
    return figure


def synergies(table: pandas.DataFrame, base: Base) -> pandas.DataFrame:
    """s(row, column), from means over seeds; NaN where one of its trials is missing."""
    matrix = synergy_matrix(mean_scores(_rows(table)), PARTNERS, base)
    return pandas.DataFrame(matrix, PARTNERS, PARTNERS, dtype=float)


def deviations(table: pandas.DataFrame, base: Base) -> pandas.DataFrame:
    """Standard deviation over seeds of the synergy within each; NaN for a single seed."""
    found = {seed: synergies(rows, base) for seed, rows in table.groupby("seed")}
    return pandas.concat(found).groupby(level=1, sort=False).std()


def growths(table: pandas.DataFrame, order: Sequence[str]) -> pandas.DataFrame:
    """BLEU of the first encoders of an order by their number, as `over_seeds`."""
    return over_seeds(chosen(table, *names(grown(order))), ["count"])


def gains(table: pandas.DataFrame, among: Sequence[str]) -> pandas.DataFrame:
    """BLEU of these encoders over Base by number of pairs, as `over_seeds`."""
    return over_seeds(chosen(table, *names((among,), PAIRS)), ["pairs"], GAIN)


def depths(table: pandas.DataFrame) -> pandas.DataFrame:
    """BLEU by kind and layers of the encoder beside Base, as `over_seeds`."""
    rows = chosen(table, *names(DEEPER))
    if not rows.empty:
        beside = rows["encoders"].str.extract(r" (?P<kind>\w+):(?P<layers>\d+)")
        rows = rows.join(beside.astype({"layers": int}))
    return over_seeds(rows, ["kind", "layers"])


def over_seeds(rows: pandas.DataFrame, by: list[str], value: str = "bleu") -> pandas.DataFrame:
    """Columns `mean` and `std`, the latter NaN for a single seed, by some columns of the rows."""
    if rows.empty:
        return pandas.DataFrame(columns=["mean", "std"])
    return rows.groupby(by)[value].agg(["mean", "std"])


def _bars(axes: Axes, x, points: pandas.DataFrame, name: str, **style) -> None:
    axes.errorbar(x, points["mean"], points["std"], label=name, capsize=3, **style)


def _rows(table: pandas.DataFrame) -> list[dict]:
    return table.to_dict("records")
