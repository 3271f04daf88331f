"""Pictures of sinusoidal positions: their map, their inner products, and a weighting of positions that is made of them.

p_{2i}(k) = sin(k / 10000^{2i/D}), p_{2i+1}(k) = cos(k / 10000^{2i/D}) (Vaswani et al. 2017, section 3.5).
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from experiments.plots.common import finish
from flaxnmt.layers.positions import sinusoids
from flaxnmt.typing import Float, Int


def encodings(positions: Int[np.ndarray, "L"], d_model: int) -> Float[np.ndarray, "L D"]:
    """Sinusoids of these positions, as models add them to embeddings."""
    return np.asarray(sinusoids(jnp.asarray(positions), d_model), np.float64)


def inner_products(
    positions: Int[np.ndarray, "K"], offsets: Int[np.ndarray, "O"], d_model: int
) -> Float[np.ndarray, "K O"]:
    """p(k) . p(k + o) = sum_i cos(o / 10000^{2i/D}), which depends on o alone."""
    places = np.asarray(positions)[:, None] + np.asarray(offsets)
    own = encodings(positions, d_model)
    return np.einsum("kd,kod->ko", own, encodings(places.ravel(), d_model).reshape(*places.shape, d_model))


def fit_weighting(
    target: Float[np.ndarray, "L"], d_model: int, tolerance: float = 1e-4
) -> tuple[Float[np.ndarray, "D"], Float[np.ndarray, "L"]]:
    """(w, the fitted w . p(k)): the least squares regression of a weighting of positions 0 .. L - 1 on their sinusoids.

    Among all w that fit alike it is the shortest. Features of long periods are nearly alike over L positions: directions
    with singular values below `tolerance` of the largest are left out, which in float32 are noise.
    """
    features = encodings(np.arange(len(target)), d_model)
    weights, *_ = np.linalg.lstsq(features, np.asarray(target, np.float64), rcond=tolerance)
    return weights, features @ weights


def bump(length: int, place: float, width: float) -> Float[np.ndarray, "L"]:
    """A weighting that looks at positions around a place: exp(-(k - place)^2 / (2 width^2))."""
    return np.exp(-np.square((np.arange(length) - place) / width) / 2)


def draw_map(d_model: int = 20, length: int = 50) -> Figure:
    """The encodings of the first positions, a row a position."""
    figure, axes = plt.subplots(figsize=(1.9 + 0.22 * d_model, 1.2 + 0.085 * length), layout="constrained")
    image = axes.imshow(encodings(np.arange(length), d_model), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(range(0, d_model, max(d_model // 10, 1)))
    axes.set(title=f"Sinusoids of d = {d_model}", xlabel="dimension", ylabel="position k")
    figure.colorbar(image, ax=axes, label="p(k)")
    return figure


def draw_inner_products(
    positions: Sequence[int] = (0, 20, 100, 500), farthest: int = 60, sizes: Sequence[int] = (20, 512)
) -> Figure:
    """p(k) . p(k + o) over o for several k, of encodings of several sizes; the lines of all k are one."""
    figure, panels = plt.subplots(1, len(sizes), figsize=(5.0 * len(sizes), 3.8), layout="constrained")
    offsets = np.arange(-farthest, farthest + 1)
    for axes, d_model in zip(np.atleast_1d(panels), sizes):
        for number, k in enumerate(positions):
            there = offsets[offsets >= -k]
            (values,) = inner_products(np.asarray([k]), there, d_model)
            # One above the other: what lies below shows at the edges.
            width = 1 + 2 * (len(positions) - 1 - number)
            axes.plot(there, values, label=f"k = {k}", color=f"C{number}", linewidth=width)
        finish(axes, f"d = {d_model}", "offset o")
    np.atleast_1d(panels)[0].set_ylabel("p(k) \u00b7 p(k + o)")
    return figure


def draw_fits(targets: Mapping[str, Float[np.ndarray, "L"]], sizes: Sequence[int] = (20, 128, 512)) -> Figure:
    """Target weightings and their regressions on sinusoids of several sizes; a panel a target."""
    figure, panels = plt.subplots(
        1, len(targets), figsize=(4.2 * len(targets), 3.8), sharey=True, layout="constrained"
    )
    for axes, (name, target) in zip(np.atleast_1d(panels), targets.items()):
        axes.plot(target, color="0.6", linewidth=5, label="target")
        for number, d_model in enumerate(sizes):
            axes.plot(fit_weighting(target, d_model)[1], color=f"C{number}", label=f"d = {d_model}")
        finish(axes, name, "position k")
    np.atleast_1d(panels)[0].set_ylabel("weighting w \u00b7 p(k)")
    return figure
