"""Tables of a ledger: which trials belong to a row, and what stands in it."""

import json

import pytest
from cases import slow_but
from markdown_tables import narrow

from experiments import sweep
from experiments.arguments import parse
from experiments.tables import BY_DISTANCE, CONTRASTIVE, Difference, Least, Table, main
from experiments.trial import Sweep, Trial
from flaxnmt.ledger import tidy

ROWS = [
    {"key": "a1", "seed": 1, "kind": "a", "t": 2, "scores": {"bleu": 10.0, "p": 0.25}, "minutes": 3},
    {"key": "a2", "seed": 2, "kind": "a", "t": 2, "scores": {"bleu": 13.0, "p": 0.75}, "minutes": 5},
    {"key": "a3", "seed": 3, "kind": "a", "t": 4, "scores": {"bleu": 1.0, "p": 0}, "minutes": 99960},
    {"key": "b1", "seed": 1, "kind": "b", "rows": [{"t": 2, "minutes": 1}, {"t": 8, "minutes": 2}]},
]
COLUMNS = {"BLEU": "scores.bleu", "p": "scores.p", "hours": lambda row: row["minutes"] / 60}
TABLES = (
    Table("All", ("kind", "t"), COLUMNS),
    Table("Of a", ("t",), {"BLEU": "scores.bleu"}, {"kind": "a", "t": (2, 8)}),
    Table("Of none", ("t",), COLUMNS, {"kind": "c"}),
)


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """Exit code and lines of the command for these rows."""

    def run(rows, trials=ROWS):
        """Rows of these trials, in their order; the sweep has those of ROWS."""
        rows = [row | {"key": Trial(f"{row}", "text_tiny").key} for row in rows]
        known = tuple(Trial(f"{row}", "text_tiny") for row in trials)
        monkeypatch.setattr(sweep, "load", lambda name: Sweep(known, lambda run, trial: {}, TABLES))
        (tmp_path / "tiny.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        code = main(["tiny", "--results", str(tmp_path)])
        said = capsys.readouterr()
        return code, narrow(said.out) + said.err.splitlines()

    return run


def test_rows_are_settings_and_cells_means_over_seeds(shown):
    assert shown(ROWS) == (
        0,
        [
            "### All", "",
            "| kind | t | seeds | BLEU | p | hours |", "| --- | --- | --- | --- | --- | --- |",
            "| a | 2 | 2 | 11.5 ± 2.1 | 0.500 ± 0.354 | 0.067 ± 0.024 |",
            "| a | 4 | 1 | 1.0 | 0.0 | 1666 |",
            "| b | 2 | 1 | - | - | 0.017 |",
            "| b | 8 | 1 | - | - | 0.033 |", "",
            "### Of a", "",
            "| t | seeds | BLEU |", "| --- | --- | --- |", "| 2 | 2 | 11.5 ± 2.1 |", "",
        ],
    )  # fmt: skip


def test_a_column_of_the_run_counts_a_trial_once():
    rows = [
        {"key": key, "seed": seed, "b": b, "fall": 2.0 * seed}
        for key, seed in (("x", 1), ("y", 2))
        for b in range(9)
    ]
    columns = {"fall": "fall", "runs that fell, %": lambda row: 100.0 * (row["fall"] > 3)}
    lines = Table("Falls", (), columns, once=True).lines(rows)
    assert narrow("\n".join(lines))[2:] == ["| 2 | 3.0 ± 1.4 | 50.0 ± 70.7 |"]


def test_a_difference_has_its_sign_and_two_decimals():
    rows = [{"key": one, "seed": one, "over": {"bleu": value}} for one, value in ((1, 0.0625), (2, -3.0625))]
    columns = {"one": Difference("over.bleu"), "twice": Difference(lambda row: -2 * row["over.bleu"])}
    tables = [Table("Over", by, columns).lines([tidy(row)[0] for row in rows]) for by in ((), ("seed",))]
    assert [narrow("\n".join(lines))[2:] for lines in tables] == [
        ["| 2 | -1.50 ± 2.21 | +3.00 ± 4.42 |"],
        ["| 1 | +0.06 | -0.12 |", "| 2 | -3.06 | +6.12 |"],
    ]


def test_of_a_time_the_least_is_shown():
    rows = [{"key": one, "seed": one, "minutes": value} for one, value in ((1, 9.0), (2, 6.5), (3, None))]
    columns = {"minutes": Least("minutes"), "seconds": Least(lambda row: 60 * (row["minutes"] or 1))}
    assert narrow("\n".join(Table("Times", (), columns).lines(rows)))[2:] == ["| 3 | 6.5 | 60.0 |"]


def test_rows_of_trials_that_have_changed_are_left_out(shown, caplog):
    _, lines = shown(ROWS, ROWS[1:])
    assert "| a | 2 | 1 |" in "\n".join(lines)
    assert "1 rows are left out: their trials have changed since" in caplog.text


def test_distances_are_in_groups():
    accuracy = {"by_distance": {str(d): 100.0 if d <= 4 else 50.0 + d for d in range(1, 13)}, "all": 70.0}
    row = {f"contrastive.true.by_distance.{d}": value for d, value in accuracy["by_distance"].items()}
    (_, _, line) = Table("t", ("name",), CONTRASTIVE).lines(
        [row | {"name": "x", "seed": 1, "contrastive.true.all": 70.0}]
    )
    assert narrow(line)[0] == "| x | 1 | - | - | - | 100.0 | 56.5 | 60.5 | 70.0 | - | - | - |"


def test_a_phenomenon_has_its_distances_and_the_least_of_them():
    place = "contrastive.true.by_phenomenon_and_distance.noun"
    row = {f"{place}.{d}": 100.0 if d <= 4 else 50.0 + d for d in range(1, 13)}
    row |= {f"contrastive.true.by_distance.{d}": 60.0 + d % 3 for d in range(1, 13)}
    (_, _, line) = Table("t", ("name",), BY_DISTANCE).lines([row | {"name": "x", "seed": 1}])
    assert narrow(line)[0] == f"| x | 1 |{4 * ' - |'} 100.0 | 56.5 | 60.5 | 55.0 |{4 * ' - |'} 60.0 |"


def test_a_sweep_without_rows_is_one_line(shown):
    code, (line,) = shown([])
    assert (
        code == 2
        and line.startswith("error: ")
        and "no finished trial; python -m experiments.sweep tiny" in line
    )


@pytest.mark.parametrize(
    "name",
    slow_but(["documents", "tokenizers"], sweep.names()),
)
def test_the_trials_of_every_sweep_are_trainings_with_names_of_their_own(name, tmp_path, monkeypatch):
    """Every option is one of the configuration's, and no ledger says where data lies."""
    found = sweep.load(name)
    assert (
        len({trial.key for trial in found.trials})
        == len({t.directory for t in found.trials})
        == len(found.trials)
    )
    names = {trial.directory for trial in found.trials}
    for trial in found.all([]):
        assert {trial.start, trial.baseline} - {None} <= names and str(tmp_path) not in trial.key
        assert (trial.origin is None) == (trial.after is None)
        if trial.seed == 1:
            assert parse(trial.command(tmp_path)).resolved().data.train
