"""The notebook on pre-trained encoders, executed on the ledger of a sweep of tiny runs; the trials of that sweep."""

import dataclasses
import gzip
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
from tiny_runs import sentences

from experiments import sweep, tables
from experiments.arguments import parse
from experiments.plots import bert as plots
from experiments.sweeps import bert
from flaxnmt import open_sweep

# A sweep is really trained for it.
pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "experiments/notebooks/bert.ipynb"
TINY = (
    "--model.d-model 16 --model.encoder.layers 1 --model.encoder.attention.heads 2 --model.encoder.feed-forward 32 "
    "--model.max-positions 16 --data.max-length 16 --data.buckets 1 --data.tokenizer.kind word "
    "--data.tokenizer.vocab-size 50 --data.batch-tokens 256 --optimizer.warmup-steps 2 --max-steps 6 "
    "--training.evaluate-every 3"
).split()
TRIALS = "masked-plain", "masked-gated", "sst2-plain", "sst2-gated"
GATES = (
    "--model.budget.blocks 1 --training.budget.begin 1 --training.budget.fall-steps 3 --training.budget.noise-steps 3 "
    "--training.budget.decide-from 4"
).split()


def write(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def small_sweep(name: str) -> sweep.Sweep:
    """Trials of the sweep, with its names and flags, at the size of a test."""
    trials = (trial for trial in bert.sweep.trials if trial.seed == 1 and trial.name in TRIALS)
    small = (
        dataclasses.replace(
            trial, options=(*trial.options, *TINY, *(GATES if trial.name.endswith("gated") else ()))
        )
        for trial in trials
    )
    return sweep.Sweep(tuple(small), bert.measure, bert.TABLES)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """That of `small_sweep`."""
    folder = tmp_path_factory.mktemp("bert")
    for book in (*bert.BOOKS, "frankenstein"):
        write(folder / "mono_en" / f"{book}.txt.gz", sentences(40, seed=len(book)))
    for seed, split in enumerate(("train", "dev", "test")):
        rows = [f"{i % 2}\t{line}" for i, line in enumerate(sentences(30, seed))]
        write(folder / "sst2" / f"{split}.tsv.gz", ["label\tsentence", *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "")
        patch.setattr(sweep, "load", small_sweep)
        places = ["--runs", str(folder / "runs"), "--results", str(folder), "--data", str(folder)]
        assert sweep.main(["bert", *places]) == 0
    return folder / "bert.jsonl"


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
    names = {trial.name for trial in bert.trials(tuple(bert.TASKS))}
    commands = [[shlex.split(command) for command in re.findall("`(.*?)`", line)] for line in lines]
    for command in (command for line in commands for command in line):
        assert command[:4] == ["python", "-m", "experiments.sweep", "bert"]
        (only,) = sweep.parse(command[3:])[1].only
        assert any(fnmatch(name, only) for name in names)
    return [[command[command.index("--only") + 1] for command in line] for line in commands]


def test_what_is_in_the_ledger_is_drawn_and_the_rest_is_named(ledger):
    outputs = execute(NOTEBOOK, ledger)
    text, png = "text/markdown", "image/png"
    assert [kind for kind, _ in outputs] == [text, text, png, text, text, text, png, text, text]
    assert "sst2-unlearned" in outputs[3][1]
    for kind, data in outputs:
        if kind == png:
            # Axes and text alone are shades of grey.
            figure = imread(BytesIO(b64decode(data)))
            assert (np.ptp(figure[..., :3], axis=-1) > 0.2).mean() > 0.001
    assert all(re.search(rf"\| {name} +\| 1 +\|", outputs[0][1]) for name in TRIALS)
    smaller, both = ("?-of-?-layers", "width-*-of-???"), ("gated", "plain")
    assert left_out(outputs) == [
        [f"masked-{model}" for model in smaller],
        ["sst2-unlearned", "cola-plain", "cola-unlearned"],
        [f"mnli-{model}" for model in (*both, *smaller)],
        [f"sst2-{model}" for model in smaller],
        [f"cola-{model}" for model in (*both, *smaller)],
        [f"squad-{model}" for model in (*both, *smaller)],
    ]


def test_rows_say_what_each_budget_uses(table):
    gated = table[table["name"] == "sst2-gated"].sort_values("budget")
    assert gated["budget"].tolist() == [0.25, 0.5, 0.75, 1.0] and (gated["share"] > 0).all()
    (plain,) = table[table["name"] == "sst2-plain"].to_dict("records")
    assert np.isnan(plain["budget"])
    # Both count in the same way; the last layer of the plain one computes the token alone that the class is read off.
    for row in (plain, *gated.to_dict("records")):
        assert row["flops"] / row["share"] == pytest.approx(plain["flops"] / plain["share"])
    assert plain["computed_flops"] < 0.99 * plain["flops"]
    np.testing.assert_array_equal(gated["computed_flops"], gated["flops"])
    # At the end of the training, whatever was best before.
    assert 0 <= plain["dev"] <= 100 and plain["commonest"] == pytest.approx(50)
    assert table[table["task"] == "sst2"]["accuracy"].between(0, 100).all()
    masked = table[table["task"] == "masked"]
    assert (masked["unigram_perplexity"] > 1).all() and len(masked) == 5


def test_points_of_a_task_are_its_rows(table):
    (axes,) = plots.draw_task(table, "sst2").axes
    drawn = {container.get_label(): container.lines[0].get_xydata() for container in axes.containers}
    assert set(drawn) == {"one model, all budgets", "plain"} and axes.get_title() == "SST-2 (figure 7)"
    gated = table[table["name"] == "sst2-gated"].sort_values("flops")
    np.testing.assert_allclose(
        drawn["one model, all budgets"], np.c_[gated["flops"] / 1e6, gated["accuracy"]]
    )


def test_one_curve_has_one_rate(table):
    plain = table[table["name"] == "sst2-plain"]
    narrow = [plain.assign(name=f"sst2-width-64-of-128{rate}", flops=1e6) for rate in ("", "-rate-1e-3")]
    (axes,) = plots.draw_task(pandas.concat([table, *narrow]), "sst2").axes
    drawn = {container.get_label(): container.lines[0].get_xydata() for container in axes.containers}
    assert len(drawn["narrower"]) == 2 and 1.0 in drawn["narrower"][:, 0]


def test_gains_are_bars_beside_each_other(table):
    # The gated model at a small budget stands for one without pre-training.
    other = table[(table["name"] == "sst2-gated") & (table["budget"] == 0.25)].assign(name="sst2-unlearned")
    (axes,) = plots.draw_gain(pandas.concat([table, other])).axes
    (plain,) = table[table["name"] == "sst2-plain"]["accuracy"]
    assert [bar.get_height() for bar in axes.patches] == [other["accuracy"].item(), plain]


def test_the_ledger_has_its_tables(ledger, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "load", small_sweep)
    assert tables.main(["bert", "--results", str(ledger.parent)]) == 0
    shown = capsys.readouterr().out
    assert "### Masked language models" in shown and "### SST-2 (figure 7)" in shown
    assert "### With and without pre-training" in shown and "CoLA" not in shown


def test_what_was_finished_where_there_was_more_data_is_shown_here():
    here = sweep.Sweep(bert.trials(("sst2",)), bert.measure, following=bert.elsewhere)
    everywhere = sweep.Sweep(bert.trials(tuple(bert.TASKS)), bert.measure).all([])
    (done,) = (trial for trial in everywhere if trial.directory == "mnli-plain-seed1")
    keys = [
        {trial.key for trial in here.all(rows)}
        for rows in ([], [{"key": done.key, "name": done.name, "seed": done.seed}])
    ]
    assert keys[1] - keys[0] == {done.key} and keys[0] < keys[1]


def test_trials_of_the_sweep_differ_in_what_is_compared(tmp_path):
    found = {trial.directory: trial for trial in bert.trials(tuple(bert.TASKS))}
    assert all(trial.start in {None, *found} for trial in found.values())
    # One of each kind: reading a command takes a while.
    kinds = "mnli-plain", "squad-3-of-4-layers", "cola-width-64-of-128", "sst2-gated", "sst2-unlearned"
    tuned = [found[f"{name}-seed1"] for name in kinds]
    configs = {
        trial.directory: parse(trial.command(tmp_path)).resolved()
        for trial in (*tuned, *(found[trial.start] for trial in tuned))
    }
    for trial in tuned:
        config, start = configs[trial.directory], configs[trial.start].model
        # The encoder is that of its start; the head is another one, and fine-tuning alone has dropout.
        assert config.model.dropout > start.dropout == 0
        assert dataclasses.replace(config.model, head="masked", classes=2, dropout=0.0) == start
        assert config.training.metric == bert.TASKS[dict(trial.settings)["task"]].metric
    model = configs["masked-width-64-of-128-seed1"].model
    assert model.encoder.feed_forward == 4 * model.d_model == 256
    gated = configs["sst2-gated-seed1"]
    assert (
        gated.model.budgets == ((1.0,), (0.75,), (0.5,), (0.25,)) and gated.training.budget.noise_start == 5
    )
    assert configs["masked-unlearned-seed1"].model == configs["masked-plain-seed1"].model
    assert configs["masked-unlearned-seed1"].optimizer.learning_rate == 0


def test_the_source_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
