"""The notebook on encoders, executed in a process of its own on the ledger of a sweep of tiny runs."""

import dataclasses
import gzip
import os
import re
import shlex
from base64 import b64decode
from functools import cache
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

import nbformat
import numpy as np
import pandas
import pytest
from ledger_notebooks import execute
from matplotlib import pyplot as plt
from matplotlib.image import imread
from tiny_runs import TINY, sentences, write_corpus

from experiments import encoder_sets, process, sweep, train
from experiments.data import DATA
from experiments.plots import encoders as plots
from experiments.sweeps import encoders
from experiments.synergy import synergy_matrix
from flaxnmt import open_sweep

# A sweep is really trained for it.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "experiments/notebooks/encoders.ipynb"
BASE, EXPANSION, *_ = encoder_sets.PAPER
ONE, DUAL, TWICE = map(encoder_sets.trial_name, [(BASE,), (BASE, EXPANSION), (BASE, BASE)])
TRIALS = {(ONE, 1), (ONE, 2), (DUAL, 1), (DUAL, 2), (TWICE, 1)}
LENGTH = (
    "--max-steps 60 --training.evaluate-every 60 --training.log-every 20 --training.metric loss "
    "--training.evaluate-translations 2 --data.test"
).split()
LINES = sentences(8, seed=3)


def run_sweep(folder: Path) -> None:
    """Trials of the sweep, with its names, of a tiny model; all encoders have one layer."""
    corpus = write_corpus(folder / "data")
    # Its test set is not needed.
    corpus = corpus[: corpus.index("--test")]
    trials = []
    for trial in encoders.sweep.all([]):
        if (trial.name, trial.seed) in TRIALS:
            kinds = [encoder.split(":")[0] for encoder in dict(trial.settings)["encoders"].split()]
            branches = ["--model.encoder.branches", *(f"{kind}:1" for kind in kinds)]
            options = *TINY[1:], *corpus, *branches, *LENGTH
            trials.append(dataclasses.replace(trial, config=TINY[0], options=options))

    # What is measured lies where the corpus does.
    for split in ("dev", "test"):
        for side in ("en", "de"):
            path = folder / "multi30k_en_de" / f"{split}.{side}.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    os.environ[DATA] = str(folder)
    sweep.load = lambda name: sweep.Sweep(tuple(trials), encoders.measure)
    # A process for each, with its own measurement of the machine, would be most of the time.
    process.measure_matmul_peak = cache(process.measure_matmul_peak)
    sweep.train = lambda trial, runs, log_file: train.main(trial.command(runs))
    sweep.apart = lambda function, *arguments: function(*arguments)
    raise SystemExit(sweep.main(["encoders", "--runs", str(folder / "runs"), "--results", str(folder)]))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    # One device, for which other tests compile the same programs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "")
        process = get_context("spawn").Process(target=run_sweep, args=(folder,))
        process.start()
        process.join()
    assert process.exitcode == 0
    return folder / "encoders.jsonl"


@pytest.fixture(scope="module")
def table(ledger):
    return open_sweep(ledger).table


@pytest.fixture(scope="module")
def whole(table):
    """The table of the whole sweep: for trials that were not run, rows of those that were stand."""
    base, others = (table[table["name"].eq(ONE) == kind].to_dict("records") for kind in (True, False))

    def stand_in(trials):
        rows = []
        for number, trial in enumerate(trials):
            settings = dict(trial.settings)
            row = base[trial.seed - 1] if trial.against is None else others[number % 5 % 3]
            rows.append(row | settings | {"name": trial.name, "seed": trial.seed})
        return rows

    rows = stand_in(trial for trial in encoders.sweep.all([]) if dict(trial.settings)["variant"] == "sum")
    # What is chosen by them, and then what is chosen by that.
    for _ in range(2):
        there = {row["name"] for row in rows}
        rows += stand_in(trial for trial in encoders.following(rows) if trial.name not in there)
    return pandas.DataFrame(rows)


@pytest.fixture(autouse=True)
def closing():
    yield
    plt.close("all")


def test_choices_are_made_by_the_development_set_whose_curve_is_kept(ledger):
    for row in open_sweep(ledger).rows():
        # The same lines are both sets here.
        assert row[encoder_sets.CHOICE] == pytest.approx(row["bleu"])
        ((step, loss, _),) = row["curve"]
        assert step == row["best_step"] == row["best_step_bleu"] == 60 and loss > 0


def left_out(outputs):
    """Of each line that says so, the trials that its command makes."""
    lines = [text for kind, text in outputs if kind == "text/markdown" and text.startswith("Left out")]
    found = []
    for line in lines:
        (command,) = re.findall("`(.*?)`", line)
        python, option, module, *arguments = shlex.split(command)
        assert (python, option, module) == ("python", "-m", "experiments.sweep") and "\n" not in line
        name, arguments = sweep.parse(arguments)
        names = {trial.name for trial in sweep.load(name).all([])}
        # Each is one trial, and none has signs of a pattern in its name.
        assert names.issuperset(arguments.only)
        found.append(list(arguments.only))
    return found


