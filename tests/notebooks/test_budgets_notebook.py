"""The notebook on budgets, executed in a process of its own on the ledger of a sweep of tiny runs."""

import dataclasses
import re
import shlex
from base64 import b64decode
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import pandas
import pytest
from ledger_notebooks import execute
from matplotlib import pyplot as plt
from matplotlib.image import imread
from tiny_runs import TINY, TINY_BUDGETS, sentences, write_corpus

from experiments import sweep
from experiments.measures import of_budgets
from experiments.plots import budgets as plots
from experiments.sweeps import budgets
from flaxnmt import open_run, open_sweep
from flaxnmt.ledger import Ledger, tidy

# A sweep is really trained for it.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "experiments/notebooks/budgets.ipynb"
LENGTH = (
    "--max-steps 120 --training.evaluate-every 120 --training.log-every 40 --training.metric loss "
    "--training.evaluate-translations 0 --data.test"
).split()
TRIALS = {"gated-seed1": TINY_BUDGETS, "plain-seed1": TINY, "plain-seed2": TINY}
LINES = sentences(6, seed=3)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """Trials of the sweep, with its names, of a tiny model."""
    folder = tmp_path_factory.mktemp("budgets")
    corpus = write_corpus(folder / "data")
    # Its test set is not needed.
    corpus = corpus[: corpus.index("--test")]
    trials = []
    for trial in budgets.sweep.trials:
        if trial.directory in TRIALS:
            config, *options = TRIALS[trial.directory]
            trials.append(dataclasses.replace(trial, config=config, options=(*options, *corpus, *LENGTH)))
    tiny = sweep.Sweep(tuple(trials), lambda run, trial: of_budgets(open_run(run), LINES, LINES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "")
        patch.setattr(sweep, "load", lambda name: tiny)
        patch.setattr(sweep, "apart", lambda function, *arguments: function(*arguments))
        assert sweep.main(["budgets", "--runs", str(folder / "runs"), "--results", str(folder)]) == 0
    return folder / "budgets.jsonl"


@pytest.fixture(scope="module")
def table(ledger):
    return open_sweep(ledger).table


@pytest.fixture(autouse=True)
def closing():
    yield
    plt.close("all")


def left_out(outputs):
    """Of each line that says so, patterns of the trials to run."""
    lines = [text for kind, text in outputs if kind == "text/markdown" and text.startswith("Left out")]
    assert all("\n" not in line for line in lines)
    commands = [[shlex.split(command) for command in re.findall("`(.*?)`", line)] for line in lines]
    for command in (command for line in commands for command in line):
        assert command[:3] == ["python", "-m", "experiments.sweep"]
        name, arguments = sweep.parse(command[3:])
        (only,) = arguments.only
        assert any(fnmatch(trial.name, only) for trial in sweep.load(name).trials)
    return [[command[command.index("--only") + 1] for command in line] for line in commands]


def test_what_is_in_the_ledger_is_drawn_and_the_rest_is_named(ledger):
    outputs = execute(NOTEBOOK, ledger)
    figures = [imread(BytesIO(b64decode(data))) for kind, data in outputs if kind == "image/png"]
    assert len(figures) == 4
    for figure in figures:
        # Axes and text alone are shades of grey.
        assert (np.ptp(figure[..., :3], axis=-1) > 0.2).mean() > 0.005
    trials = [text for kind, text in outputs if kind == "text/markdown"][0].splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in trials[2:]]
    assert [row[:3] for row in rows] == [["plain", "2", "1"], ["gated", "1", "4"]]
    assert all(row[4] == "120" and "version:" in row[6] for row in rows)
    assert left_out(outputs) == [
        [plots.LAYERS, plots.DECODER_LAYERS, plots.NARROWER],
        [plots.SHORTER, plots.PARTS],
        [plots.SHORTER, plots.CONSTANT_NOISE],
    ]
    # Each line stands where its picture would.
    text, png = "text/markdown", "image/png"
    assert [kind for kind, _ in outputs] == [text, text, png, png, png, text, text, png]


def test_without_a_ledger_every_picture_names_its_trials(tmp_path):
    outputs = execute(NOTEBOOK, tmp_path / "budgets.jsonl")
    assert [kind for kind, _ in outputs] == ["text/markdown"] * 7
    assert "budgets.jsonl` is not there yet" in outputs[0][1]
    patterns = left_out(outputs)
    assert len(patterns) == 6 and all({plots.GATED, plots.SHORTER} & {*line} for line in patterns)
    baselines = [trial.name for trial in budgets.sweep.trials if trial.config == "multi30k_en_de"]
    assert all(any(fnmatch(name, pattern) for pattern in patterns[0]) for name in baselines)


