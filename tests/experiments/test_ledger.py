"""Rows of finished trials: whole, in order, and not lost when another is added."""

import json

import pytest

from experiments.ledger import Ledger
from flaxnmt.errors import RunError

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