def test_what_is_in_the_ledger_is_drawn_and_the_rest_is_named(ledger, table):
    outputs = execute(NOTEBOOK, ledger)
    figures = [imread(BytesIO(b64decode(data))) for kind, data in outputs if kind == "image/png"]
    for figure in figures:
        # Axes and text alone are shades of grey.
        assert (np.ptp(figure[..., :3], axis=-1) > 0.2).mean() > 0.001
    # Each line stands above its picture, or under the table of costs.
    text, png = "text/markdown", "image/png"
    assert [kind for kind, _ in outputs] == [text, *4 * [text, png], text, text]
    runs, *_, costs, _ = (data for kind, data in outputs if kind == text)
    (row,) = runs.splitlines()[2:]
    cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
    corpus, pairs, trials, seeds, _, updates, signature, _ = cells
    assert (corpus, pairs, trials, seeds, updates) == ("multi30k_en_de", "600", "3", "2", "60")
    assert "version:" in signature
    costs = [[cell.strip() for cell in line.strip("|").split("|")] for line in costs.splitlines()[2:]]
    machine = ["1 x cpu", table["host"].iloc[0]]
    assert [cells[:4] for cells in costs] == [[*machine, BASE, "2"], [*machine, f"{BASE} {EXPANSION}", "2"]]
    flops = table.groupby("name")["gflops"].mean()
    assert [cells[5] for cells in costs] == [f"{flops[name]:.3f} ± 0.000" for name in (ONE, DUAL)]
    synergy, scaling, sizes, depth, costs = left_out(outputs)
    assert synergy == [name for name in plots.SYNERGY if name not in (ONE, DUAL)] and TWICE in synergy
    # Pairs, and encoders alone and twice, decide what the measured orders are.
    grown = plots.names((*encoder_sets.GROWN, *encoder_sets.SHALLOWER))
    assert set(scaling) == {*grown, *plots.SYNERGY} - {ONE, DUAL}
    # Which encoder is the best by itself is not known without all of them.
    assert len(sizes) == 20 + 4 - 2 and len(depth) == 17 - 2 and len(costs) == 10 - 2


def test_without_a_ledger_every_picture_names_its_trials(tmp_path):
    outputs = execute(NOTEBOOK, tmp_path / "encoders.jsonl")
    assert [kind for kind, _ in outputs] == ["text/markdown"] * 6
    assert "encoders.jsonl` is not there yet" in outputs[0][1]
    found = left_out(outputs)
    assert found[0] == plots.SYNERGY and found[2:] == [
        plots.sizes(pandas.DataFrame()),
        plots.DEPTH,
        plots.COSTS,
    ]
    drawn = {name for names in found for name in names}
    summed = [trial.name for trial in encoders.sweep.all([]) if dict(trial.settings)["variant"] == "sum"]
    assert drawn == {name for name in summed if name.startswith("multi30k_en_de")}


@pytest.mark.parametrize("kind", ["table", "whole"])
def test_cells_are_synergies_in_both_readings(kind, request):
    table = request.getfixturevalue(kind)
    single, duplicated, bar = plots.draw_synergy(table).axes
    scores = encoder_sets.mean_scores(table.to_dict("records"))
    limits = {axes.images[0].get_clim() for axes in (single, duplicated)}
    ((low, high),) = limits
    assert low == -high and bar.get_ylim() == (low, high)
    for axes, base in ((single, "single"), (duplicated, "duplicated")):
        expected = np.array(synergy_matrix(scores, encoder_sets.PARTNERS, base), float)
        image = np.ma.filled(axes.images[0].get_array().astype(float), np.nan)
        np.testing.assert_array_equal(image, expected)
        assert np.nanmax(np.abs(expected)) <= high
        written = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
        cells = {
            tuple(map(int, place)): f"{expected[*place]:+.2f}" for place in np.argwhere(expected == expected)
        }
        assert {place: text.split("\n")[0] for place, text in written.items()} == cells
        assert len(cells) == (20 if kind == "whole" else 1)
    names = [text.get_text() for text in single.get_yticklabels()]
    assert names == ["Base", "Static Expansion 12", "LSTM 6", "ConvS2S 6", "FNet 6"]
    bleu = table.set_index(["name", "seed"])["bleu"]
    own = bleu[DUAL] - bleu[ONE]
    assert single.texts[0].get_text() == f"{own.mean():+.2f}\n± {own.std():.2f}"
    # A single seed of the encoder twice gives no deviation.
    of_twice = f"{bleu[DUAL].mean() - bleu[TWICE].mean():+.2f}"
    assert kind == "whole" or duplicated.texts[0].get_text() == of_twice


