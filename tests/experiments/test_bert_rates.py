"""Learning rates of the sweep on pre-trained encoders: the one that the development set prefers is run with all seeds."""

import pytest

from experiments.sweeps import bert

DEV = {"3e-4": 80.0, "1e-4": 70.0, "1e-3": 90.0}


def row(rate, seed=1, pretrained="yes", **scores):
    trial = {"task": "sst2", "model": "plain", "pretrained": pretrained, "rate": rate, "seed": seed}
    return trial | {"name": f"sst2-plain-rate-{rate}", "dev": DEV[rate]} | scores


@pytest.fixture
def rows():
    """All rates of one seed; the largest is the best of the development set and not of the test set."""
    return [row("3e-4", accuracy=79.0), row("1e-4", accuracy=75.0), row("1e-3", accuracy=77.0)]


def names(rows):
    return [(trial.name, trial.seed) for trial in bert.following(rows)]


def test_other_seeds_run_at_the_rate_that_the_development_set_prefers(rows):
    assert bert.preferred(rows) == {("sst2", "yes"): "1e-3"}
    again = [("sst2-plain-rate-1e-3", seed) for seed in bert.SEEDS[1:]]
    assert [name for name in names(rows) if name[1] != 1] == again


def test_no_rate_is_preferred_before_all_are_there(rows):
    masked = {"task": "masked", "model": "plain", "pretrained": "yes", "seed": 1, "name": "masked-plain"}
    gated = row("1e-3") | {"model": "gated"}
    assert not bert.preferred([*rows[:2], masked, gated, row("1e-3", seed=2), row("1e-3", pretrained="no")])


def test_a_preferred_rate_that_all_trials_have_adds_none(rows):
    rows[0]["dev"] = 95.0
    own = {trial.key for trial in bert.trials(tuple(bert.TASKS))}
    again = [trial for trial in bert.following(rows) if trial.seed != 1]
    assert {trial.directory for trial in again} == {"sst2-plain-seed2", "sst2-plain-seed3"}
    assert {trial.key for trial in again} <= own


def test_the_table_shows_preferred_rates_alone(rows):
    found = shown("With and without", [*rows, row("1e-3", seed=2, accuracy=79.0)])
    (line,) = [line for line in found if "sst2" in line]
    assert "1e-3" in line and "78.0 ± 1.4" in line
    budgets = {"budget": 0.5, "share": 0.5, "flops": 2e6, "computed_flops": 2e6}
    gated = row("1e-3", accuracy=60.0, **budgets) | {"model": "gated"}
    others = [one | budgets for one in rows]
    found = shown("SST-2 (figure 7)", [*others, gated, gated | {"rate": "3e-4", "accuracy": 50.0}])
    (line,) = [line for line in found if "gated" in line]
    assert "60.0" in line


def shown(title, rows):
    """Lines of the table of preferred rates with this title."""
    (table,) = (
        table
        for table in bert.TABLES
        if isinstance(table, bert.AtPreferredRates) and table.title.startswith(title)
    )
    return table.lines(rows)


def test_all_models_run_at_the_preferred_rate_with_one_seed(rows):
    found = {name for name, seed in names(rows) if seed == 1} - {"sst2-plain-rate-1e-3"}
    own = (bert._named(model) for model in bert.MODELS if model != bert.PLAIN)
    assert {f"sst2-{name}-rate-1e-3" for name in own} <= found
    assert not any("unlearned" in name for name in found)
