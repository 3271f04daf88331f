"""How a run ends: patience, time, a loss that is not finite; and what is written on the way."""

import shutil
import time

import numpy as np
import pytest
from tiny_runs import TINY, finish, start, write_corpus

from experiments.train import main
from flaxnmt import open_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def rows(run, kind):
    return [row for row in open_run(run).metrics if row["kind"] == kind]


@pytest.mark.slow
def test_patience_ends_a_run_that_learns_nothing(corpus, tmp_path):
    run = tmp_path / "run"
    # With an average of checkpoints at the end, and TensorBoard.
    options = (
        "--optimizer.learning-rate 0 --max-steps 1000 --training.patience 2 --training.evaluate-every 2 "
    )
    options += "--training.average last --training.average-count 2 --training.tensorboard --profile 2:3 "
    options += "--data.tokenizer.lowercase"
    _, err = finish(start("experiments.train", *TINY, *corpus, *options.split(), "--run", str(run)))
    assert [row["step"] for row in rows(run, "dev")] == [2, 4, 6]
    end = rows(run, "event")[-1]
    assert (end["event"], end["step"], end["best_step"]) == ("finished", 6, 2)
    assert len([*(run / "profile").rglob("*.xplane.pb")]) == 1
    spent = end["phases"]
    assert end["goodput"] == spent["step"] / sum(spent.values()) and 0 < end["goodput"] < 1
    assert sum(spent.values()) == pytest.approx(60 * end["minutes"], abs=0.1)
    assert min(spent[phase] for phase in ("init", "compile", "data", "step", "save", "evaluate")) > 0
    # A row ends with each checkpoint, however long the interval.
    assert [row["step"] for row in rows(run, "train")] == [2, 4, 6]
    (averaged,), (test,) = rows(run, "average"), rows(run, "test")
    assert averaged["set"] == "dev, mean of steps 4 6" and "mean of 2 checkpoints · dev " in err
    assert averaged["loss"] == rows(run, "dev")[0]["loss"]
    assert "loss" not in test and test["lines"] == 8
    assert all("case:lc" in row["bleu"]["signature"] for row in (*rows(run, "dev"), test))
    board = b"".join(path.read_bytes() for path in (run / "tensorboard").glob("events.*"))
    for tag in (
        b"train/loss",
        b"train/target_tokens_per_second",
        b"dev/bleu",
        b"dev/perplexity",
        b"test/chrf",
    ):
        assert tag in board


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(trained, tmp_path):
    run = tmp_path / "run"
    # From the parameters of a trained run, as on a bucket, so that the first loss is small, and with its vocabulary.
    options = (
        "--max-steps 1000 --optimizer.learning-rate 1e30 --training.max-bad-steps 3 --training.log-every 1 "
    )
    options += f"--init-from file://{trained.directory}"
    corpus = write_corpus(tmp_path / "corpus", seed=10)
    process = start("experiments.train", *TINY, *corpus, *options.split(), "--run", str(run))
    *_, said = finish(process, code=2)[1].splitlines()
    assert said.startswith(
        "error: the loss was not finite in 3 updates in a row, up to step 4, and none of them "
    )
    assert "--optimizer.learning-rate" in said
    train = rows(run, "train")
    assert train[0]["loss"] < 1 and [row["bad_steps"] for row in train[:4]] == [0, 1, 2, 3]
    assert rows(run, "event")[-1] | {"time": 0} == {
        "step": 4,
        "time": 0,
        "kind": "event",
        "event": "diverged",
    }
    models = [(place / "tokenizer" / "shared.model").read_bytes() for place in (run, trained.directory)]
    assert models[0] == models[1]


@pytest.mark.slow
def test_minutes_are_those_of_all_continuations_and_meshes_may_change(trained, tmp_path, caplog):
    run = tmp_path / "run"
    shutil.copytree(trained.directory, run)
    began = time.monotonic()
    # Trained on one device; here are eight. The minutes of the run so far are more than it may have.
    assert main([*trained.arguments, "--run", str(run), "--max-epochs", "50", "--max-minutes", "0.01"]) == 0
    assert f"continues {run} from step 200, best loss" in caplog.text and "devices: 8 x cpu" in caplog.text
    assert rows(run, "train") == rows(trained.directory, "train")
    earlier, now = (rows(place, "event")[-1] for place in (trained.directory, run))
    assert (now["event"], now["step"]) == ("finished", 200)
    # Finishing again measures the test set again, and nothing else is there twice.
    assert len(rows(run, "test")) == 1 and rows(run, "dev") == rows(trained.directory, "dev")
    assert 0 < 60 * (now["minutes"] - earlier["minutes"]) < time.monotonic() - began
    np.testing.assert_equal(open_run(run).params, open_run(trained.directory).params)


@pytest.mark.slow
def test_time_ends_a_run(corpus, tmp_path):
    run = tmp_path / "run"
    assert main([*TINY, *corpus, "--max-steps", "1000000", "--max-minutes", "0.5", "--run", str(run)]) == 0
    end = rows(run, "event")[-1]
    assert end["event"] == "finished" and 0.5 < end["minutes"] < 1.0 and 0 < end["step"] < 1000000
    assert rows(run, "dev")[-1]["step"] == end["step"]