def lines(axes):
    """Points and bars of what is drawn, by label."""
    found = {}
    for container in axes.containers:
        points, _, (bars,) = container.lines
        lengths = [np.ptp(ends[:, 1]) if len(ends) else np.nan for ends in bars.get_segments()]
        found[container.get_label()] = points.get_xydata(), np.array(lengths) / 2
    return found


def expect(line, x, groups, within=0.15):
    """Means and standard deviations of groups of numbers."""
    points, bars = line
    np.testing.assert_allclose(points[:, 0], x, atol=within, rtol=0.05)
    np.testing.assert_allclose(points[:, 1], [group.mean() for group in groups])
    np.testing.assert_allclose(bars, [group.std() for group in groups], atol=1e-9)


def test_growth_in_the_order_of_the_paper_and_of_what_was_measured(table, whole):
    rows = whole.to_dict("records")
    order, other = (encoder_sets.measured_order(rows, base) for base in plots.READINGS)
    assert order not in (None, list(encoder_sets.PARTNERS)) and other is not None
    expected = {"order of the paper": encoder_sets.PAPER, "the same, LSTM 6": encoder_sets.PARTNERS}
    if order == other:
        expected["by synergy, in both readings"] = order
    elif other == list(encoder_sets.PARTNERS):
        del expected["the same, LSTM 6"]
        expected |= {
            "the same, LSTM 6, and by synergy over the encoder twice": other,
            "by synergy over the encoder alone": order,
        }
    else:
        expected |= {"by synergy over the encoder alone": order, "by synergy over the encoder twice": other}
    axes = plots.draw_scaling(whole).axes[0]
    drawn = lines(axes)
    assert list(drawn) == list(expected)
    for line, by in zip(drawn.values(), expected.values()):
        sets = [encoder_sets.trial_name(first) for first in encoder_sets.grown(by)]
        expect(line, range(1, 6), [whole[whole["name"] == name]["bleu"] for name in sets])
    # What several have in common is named once.
    named, sets = [], set()
    for by in expected.values():
        for count, first in enumerate(encoder_sets.grown(by), 1):
            if first not in sets:
                named.append(f"{'+ ' * (count > 1)}{plots.label(by[count - 1])}")
            sets.add(first)
    assert [text.get_text() for text in axes.texts] == named
    # What is not measured with every seed has no order.
    paper = ["order of the paper", "the same, LSTM 6"]
    drawn = lines(plots.draw_scaling(whole[whole["seed"] == 1]).axes[0])
    assert list(drawn) == paper
    for points, bars in drawn.values():
        assert np.isnan(bars).all() and len(points) == 5
    assert list(lines(plots.draw_scaling(table).axes[0])) == paper
    assert plots.pending(whole, plots.scaling(whole)) == ""
    grown = whole[~whole["name"].eq(encoder_sets.trial_name(encoder_sets.grown(order)[2]))]
    assert encoder_sets.trial_name(encoder_sets.grown(order)[2]) in plots.pending(grown, plots.scaling(grown))


def dev_bleu(table, encoders):
    return table[table["name"] == encoder_sets.trial_name(encoders)][encoder_sets.CHOICE].mean()


def test_gains_over_base_by_the_size_of_the_corpus(table, whole):
    axes = plots.draw_sizes(whole).axes[0]
    drawn = lines(axes)
    alone = max(encoder_sets.ALONE[1:], key=lambda encoders: dev_bleu(whole, encoders))
    assert dev_bleu(whole, alone) > dev_bleu(whole, encoder_sets.BASE)
    best = f"{plots.label(*alone)} alone"
    assert list(drawn) == ["Dual", "Triple", "Quadruple", "Quintuple", best]
    for line, first in zip(drawn.values(), (*encoder_sets.GROWN[1:], alone)):
        names = [encoder_sets.trial_name(first, pairs) for pairs in encoder_sets.PAIRS]
        expect(line, encoder_sets.PAIRS, [whole[whole["name"] == name]["against.bleu"] for name in names])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["3000", "7000", "15000", "29000 (all)"]
    (line,) = lines(plots.draw_sizes(table).axes[0]).values()
    bleu = table.set_index(["name", "seed"])["bleu"]
    expect(line, [encoder_sets.ALL], [bleu[DUAL] - bleu[ONE]])


def test_bleu_by_the_depth_of_the_second_encoder(whole):
    axes = plots.draw_depth(whole).axes[0]
    drawn = lines(axes)
    assert list(drawn) == [f"Base + {name}" for name in ("Static Expansion", "LSTM", "ConvS2S", "FNet")]
    for line, kind in zip(drawn.values(), ("static_expansion", "lstm", "convs2s", "fnet")):
        names = [encoder_sets.trial_name((BASE, f"{kind}:{depth}")) for depth in encoder_sets.DEPTHS]
        expect(line, encoder_sets.DEPTHS, [whole[whole["name"] == name]["bleu"] for name in names])
    base = whole[whole["name"] == ONE]["bleu"]
    assert {line.get_ydata()[0] for line in axes.lines if line.get_label() == "Base"} == {base.mean()}


def test_the_source_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
