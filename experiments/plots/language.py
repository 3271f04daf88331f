"""Pictures of what models of one stack make of texts: self-similarity by layer, attention maps."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.plots.common import finish
from flaxnmt.language.similarity import Similarities
from flaxnmt.typing import Float

COLUMNS = 4


def draw_similarity(found: Similarities, title: str = "") -> Figure:
    """Self-similarity of words by layer, and what is left of it above that of any two words (Ethayarajh 2019)."""
    figure, panels = plt.subplots(1, 2, figsize=(11.5, 4.2), layout="constrained")
    layers = range(len(found.baseline))
    for axes, values in zip(panels, (found.own, found.adjusted)):
        for word, count, line in zip(found.words, found.counts, values):
            axes.plot(layers, line, marker="o", label=f"{word} ({count})")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].plot(layers, found.baseline, color="0.3", linestyle="--", marker="s", label="any two words")
    panels[0].set_ylabel("mean cosine")
    aside = dict(loc="upper left", bbox_to_anchor=(1.01, 1))
    for axes, name in zip(panels, ("Self-similarity", "Less that of any two words")):
        finish(axes, name, "layer, 0: before the first", **aside)
    panels[1].get_legend().remove()
    figure.suptitle(title)
    return figure


def draw_layers(seen: dict[str, Any], title: str = "") -> Figure:
    """The mean of the heads of every layer, a map a layer.

    Args:
      seen: `pieces` and `attention` [layers, H, L, L], as `flaxnmt.language.attention` has them.
    """
    maps = seen["attention"].mean(1)
    names = [f"layer {layer}, mean of its heads" for layer in range(1, len(maps) + 1)]
    return _maps(seen, maps, names, title)


def draw_heads(seen: dict[str, Any], layer: int = -1, title: str = "") -> Figure:
    """Every head of one layer, a map a head."""
    maps = seen["attention"][layer]
    number = range(1, len(seen["attention"]) + 1)[layer]
    names = [f"layer {number}, head {head}" for head in range(1, len(maps) + 1)]
    return _maps(seen, maps, names, title)


def _maps(seen: dict[str, Any], maps: Float[np.ndarray, "n L L"], names: list[str], title: str) -> Figure:
    columns = min(len(maps), COLUMNS)
    rows = -(-len(maps) // columns)
    side = max(0.24 * len(seen["pieces"]), 1.8)
    size = 1.9 + (side + 0.3) * columns, 1.3 + (side + 0.4) * rows
    figure, grid = plt.subplots(
        rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(maps) :]:
        axes.remove()
    for axes, weights, name in zip(grid.flat, maps, names):
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=maps.max())
        axes.set_title(name, fontsize="small")
        _name(axes, seen)
    # Below a panel that is left out, the one above it names the columns.
    for axes in grid.flat[max(len(maps) - columns, 0) : len(maps)]:
        axes.tick_params(labelbottom=True)
    figure.supylabel("what looks", fontsize="small")
    figure.supxlabel("what is looked at", fontsize="small")
    figure.colorbar(image, ax=list(grid.flat[: len(maps)]), label="weight", shrink=0.8)
    figure.suptitle(title)
    return figure


def _name(axes: Axes, seen: dict[str, Any]) -> None:
    pieces = seen["pieces"]
    axes.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize="x-small")
    axes.set_yticks(range(len(pieces)), pieces, fontsize="x-small")
    axes.tick_params(length=0)
    if "delimiter" in seen:
        for line in (axes.axhline, axes.axvline):
            for place in (seen["delimiter"] - 0.5, seen["delimiter"] + 0.5):
                line(place, color="0.5", linewidth=0.8, linestyle=":")
