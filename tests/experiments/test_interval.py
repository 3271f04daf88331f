"""Rows of metrics from updates."""

import math

import numpy as np

from experiments.interval import Interval

KNOWN = {"learning_rate": 0.1, "bad_steps": 1}
GOOD, BAD = KNOWN | {"bad_in_a_row": 0}, KNOWN | {"bad_in_a_row": 1, "loss": math.nan}


def row_of(*updates):
    interval = Interval()
    for update in updates:
        interval.add(update, [{"source": np.ones((2, 3), int), "target": np.eye(3, dtype=int)}], 10)
    _, _, derive = interval.row(2.0, 100.0, {"minutes": 1})
    return derive({"metrics": list(updates)})


def test_losses_are_means_by_token_of_the_updates_that_were_applied():
    row = row_of(GOOD | {"loss": 1.0, "tokens": 1}, GOOD | {"loss": 2.0, "tokens": 3}, BAD | {"tokens": 5})
    assert row["loss"] == 1.75 and row["bad_steps"] == 1 and row["minutes"] == 1
    # Time was spent on all of them.
    assert row["target_tokens_per_second"] == 4.5
    assert math.isnan(row_of(BAD | {"tokens": 5})["loss"])