def test_points_are_means_over_seeds_and_bars_their_deviations(table):
    figure = plots.draw_quality(table)
    plain = table[table["name"] == "plain"]
    drawn = {container.get_label(): container for axes in figure.axes for container in axes.containers}
    (x,), (y,) = drawn["plain Transformer"].lines[0].get_data()
    assert x == pytest.approx(plain["flops"].mean() / 1e6) and y == pytest.approx(plain["bleu"].mean())
    (((_, low), (_, high)),) = drawn["plain Transformer"].lines[2][0].get_segments()
    spread = abs(plain["bleu"].iloc[0] - plain["bleu"].iloc[1]) / 2**0.5
    assert spread > 0 and (low, high) == pytest.approx((y - spread, y + spread))
    gated = table[table["name"] == "gated"].set_index(plots.BUDGET).sort_values("flops")
    for label, kept in {
        "one model, any budget": [(1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (0.5, 0.5)],
        "one model, same budget on both sides": [(1.0, 1.0), (0.5, 0.5)],
        "one model, full budget of the encoder": [(1.0, 1.0), (1.0, 0.5)],
    }.items():
        expected = gated[gated.index.isin(kept)]
        np.testing.assert_allclose(
            drawn[label].lines[0].get_xydata(), np.c_[expected["flops"] / 1e6, expected["bleu"]]
        )
    assert gated["flops"].iloc[0] < gated["flops"].iloc[-1]


@pytest.mark.parametrize("value", ["on", "mixed"])
def test_every_gate_has_a_cell_for_every_budget(table, value):
    gated = table[table["name"] == "gated"]
    encoder, decoder, _ = plots.draw_gates(gated, value).axes
    names = [label.get_text() for label in encoder.get_yticklabels()]
    assert names == ["layer 1   attention, keys", "attention", "feed-forward 1", "feed-forward 2"]
    assert [label.get_text() for label in decoder.get_xticklabels()] == [
        "0.5, 0.5",
        "0.5, 1",
        "1, 0.5",
        "1, 1",
    ]
    for axes, side in ((encoder, "encoder"), (decoder, "decoder")):
        other = "decoder" if side == "encoder" else "encoder"
        image = np.asarray(axes.images[0].get_array())
        assert image.shape == ((4, 4) if side == "encoder" else (6, 4))
        # Half of the columns are of the lower budget of this side.
        assert value == "mixed" or image[:, :2].mean() < image[:, 2:].mean()
        for row in gated.to_dict("records"):
            column = 2 * (row[f"{side}_budget"] == 1) + (row[f"{other}_budget"] == 1)
            (expected,) = (
                gate[value]
                for gate in row["gates"]
                if (gate["stack"], gate["block"], gate["part"]) == (side, "feed_forward", 1)
            )
            assert image[-1, column] == expected


def test_tables_have_a_line_for_each_budget(ledger):
    rows = [one for row in Ledger(ledger).rows() for one in tidy(row)]
    found = {
        name.title: [[cell.strip() for cell in line.split("|")[1:-1]] for line in name.lines(rows)]
        for name in budgets.sweep.tables
    }
    heads = {title: lines[0] for title, lines in found.items() if lines}
    gated = {title: [line for line in lines if line[0] == "gated"] for title, lines in found.items()}
    quality, use, differences, reduced, tricks, gates, fallen = gated.values()
    assert len(quality) == len(use) == len(differences) == len(gates) == 4 and len(fallen) == 1
    assert not reduced and not tricks
    full = dict(zip(heads["Differences, of each seed"], differences[0]))
    assert float(full["encoder_budget"]) == float(full["decoder_budget"]) == 1
    assert float(full["BLEU over the full budget"]) == 0
    for line in gates:
        cells = dict(zip(heads["Percentage of tokens that gates let through"], line))
        for kind in ("attention", "keys", "feed-forward"):
            assert 0 <= float(cells[f"encoder 1, {kind}"]) <= 100 and cells[f"encoder 2, {kind}"] == "-"
        assert 0 <= float(cells["decoder gates by token"]) <= 6


def test_versions_of_the_gated_model_are_lines_beside_it(table):
    table = table.assign(name=table["name"].replace("gated", plots.SHORTER))
    (line,) = plots.draw_parts(table).axes[0].containers
    assert line.get_label() == "m = 2"
    # The same trial stands for one with constant noise.
    constant = table.assign(name=table["name"].replace(plots.SHORTER, plots.CONSTANT_NOISE))
    grows, constant = plots.draw_noise(pandas.concat([table, constant])).axes[0].containers
    assert [grows.get_label(), constant.get_label()] == ["noise grows", "noise is constant"]
    assert len(line.lines[0].get_xdata()) == 2
    for other in (grows, constant):
        np.testing.assert_array_equal(other.lines[0].get_xydata(), line.lines[0].get_xydata())


def test_use_is_drawn_against_its_budget(table):
    use, time = plots.draw_use(table).axes
    encoder, decoder = use.containers
    gated = table[table["name"] == "gated"]
    for container, side in ((encoder, "encoder"), (decoder, "decoder")):
        assert container.get_label() == side
        x, y = container.lines[0].get_xydata().T
        np.testing.assert_allclose(x, [0.5, 1], atol=0.01)
        np.testing.assert_allclose(y, gated.groupby(f"{side}_budget")[f"{side}_use"].mean())
        assert y[0] < y[1]
    gated_times, other_times = (container.lines[0].get_ydata() for container in time.containers)
    assert sorted(gated_times) == sorted(gated["decoding_seconds"])
    assert other_times == pytest.approx(table[table["name"] == "plain"]["decoding_seconds"].mean())


def test_the_source_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
