"""The notebook on sinusoids, executed; and the functions behind its pictures against their equations."""

import numpy as np
import pytest
from executed import assert_source_alone, coloured, execute
from matplotlib import pyplot as plt

from experiments.plots import positions as plots

NOTEBOOK = "positions.ipynb"


@pytest.fixture(autouse=True)
def closing():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def equation(k, d_model):
    """Position k, dimension by dimension, in float64."""
    return [
        np.sin(k / 10000 ** (j / d_model)) if j % 2 == 0 else np.cos(k / 10000 ** ((j - 1) / d_model))
        for j in range(d_model)
    ]


@pytest.mark.slow
def test_three_pictures_are_drawn():
    pictures = execute(NOTEBOOK)["image/png"]
    assert len(pictures) == 3 and all(coloured(picture) > 0.02 for picture in pictures)


def test_the_source_is_committed_without_outputs():
    assert_source_alone(NOTEBOOK)


def test_the_map_is_that_of_the_equation():
    axes = plots.draw_map(d_model=20, length=50).axes[0]
    expected = [equation(k, 20) for k in range(50)]
    np.testing.assert_allclose(axes.images[0].get_array(), expected, atol=1e-5)


@pytest.mark.parametrize("d_model", [20, 64])
def test_inner_products_depend_on_the_offset_alone(d_model):
    positions, offsets = np.asarray([20, 90, 400]), np.arange(-20, 31)
    found = plots.inner_products(positions, offsets, d_model)
    loop = [[np.dot(equation(k, d_model), equation(k + o, d_model)) for o in offsets] for k in positions]
    np.testing.assert_allclose(found, loop, atol=2e-3)
    cosines = sum(np.cos(offsets / 10000 ** (2 * i / d_model)) for i in range(d_model // 2))
    np.testing.assert_allclose(found, np.tile(cosines, (3, 1)), atol=2e-3)
    lines = plots.draw_inner_products(positions=(0, 90), farthest=30, sizes=(d_model,)).axes[0].lines
    np.testing.assert_allclose(lines[1].get_ydata()[30:], lines[0].get_ydata(), atol=2e-3)
    np.testing.assert_array_equal(lines[0].get_xdata(), np.arange(31))


def test_a_weighting_of_sinusoids_is_found_again():
    features = np.asarray([equation(k, 16) for k in range(40)])
    # Of what the fast dimensions can say.
    own = np.zeros(16)
    own[:6] = [0.5, -1, 2, 0.3, -0.7, 1.1]
    _, fitted = plots.fit_weighting(features @ own, 16)
    np.testing.assert_allclose(fitted, features @ own, atol=2e-2)


@pytest.mark.parametrize("d_model", [12, 64])
def test_the_regression_has_the_least_squares(d_model):
    target = plots.bump(60, place=20, width=4)
    weights, fitted = plots.fit_weighting(target, d_model)
    features = plots.encodings(np.arange(60), d_model)
    np.testing.assert_allclose(fitted, features @ weights, rtol=1e-12)
    # What is left over is orthogonal to every direction that the regression may use.
    directions, sizes, _ = np.linalg.svd(features, full_matrices=False)
    kept = directions[:, sizes > 1e-4 * sizes[0]]
    np.testing.assert_allclose(kept.T @ (target - fitted), 0, atol=1e-9)
    np.testing.assert_allclose(fitted, kept @ (kept.T @ target), atol=1e-9)


def test_more_dimensions_fit_a_sharper_weighting():
    target = plots.bump(200, place=60, width=2)
    left = [np.square(plots.fit_weighting(target, size)[1] - target).mean() for size in (20, 128, 512)]
    assert left[0] > 2 * left[1] > 20 * left[2] and left[2] < 1e-3
    axes = plots.draw_fits({"one place": target}, sizes=(20, 512)).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), target)
    np.testing.assert_array_equal(axes.lines[2].get_ydata(), plots.fit_weighting(target, 512)[1])
