"""Rows of finished trials: whole, in order, and not lost when another is added."""

import json
import sys

import pytest

from flaxnmt import open_sweep
from flaxnmt.errors import RunError
from flaxnmt.ledger import Ledger, link_ledger

ROWS = [{"key": "a", "score": 12.5}, {"key": "b", "name": "Müller"}, {"key": "c", "by_distance": {"1": 50.0}}]


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "results" / "trials.jsonl")
    assert ledger.rows() == [] and ledger.keys() == set()
    for row in ROWS[:2]:
        ledger.add(row)
    return ledger


def test_rows_are_kept_in_order(ledger):
    assert ledger.rows() == ROWS[:2] and ledger.keys() == {"a", "b"}
    assert ledger.path.read_text(encoding="utf-8").splitlines()[1] == '{"key": "b", "name": "Müller"}'
    Ledger(ledger.path).add(ROWS[2])
    assert ledger.rows() == ROWS
    assert [path.name for path in ledger.path.parent.iterdir()] == ["trials.jsonl"]


def test_a_torn_last_row_is_replaced_wherever_it_ends(ledger):
    whole = ledger.path.read_bytes()
    last = whole.rindex(b"{")
    # Within the row, within a letter of two bytes, and before the end of the line only.
    for end in (last + 1, last + 15, whole.index("ü".encode()) + 1, len(whole) - 1):
        ledger.path.write_bytes(whole[:end])
        kept = ROWS[:1] if end < len(whole) - 1 else ROWS[:2]
        assert ledger.rows() == kept
        ledger.add(ROWS[2])
        assert ledger.rows() == [*kept, ROWS[2]]


@pytest.mark.parametrize("line", ['{"key": ', "3", '{"name": "no key"}'])
def test_a_line_that_is_no_row_is_named(ledger, line):
    ledger.path.write_text("\n".join([json.dumps(ROWS[0]), line, json.dumps(ROWS[1])]) + "\n")
    before = ledger.path.read_bytes()
    for attempt in (ledger.rows, lambda: ledger.add(ROWS[2])):
        with pytest.raises(RunError, match=r"trials\.jsonl:2: not a row of a trial; take the line out"):
            attempt()
    assert ledger.path.read_bytes() == before


def test_the_last_row_of_a_trial_that_has_changed_counts(ledger):
    for key, seed, score in (("x-1", 1, 5), ("x-2", 2, 6), ("x-3", 1, 7)):
        ledger.add({"key": key, "name": "x", "seed": seed, "score": score})
    assert [(row["key"], row["score"]) for row in ledger.tidy() if row.get("name") == "x"] == [
        ("x-3", 7),
        ("x-2", 6),
    ]
    assert {"x-1", "x-2", "x-3"} < ledger.keys()


NESTED = [
    {"key": "a", "seed": 1, "scores": {"true": {"bleu": 2.5}, "none": {"bleu": 2.0}}, "list": [1, 2]},
    {
        "key": "b",
        "seed": 2,
        "rows": [{"budget": 0.5, "scores": {"true": {"bleu": 1.0}}}, {"budget": 1.0, "seed": 3}],
    },
    {"key": "c", "seed": 4, "rows": []},
]


@pytest.fixture
def opened(tmp_path):
    ledger = Ledger(tmp_path / "trials.jsonl")
    for row in NESTED:
        ledger.add(row)
    return open_sweep(str(ledger.path))


def test_rows_without_nesting(opened):
    assert opened.rows() == NESTED
    assert opened.tidy() == [
        {"key": "a", "seed": 1, "scores.true.bleu": 2.5, "scores.none.bleu": 2.0, "list": [1, 2]},
        {"key": "b", "seed": 2, "budget": 0.5, "scores.true.bleu": 1.0},
        {"key": "b", "seed": 3, "budget": 1.0},
    ]


def test_a_data_frame_has_a_row_for_each(opened):
    pytest.importorskip("pandas")
    frame = opened.table
    assert frame.columns.tolist() == ["key", "seed", "scores.true.bleu", "scores.none.bleu", "list", "budget"]
    assert frame["seed"].tolist() == [1, 2, 3]
    assert frame.groupby("key")["budget"].mean()["b"] == 0.75
    assert frame["scores.none.bleu"].isna().tolist() == [False, True, True]


def test_a_sweep_is_opened_by_its_directories(opened, tmp_path):
    (tmp_path / "trials").mkdir()
    runs = tmp_path / "runs"
    (runs / "a-seed1").mkdir(parents=True)
    with pytest.raises(RunError, match="runs: no ledger of a sweep there"):
        open_sweep(runs)
    for _ in range(2):
        link_ledger(opened, runs)
        # Of the runs, the results and the translations.
        for path in (runs, tmp_path, tmp_path / "trials"):
            assert open_sweep(str(path)).rows() == NESTED
    other = Ledger(tmp_path / "results" / "trials.jsonl")
    other.add(ROWS[0])
    link_ledger(other, runs)
    assert open_sweep(runs).rows() == ROWS[:1]
    Ledger(runs / "more.jsonl").add(ROWS[1])
    with pytest.raises(
        RunError, match=r"runs: 2 ledgers of sweeps there, name one: more.jsonl, trials.jsonl"
    ):
        open_sweep(runs)
    # Where the ledger itself lies nothing is linked.
    link_ledger(other, other.path.parent)
    assert other.rows() == ROWS[:1] and not other.path.is_symlink()


def test_what_is_missing_is_one_line(opened, tmp_path, monkeypatch):
    with pytest.raises(RunError, match="no ledger of a sweep there"):
        open_sweep(str(tmp_path / "other.jsonl"))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RunError, match=r"need pandas: pip install 'flaxnmt\[plots\]'"):
        _ = opened.table
