"""A model with budgets, as a user trains and asks it: one run, a budget for every translation."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import TINY_BUDGETS, sentences, write_corpus, write_lines
from trained_run import train_once

from experiments.benchmarks import budgets as benchmark
from experiments.measures import BASELINE, TRANSLATIONS, of_budgets
from flaxnmt import open_run
from flaxnmt.cli import main
from flaxnmt.data.discourse import contrastive
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.contrastive import from_discourse, score_contrasts
from flaxnmt.looking import of_gates
from flaxnmt.models.flops import side_flops
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.run_directory import write_json
from flaxnmt.sharding import unbox
from flaxnmt.translation.translator import Translator

pytestmark = pytest.mark.slow

LENGTH = "--training.evaluate-every 60 --training.log-every 10 --training.metric loss".split()
LINES = ["", *sentences(6, seed=3)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    trained = train_once(
        tmp_path_factory, "budgets", lambda data: [*TINY_BUDGETS, *write_corpus(data), *LENGTH]
    )
    return open_run(trained.directory)


def test_training_says_what_it_used_beside_its_budgets(run):
    rows = [row for row in run.metrics if row["kind"] == "train"]
    for name in ("budget_loss", "encoder_over_budget", "decoder_over_budget"):
        assert all(np.isfinite(row[name]) for row in rows), name
    assert rows[-1]["budget_loss"] < rows[0]["budget_loss"]
    assert run.config.model.budgets == ((1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (0.5, 0.5))


@pytest.mark.parametrize(
    "text, budget", [pytest.param("0.5", 0.5, marks=pytest.mark.slow), ("1.0,0.5", (1, 0.5))]
)
def test_every_budget_translates_every_line_and_says_what_it_used(run, tmp_path, text, budget):
    source = write_lines(tmp_path / "in", LINES)
    output, used = tmp_path / "out", tmp_path / "used"
    command = ["translate", "--run", str(run.directory), "--input", str(source), "--output", str(output)]
    assert main([*command, "--budget", text, "--used", str(used)]) == 0
    found = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert found == run.translate(LINES, budget=budget)
    shares = np.loadtxt(used)
    assert shares.shape == (len(LINES), 2) and (shares < 1.5).all()
    blank = [not line.strip() for line in LINES]
    assert any(blank) and not shares[blank].any() and (shares[np.logical_not(blank)] > 0).all()
    scores = run.score(LINES, found, budget=budget)
    expected = [(0, 0) if nothing else score.use for nothing, score in zip(blank, scores, strict=True)]
    np.testing.assert_allclose(shares, expected, atol=1e-4)
    kept = tmp_path / "scores"
    command = ["score", "--run", str(run.directory), "--source", str(source), "--target", str(output)]
    assert main([*command, "--budget", text, "--output", str(kept)]) == 0
    np.testing.assert_allclose(np.loadtxt(kept), [score.log_prob for score in scores], atol=1e-3)
    # Its own translations are the reference.
    command = [
        "evaluate",
        "--run",
        str(run.directory),
        "--source",
        str(source),
        "--reference",
        str(output),
    ]
    kept = tmp_path / "kept"
    assert main([*command, "--budget", text, "--output", str(kept)]) == 0
    assert kept.read_text(encoding="utf-8") == output.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_score_of_a_hypothesis_is_its_score_in_the_search_of_its_budget(run):
    lines = LINES[1:]
    for budget in (None, 0.5):
        outputs = [found[0] for found in run.hypotheses(lines, budget=budget)]
        scores = run.score(lines, [output.text for output in outputs], budget=budget)
        for output, score in zip(outputs, scores, strict=True):
            assert output.tokens == score.tokens[:-1]
            assert abs(output.log_prob - score.log_prob) < 1e-3


def test_contrasts_are_judged_at_their_budget(run, tmp_path):
    command = ["contrast", "--run", str(run.directory), "--set", "discourse:test:4", "--json"]
    examples = [from_discourse(example) for example in contrastive("test", 4)]
    judged = []
    for budget in ("1", "0.5"):
        kept = tmp_path / budget
        assert main([*command, "--budget", budget, "--write-scores", str(kept)]) == 0
        scores = score_contrasts(examples, partial(run.log_probs, budget=float(budget)))
        judged.append(np.concatenate(scores))
        np.testing.assert_allclose(np.loadtxt(kept), -judged[-1], rtol=1e-3)
    assert not np.allclose(*judged, rtol=1e-3)


def test_every_gate_says_how_much_it_lets_through(run):
    lines = LINES[1:]
    outputs = run.translate(lines, budget=0.5)
    rows = run.gates(lines, outputs, budget=0.5)
    kinds = {(row["stack"], row["block"], row["gate"]) for row in rows}
    # One layer a side: two gates an attention, and one for each part of the feed-forward network.
    assert len(kinds) == 8 and len(rows) == 10
    assert all(0 <= row["on"] <= 1 and 0 <= row["mixed"] <= 1 for row in rows)
    shut = {row["stack"] for row in rows if row["on"] < 1}
    assert shut == {"encoder", "decoder"}
    # More lines than a batch holds, of which the last is not whole.
    for row, many in zip(rows, run.gates(lines * 40, outputs * 40, budget=0.5), strict=True):
        assert many == pytest.approx(row)
    for some in ([], outputs[:-1]):
        with pytest.raises(DataError, match="lines and .* translations"):
            run.gates(lines if some else [], some)


@pytest.mark.slow
def test_gates_are_counted_of_what_a_model_reads_of_a_line(run, caplog):
    """As a translation cuts it; what is behind has no positions of its own."""
    config = dataclasses.replace(run.model.config, positions="learned", max_positions=5)
    size = run.model.target_vocab
    model = Seq2Seq(config, size, size)
    params = unbox(model.init(jax.random.key(0), *2 * [jnp.ones((1, 3), jnp.int32)])["params"])
    translator = Translator(model, params, run.vocabularies, run.config.decoding)
    long = " ".join(LINES[1:])
    cut = " ".join(long.split()[:4])
    assert of_gates(translator, [long], [long]) == of_gates(translator, [cut], [cut])
    assert caplog.text.count("1 of 1 lines exceed 5 tokens and are cut there") == 2


@pytest.mark.slow
def test_the_same_text_at_every_batch_size(run):
    lines = LINES[1:]
    assert run.translate(lines, budget=0.5, batch_size=1) == run.translate(lines[::-1], budget=0.5)[::-1]


def test_a_budget_that_was_not_trained_is_refused(run, opened, capsys):
    with pytest.raises(ConfigError, match="not trained for the budget 0.3,0.3; its budgets"):
        run.translate(LINES, budget=0.3)
    with pytest.raises(ConfigError, match="this model has no budgets"):
        opened.translate(LINES, budget=0.5)
    assert main(["translate", "--run", str(run.directory), "--budget", "half"]) == 2
    assert "budget 'half': give a number" in capsys.readouterr().err


@pytest.fixture(scope="module")
def measured(run):
    return of_budgets(run, LINES[1:], LINES[1:])["rows"]


def test_a_sweep_has_a_row_for_each_budget(run, measured):
    budgets = [(row["encoder_budget"], row["decoder_budget"]) for row in measured]
    assert budgets == list(run.config.model.budgets)
    for row in measured:
        assert 0 <= row["bleu"] <= 100 and row["decoding_seconds"] > 0 and len(row["gates"]) == 10
        encoder, decoder = side_flops(run.config.model, words=10, symbols=20)
        assert 0 < row["flops"] < encoder + decoder, "lines of up to seven words"


def test_a_budget_is_compared_with_the_full_one(measured):
    (full,) = (row for row in measured if row["encoder_budget"] == row["decoder_budget"] == 1)
    assert full["of_full"]["bleu"] == full["of_full"]["chrf"] == 0
    for row in measured:
        assert row["of_full"]["chrf"] == pytest.approx(row["chrf"] - full["chrf"])
        assert row["logits_flops"] > 0


@pytest.mark.slow
def test_a_budget_is_compared_with_that_of_a_baseline_of_as_much_work(run, measured):
    lines = LINES[1:]
    there = json.loads((run.directory / TRANSLATIONS).read_text())
    wrong = there[-1] | {"outputs": ["nothing of it"] * len(lines)}

    def against(baseline):
        write_json(run.directory / BASELINE, baseline)
        return [row["against"] for row in of_budgets(run, lines, lines, samples=20)["rows"]]

    rows = against([*there[:-1], wrong])
    # At the same budget, whatever either needs for it.
    dear = against([wrong | {"flops": [1e12, 1e12]}, there[0]][::-1])
    # Of a baseline without budgets what does more work does not count, near as it may be.
    work = [row["flops"] for row in measured]
    others = [
        {"budget": None, "flops": [scale * flops / 2] * 2, "outputs": wrong["outputs"]}
        for scale in (0.5, 1.03)
        for flops in work
    ]
    cheap = against(others)
    plain, *_ = against(there[0]["outputs"])
    assert plain["chrf"] == 0 and "flops" not in plain, "a baseline that was measured without budgets"
    (run.directory / BASELINE).unlink()
    assert [row["flops"] for row in rows] == work
    *same, other = [row["chrf"] for row in rows]
    assert same == [0] * len(same) and other != 0
    assert dear[-1]["flops"] == 2e12
    for row, flops in zip(cheap, work):
        assert row["flops"] <= 1.02 * flops < row["dearer"]["flops"] and row["dearer"]["bleu_p"] > 0
    assert "dearer" not in dear[-1] and dear[-1]["encoder_budget"] == there[-1]["budget"][0]


@pytest.mark.slow
def test_some_budgets_of_a_model_are_measured_alone(run, measured):
    (full,) = of_budgets(run, LINES[1:], LINES[1:], [(1.0, 1.0)])["rows"]
    (before,) = (row for row in measured if row["encoder_budget"] == row["decoder_budget"] == 1)
    assert full | {"decoding_seconds": 0} == before | {"decoding_seconds": 0}


@pytest.mark.slow
def test_the_benchmark_measures_a_trained_run_and_imposed_gates_of_the_same_use(run):
    options = benchmark.Options(sentences=2, source_length=4, target_length=3, beam=2, encoded=64, rounds=1)
    rows = benchmark.measure_run(run, options)
    found = [(row["gates"], row["gates open"], row["task"]) for row in rows]
    trained = [("trained", name, task) for task in ("encode", "search") for name in ("1", "0.5")]
    assert found[:4] == trained and {row["gates"] for row in rows[4:]} == {"imposed"}
    use = {cell: row["use"] for cell, row in zip(found, rows)}
    assert use["trained", "0.5", "encode"] < use["trained", "1", "encode"] < 1.3
    for task in ("encode", "search"):
        # Of a few tokens' gates.
        assert abs(use["imposed", f"0.5, {task}", task] - use["trained", "0.5", task]) < 0.1
    assert all(row["milliseconds"] > 0 and row["floor"] > 0 for row in rows)
