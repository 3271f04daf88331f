"""A sweep in real processes: what is finished is skipped, what was stopped goes on, what failed is said."""

import dataclasses
import json
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from cases import slow_but

from experiments import configs, sweep
from experiments import trial as trial_module
from experiments.arguments import parse
from experiments.data import PLACE, with_data
from experiments.jobs import claim
from experiments.measures import BASELINE, TRANSLATIONS
from experiments.sweep import has_ended, with_starts
from experiments.trial import Sweep, Trial
from flaxnmt import config_io, open_sweep
from flaxnmt.checks.model import check_model
from flaxnmt.checks.options import check_limits, check_ranges, check_used
from flaxnmt.ledger import Ledger
from flaxnmt.run_directory import write_json
from flaxnmt.training.metrics import MetricsWriter, read_metrics

TINY = (
    *"--train discourse:train:40 --dev discourse:dev:1 --data.tokenizer.vocab-size 300".split(),
    *"--model.d-model 16 --model.encoder.layers 1 --model.decoder.layers 1".split(),
    *"--data.batch-tokens 256 --data.buckets 1 --max-steps 4 --training.evaluate-every 4".split(),
    *"--training.evaluate-translations 0 --training.metric loss --decoding.beam-size 1".split(),
    # No test set.
    "--data.test",
)
LONG = (*TINY, "--max-steps", "100000", "--training.log-every", "1", "--training.evaluate-every", "100000")


def measure(run: Path, trial: Trial) -> dict:
    assert (run / "parameters.npz").exists()
    write_json(run / TRANSLATIONS, [trial.name])
    if trial.against is not None:
        assert json.loads((run / BASELINE).read_text()) == [trial.against]
    return {"measured": len(read_metrics(run)), "twice": 2 * trial.seed}


def trial(name: str, options: tuple[str, ...] = TINY, **fields) -> Trial:
    return Trial(name, "discourse_demo", options, settings=(("kind", name),), **fields)


@pytest.fixture
def command(tmp_path, monkeypatch, capfd, caplog):
    """Exit code, log lines and rows of the command for these trials."""
    monkeypatch.setenv("XLA_FLAGS", "")

    def run(*trials: Trial, options: str = "", runs: str = "runs", following=lambda rows: ()):
        monkeypatch.setattr(sweep, "load", lambda name: Sweep(trials, measure, following=following))
        caplog.clear()
        where = ["--runs", str(tmp_path / runs), "--results", str(tmp_path)]
        code = sweep.main(["tiny", *where, *options.split()])
        said = [record.getMessage() for record in caplog.records] + capfd.readouterr().err.splitlines()
        return code, said, Ledger(tmp_path / "tiny.jsonl").rows()

    return run


@pytest.mark.slow
def test_trials_are_measured_once_and_their_runs_removed(command, tmp_path):
    trials = trial("first", seed=3), trial("second", after="first", seed=3)
    code, said, rows = command(*trials)
    assert code == 0, said
    assert [row["name"] for row in rows] == ["first", "second"]
    (first, second), hosts = rows, {row["host"] for row in rows}
    assert first["twice"] == 6 and first["kind"] == "first" and first["steps"] == 4 and len(hosts) == 1
    assert second["command"].startswith("python -m experiments.train discourse_demo --run RUNS/second-seed3")
    assert "--init-from RUNS/first-seed3" in second["command"] and str(tmp_path) not in second["command"]
    # Others start from the first.
    assert {path.name for path in (tmp_path / "runs").iterdir()} - {"programs"} == {
        "first-seed3",
        "tiny.jsonl",
    }
    assert open_sweep(tmp_path / "runs").rows() == rows
    # The ledger alone says what is finished; another seed, or another option, is another trial.
    other = trial("second", seed=4), trial("second", (*TINY, "--model.dropout", "0.2"), after="first", seed=3)
    assert command(*trials)[2] == rows
    code, said, rows = command(*trials, *other, options="--dry-run", runs="elsewhere")
    assert code == 0 and not (tmp_path / "elsewhere").exists() and len(rows) == 2
    assert said[0].startswith("tiny: 4 trials, 2 finished, rows in")
    assert [line.split() for line in said[1:5]] == [
        ["finished", "first-seed3"], ["finished", "second-seed3"], ["todo", "second-seed4"],
        ["todo", "second-seed3"],
    ]  # fmt: skip
    code, said, _ = command(*trials, *other, options="--dry-run --only f* --seeds 3 4")
    assert said[0].startswith("tiny: 1 trials, 1 finished")
    code, said, _ = command(*trials, *other, options="--dry-run --only f* second --seeds 3")
    assert said[0].startswith("tiny: 3 trials, 2 finished")


