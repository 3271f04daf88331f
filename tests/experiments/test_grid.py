"""A grid of options: every combination is trained once, and the development set says which is preferred."""

import json

import pytest

from experiments import grid
from flaxnmt.errors import ConfigError
from flaxnmt.ledger import Ledger

COMMON = (
    *"--train discourse:train:40 --dev discourse:dev:1 --data.tokenizer.vocab-size 300".split(),
    *"--model.d-model 16 --model.encoder.layers 1 --model.decoder.layers 1".split(),
    *"--data.batch-tokens 256 --data.buckets 1 --max-steps 4 --training.evaluate-every 4".split(),
    *"--training.evaluate-translations 0 --training.metric loss --decoding.beam-size 1 --data.test".split(),
)
RATES = ("--over", "optimizer.learning-rate=1e-9,0.1")


def test_every_combination_is_a_training_of_its_own():
    over = grid.axes(("max-epochs=2,3", "--model.budget.encoder=1 0.5,1"))
    found = grid.trials("text_tiny", over, ("--train", "a"), (1, 2))
    assert [trial.directory for trial in found[:3]] == [
        "max-epochs-2-encoder-1-0.5-seed1",
        "max-epochs-2-encoder-1-0.5-seed2",
        "max-epochs-2-encoder-1-seed1",
    ]
    assert len({trial.key for trial in found}) == len(found) == 8
    assert found[1].options == ("--train", "a", "--max-epochs", "2", "--model.budget.encoder", "1", "0.5")
    (start, _) = grid.trials("text_tiny", {"init-from": ["runs/a", "gs://b/c"]}, (), (1,))
    assert start.directory == "init-from-runs-a-seed1"
    assert dict(found[0].settings) == {"max-epochs": "2", "model.budget.encoder": "1 0.5"}


@pytest.mark.parametrize("metric, best", [("accuracy", ("b",)), ("loss", ("a",))])
def test_the_mean_over_seeds_decides(metric, best):
    rows = [
        {"rate": rate, "metric": metric, "dev": score}
        for rate, score in (("a", 1.0), ("a", 2.0), ("b", 1.9), ("b", 1.9), ("c", 1.9))
    ]
    assert grid.preferred(rows, ["rate"])[0] == best


@pytest.mark.parametrize(
    "argv, said",
    [
        (("--over", "max-epochs"), "--over max-epochs: give OPTION=VALUE,VALUE"),
        (("--over", "max-epochs=2,"), "give OPTION=VALUE,VALUE"),
        (("--over", "a=1", "--over", "a=2"), "a has its values already"),
        ((), "no --over: give an option"),
        ((*RATES, "--", "--seed", "3"), "--seed behind --: give --seeds in front"),
        (("--over", "optimizer.learning-rat=1"), "[Uu]nrecognized .*learning-rat"),
        ((*RATES, "--jobs", "0"), "--jobs 0: give 1 or more"),
    ],
)
def test_what_is_no_grid_is_refused_before_anything_is_trained(argv, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        grid.run(["text_tiny", "--runs", str(tmp_path / "runs"), *argv])
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_grid_is_trained_continued_and_judged(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XLA_FLAGS", "")
    argv = ["discourse_demo", "--runs", str(tmp_path / "runs"), *RATES]
    assert grid.main([*argv, "--jobs", "2", "--", *COMMON]) == 0
    said = capfd.readouterr().out
    rows = Ledger(tmp_path / "runs" / "grid.jsonl").rows()
    worse, better = sorted(rows, key=lambda row: row["dev"], reverse=True)
    assert worse["optimizer.learning-rate"] == "1e-9" and better["optimizer.learning-rate"] == "0.1"
    assert said.count("| 0.1") == 1 and "prefers --optimizer.learning-rate 0.1: loss" in said
    # What is preferred is there to be used, and judged by what was exported.
    run = tmp_path / "runs" / "learning-rate-0.1-seed1"
    assert str(run) in said and (run / "parameters.npz").exists()
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert better["dev"] == [row for row in last if row["kind"] in ("dev", "average")][-1]["loss"]
    # Of a wider grid the rest is trained.
    assert grid.main([*argv[:-1], "optimizer.learning-rate=1e-9,0.1,0.01", "--", *COMMON]) == 0
    assert Ledger(tmp_path / "runs" / "grid.jsonl").rows()[:2] == rows
    assert capfd.readouterr().out.count("| 0.01") == 1
