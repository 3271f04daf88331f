"""The notebook on models of one stack, executed on two tiny runs; and its pictures against the numbers they show."""

from functools import cache

import numpy as np
import pytest
from executed import assert_source_alone, coloured, execute
from matplotlib import pyplot as plt

from experiments import process
from experiments.plots import language as plots
from experiments.train import main
from flaxnmt import open_run
from flaxnmt.language.similarity import Similarities

NOTEBOOK = "look_inside.ipynb"
TINY = (
    "--train discourse:train:100 --dev discourse:dev:3 --data.tokenizer.vocab-size 500 --data.max-length 32 "
    "--data.batch-tokens 512 --model.d-model 32 --max-steps 200 --training.evaluate-every 200 --training.log-every 20 "
    "--optimizer.learning-rate 0.01 --optimizer.warmup-steps 10"
)
STACKS = {"masked": "encoder", "causal": "decoder"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        # The machine is measured once for both.
        patch.setattr(process, "measure_matmul_peak", cache(process.measure_matmul_peak))
        for kind, stack in STACKS.items():
            sizes = (
                f"--model.{stack}.layers 2 --model.{stack}.feed-forward 64 --model.{stack}.attention.heads 2"
            )
            assert main([f"{kind}_small", *TINY.split(), *sizes.split(), "--run", str(folder / kind)]) == 0
    return folder


@pytest.fixture(scope="module")
def executed(runs):
    environment = {"FLAXNMT_ENCODER_RUN": str(runs / "masked"), "FLAXNMT_DECODER_RUN": str(runs / "causal")}
    return execute(NOTEBOOK, **environment)


@pytest.fixture(autouse=True)
def closing():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def cells(table):
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in table.splitlines()[2:]]


@pytest.mark.slow
def test_similarities_and_attention_maps_are_drawn(executed):
    pictures = executed["image/png"]
    assert len(pictures) == 2 + 2 * 2
    assert all(coloured(picture) > 0.01 for picture in pictures)


@pytest.mark.slow
def test_words_are_filled_in_and_texts_go_on(executed):
    runs, guesses, completed, perplexity = executed["text/markdown"]
    assert [cells(runs)[i][3] for i in range(2)] == ["200", "200"]
    guesses = cells(guesses)
    assert [row[1] for row in guesses] == ["1", "1", "2", "1"]
    for row in guesses:
        shares = [float(guess.split()[-1]) for guess in row[2:]]
        assert shares == sorted(shares, reverse=True) and len(shares) == 5 and 0 < sum(shares) <= 1.03
    for begun, likeliest, drawn in cells(completed):
        assert likeliest.startswith(begun) and drawn.startswith(begun) and len(likeliest) > len(begun)
    # Of 500 pieces; a model that learned nothing has as many.
    assert 1 < float(perplexity.split(": ")[1]) < 250


def test_the_source_is_committed_without_outputs():
    assert_source_alone(NOTEBOOK)


def test_lines_are_the_similarities_and_what_is_left_above_the_baseline():
    own, baseline = np.asarray([[0.9, 0.7, 0.6], [1.0, 0.8, 0.3]]), np.asarray([0.1, 0.2, 0.25])
    found = Similarities(("a", "b"), (5, 7), own, baseline)
    left, right = plots.draw_similarity(found, "title").axes
    np.testing.assert_array_equal([line.get_ydata() for line in left.lines], [*own, baseline])
    np.testing.assert_array_equal([line.get_ydata() for line in right.lines], own - baseline)
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["a (5)", "b (7)", "any two words"]


@pytest.mark.slow
def test_maps_show_the_weights_with_their_pieces(runs):
    seen = open_run(runs / "causal").attention("The queen sees it.")
    weights = seen["attention"]
    *axes, bar = plots.draw_heads(seen, layer=0).axes
    assert len(axes) == 2 and bar.get_ylabel() == "weight"
    for one, head in zip(axes, weights[0], strict=True):
        np.testing.assert_array_equal(one.images[0].get_array(), head)
        # One scale for all, or the colours could not be compared.
        assert one.images[0].get_clim() == (0, weights[0].max())
    names = [
        [text.get_text() for text in side] for side in (axes[0].get_xticklabels(), axes[0].get_yticklabels())
    ]
    assert names == [seen["pieces"]] * 2
    *axes, _ = plots.draw_layers(seen).axes
    np.testing.assert_allclose(axes[1].images[0].get_array(), weights[1].mean(0))
    # Seven heads in rows of four: the place of the eighth is empty.
    many = {"pieces": seen["pieces"], "attention": np.repeat(weights, 4, axis=1)[:, :7], "delimiter": 2}
    *axes, _ = plots.draw_heads(many).axes
    assert len(axes) == 7 and len(axes[0].lines) == 4