@pytest.mark.slow
def test_translations_of_a_baseline_outlive_its_run_and_trials_follow_from_rows(command, tmp_path):
    baseline = trial("first")

    def following(rows):
        return tuple(trial("second", against=row["name"]) for row in rows if row["name"] == "first")

    code, said, _ = command(baseline, following=following, options="--only first")
    assert code == 0 and {path.name for path in (tmp_path / "runs").iterdir()} - {"programs"} == {
        "tiny.jsonl"
    }, said
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["first-seed1.json.gz"]
    code, said, rows = command(baseline, following=following, runs="elsewhere")
    assert code == 0 and [row["name"] for row in rows] == ["first", "second"], said


@pytest.mark.slow
def test_a_trial_trains_while_another_command_holds_the_one_it_is_compared_with(command, tmp_path):
    runs = tmp_path / "runs"
    held = ExitStack()
    assert held.enter_context(claim(runs / "first-seed1.lock"))

    def release():
        deadline = time.monotonic() + 120
        while not has_ended(runs / "second-seed1") and time.monotonic() < deadline:
            time.sleep(0.1)
        held.close()

    releasing = threading.Thread(target=release)
    releasing.start()
    code, said, rows = command(trial("first"), trial("second", against="first"))
    releasing.join()
    assert code == 0 and [row["name"] for row in rows] == ["first", "second"], said
    assert "second-seed1: trained, and measured when first-seed1 is" in said


def stop_when(moment) -> threading.Thread:
    """Sends this process SIGTERM once the moment has come."""

    def wait():
        deadline = time.monotonic() + 60
        while not moment() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_with_the_same_command(command, tmp_path):
    run = tmp_path / "runs" / "long-seed1"
    stopping = stop_when(lambda: any(row["kind"] == "train" for row in read_metrics(run)))
    code, said, rows = command(trial("long", LONG))
    stopping.join()
    assert code == 42 and rows == []
    assert any("asked to stop: the same command continues with long-seed1" in line for line in said)
    assert any("asked to stop: saved at step" in line for line in said)
    (stopped,) = (int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())
    # The same trial; that it may end soon is no change of what was learned.
    code, said, rows = command(trial("long", (*LONG, "--max-steps", str(stopped + 2))))
    assert code == 0 and any(f"continues {run} from step {stopped}" in line for line in said)
    assert [row["steps"] for row in rows] == [stopped + 2]


def test_several_jobs_have_nothing_to_do_where_all_is_finished(command, tmp_path):
    Ledger(tmp_path / "tiny.jsonl").add({"key": trial("first").key})
    code, said, _ = command(trial("first"), options="--jobs 2")
    assert code == 0 and "1 trials, 1 finished" in said[0]


def test_a_stop_that_comes_too_early_to_be_heard_is_no_failure(command):
    stopping = stop_when(lambda: getattr(signal.getsignal(signal.SIGTERM), "__name__", "") == "stop")
    code, said, rows = command(trial("early"))
    stopping.join()
    assert code == 42 and rows == []
    assert any("the same command continues with early-seed1" in line for line in said)


@pytest.mark.slow
def test_a_trial_that_fails_ends_the_sweep(command):
    code, said, rows = command(
        trial("broken", (*TINY, "--model.encoder.attention.heads", "5")), trial("next")
    )
    assert code == 2 and rows == []
    assert "error: 5 heads do not divide d_model 16: change --model.encoder.attention.heads" in said
    assert said[-1] == "error: broken-seed1: training ended with exit code 2; its log is above"


def test_what_is_not_there_is_named(command):
    assert command(trial("one"), options="--only two")[1][-1] == (
        "error: no trial of tiny matches 'two'; there are one"
    )
    many = [trial(f"encoder{number}") for number in range(30)]
    assert command(*many, options="--only encoder077")[1][-1] == (
        "error: no trial of tiny matches 'encoder077'; there are 30, the nearest are encoder7, encoder0, encoder27; "
        "--dry-run without --only lists all"
    )
    assert command(trial("one"), options="--seeds 8 9")[1][-1] == (
        f"error: these trials of tiny have no seed 8 or 9; there are {trial('one').seed}"
    )
    assert command(trial("one"), options="--jobs 0")[1][-1] == "error: --jobs 0: give 1 or more"


def test_sweeps_are_listed_and_found(capsys, tmp_path):
    assert sweep.main(["document", "--runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        "error: no sweep 'document', did you mean 'documents'?; there are"
    )
    with pytest.raises(SystemExit) as end:
        sweep.main([])
    assert end.value.code == 2 and ", documents, " in capsys.readouterr().out.rpartition("Sweeps: ")[2]
    trials = sweep.load("documents").trials
    assert len({trial.key for trial in trials}) == len({trial.directory for trial in trials}) == 27
    known = {(trial.name, trial.seed) for trial in trials}
    assert all((trial.after, trial.seed) in known for trial in trials if trial.after)


def test_trials_from_which_others_start_come_first_where_their_runs_are_gone(tmp_path):
    """A row says what was found, and is no run to start from; neither is a run that was stopped."""
    chain = (
        Trial("base", "text_tiny"),
        Trial("next", "text_tiny", after="base"),
        Trial("last", "text_tiny", after="next"),
    )
    trials = Sweep((*chain, Trial("other", "text_tiny")), dict).all([])
    base, between, last, other = trials
    finished = {base.key, between.key}

    def left(*trials: Trial) -> list[Trial]:
        return with_starts(list(trials), finished, tmp_path)

    def write(trial: Trial, event: str) -> None:
        with MetricsWriter(tmp_path / trial.directory) as metrics:
            metrics.event(4, event)

    assert left(other, last) == [other, base, between, last] and left(other) == [other]
    write(between, "preempted")
    assert left(last) == [base, between, last]
    write(base, "finished")
    assert left(last, other) == [between, last, other]
    write(between, "finished")
    assert left(last, other) == [last, other]
    # What ended, but was never measured, is trained as little as that needs and gets its row.
    finished.clear()
    assert left(last) == [base, between, last]


def test_rows_from_before_a_change_do_not_say_what_follows():
    def following(rows):
        return tuple(trial(f"after-{row['key']}") for row in rows)

    sweep = Sweep((trial("first"),), dict, following=following)
    rows = [{"key": "first-seed1-of-before", "name": "first"}, {"key": trial("first").key, "name": "first"}]
    assert [one.name for one in sweep.all(rows)] == ["first", f"after-{trial('first').key}"]


def test_rows_of_what_followed_before_a_change_do_not_say_what_follows_now():
    def following(rows):
        best = max(
            (row for row in rows if row["name"] != "first"), key=lambda row: row["score"], default=None
        )
        return (trial("second"), trial("third"), *([] if best is None else [trial(f"after-{best['name']}")]))

    sweep = Sweep((trial("first"),), dict, following=following)
    current = {"key": trial("third").key, "name": "third", "score": 1}
    rows = [{"key": "second-seed1-of-before", "name": "second", "score": 2}, current]
    assert [one.name for one in sweep.all(rows)] == ["first", "second", "third", "after-third"]


def test_what_follows_stands_before_what_is_later():
    def following(rows):
        return (trial("second"), trial("last")) if rows else ()

    sweep = Sweep((trial("first"),), dict, following=following, later=(trial("third"), trial("last")))
    assert [one.name for one in sweep.all([])] == ["first", "third", "last"]
    rows = [{"key": trial("first").key, "name": "first"}]
    assert [one.name for one in sweep.all(rows)] == ["first", "second", "last", "third"]
    # Rows of later trials as they were before a change do not count either.
    assert [one.name for one in sweep.all([{"key": "third-of-before", "name": "third"}])][:2] == [
        "first",
        "third",
    ]


@pytest.mark.slow
def test_a_start_whose_run_is_gone_is_trained_again_without_another_row(command, tmp_path):
    trials = trial("first"), trial("second", after="first")
    code, said, rows = command(*trials, options="--only first")
    assert code == 0 and [row["name"] for row in rows] == ["first"], said
    code, said, rows = command(*trials, options="--only second", runs="elsewhere")
    assert code == 0 and [row["name"] for row in rows] == ["first", "second"], said
    assert any("first-seed1: trained again, since others start from it" in line for line in said)


def test_a_trial_is_another_one_where_its_configuration_has_changed(monkeypatch):
    def key():
        trial_module._recipe.cache_clear()
        return Trial("one", "text_tiny").key

    before, config = key(), configs.load("text_tiny")
    assert key() == before
    changed = config.replace(training=dataclasses.replace(config.training, label_smoothing=0.2))
    monkeypatch.setattr(configs, "load", lambda name: changed)
    assert key() != before
    monkeypatch.undo()
    assert key() == before


def test_a_trial_is_another_one_where_the_one_it_starts_from_has_changed():
    def keys(*options):
        chain = (
            Trial("base", "text_tiny", options),
            Trial("next", "text_tiny", after="base"),
            Trial("last", "text_tiny", after="next"),
        )
        other = Trial("other", "text_tiny")
        return [trial.key for trial in Sweep((*chain, other), dict).all([])]

    before, after = keys(), keys("--seed", "2")
    assert [one == two for one, two in zip(before, after, strict=True)] == [False, False, False, True]


COMPARED = {
    "positions": "model.positions",
    "tokenizers": "data.tokenizer.kind",
    "families": "model.",
    # Of gated branches the budget, too.
    "encoders": ("model.encoder.", "model.budget.", "training.budget."),
}
LONGER = {"training.max_steps", "training.evaluate_every"}


@pytest.mark.parametrize("name", slow_but(["positions"], COMPARED))
def test_trials_differ_from_their_baseline_in_what_is_compared(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FLAXNMT_DATA", str(tmp_path))
    trials = sweep.load(name).all([])
    for word in {word for trial in trials for word in trial.command(tmp_path) if PLACE in word}:
        path = Path(word.partition("[")[0].replace(PLACE, str(tmp_path)))
        path.parent.mkdir(exist_ok=True)
        path.touch()
    baselines = {(trial.name, trial.seed): place for place, trial in enumerate(trials)}
    configs = {}
    for place, trial in enumerate(trials):
        arguments = parse(with_data(trial.command(tmp_path)))
        configs[trial.directory] = arguments.resolved()
        assert arguments.seed == trial.seed
        if trial.against is not None:
            assert baselines[trial.against, trial.seed] < place
            told = [config_io.told(configs[run]) for run in (trial.baseline, trial.directory)]
            changed = {key for key, _ in told[0].items() ^ told[1].items()}
            if trial.name.endswith("-longer"):
                assert changed >= LONGER
                changed -= LONGER
            # Of another family every field of the model is another one, and nothing else is.
            assert all(key.startswith(COMPARED[name]) for key in changed)
            assert changed or trial.name.endswith("-longer")
    assert len(trials) == 2 * len({trial.name for trial in trials}) >= 6


@pytest.mark.parametrize("name", slow_but(["documents"], sweep.names()))
def test_trials_are_trainings_that_nothing_refuses(name, tmp_path):
    for trial in sweep.load(name).all([]):
        # Corpora are looked for when a sweep begins.
        config = parse([word.replace("$", "") for word in trial.command(tmp_path)]).resolved()
        check_limits(config.training)
        for check in (check_ranges, check_model, check_used):
            check(config)


def test_corpora_that_are_not_there_are_said_before_anything_is_trained(command, tmp_path, monkeypatch):
    monkeypatch.delenv("FLAXNMT_DATA", raising=False)
    options = (*TINY, "--train", "$FLAXNMT_DATA/train.jsonl")
    trials = trial("first"), trial("second", options)
    code, said, rows = command(*trials)
    assert code == 2 and rows == [] and not (tmp_path / "runs").exists()
    assert (
        "error: $FLAXNMT_DATA/train.jsonl: give --data DIR, or set FLAXNMT_DATA, to say where"
        in "\n".join(said)
    )
    monkeypatch.setenv("FLAXNMT_DATA", "elsewhere")
    code, said, rows = command(*trials, options=f"--data {tmp_path}")
    assert code == 2 and any(
        f"{tmp_path}/train.jsonl does not exist: give another --data" in line for line in said
    )


def test_a_run_to_compare_with_that_is_gone_is_said_before_anything_is_trained(command, tmp_path):
    code, said, _ = command(trial("second", against="first"), trial("first"))
    assert code == 2 and not (tmp_path / "runs").exists()
    assert any("second-seed1 needs first-seed1, which has no row in" in line for line in said)
    first, second = trial("first"), trial("second", against="first")
    Ledger(tmp_path / "tiny.jsonl").add({"key": first.key, "name": "first"})
    code, said, _ = command(first, second)
    assert code == 2 and not (tmp_path / "runs").exists()
    assert any(
        "second-seed1 needs the translations of first-seed1, which are not in" in line for line in said
    )
