"""What sweeps measure of a run, on a run that the tests share."""

import dataclasses
import json
import shutil

import pytest
from tiny_runs import sentences

from experiments.measures import (
    BASELINE,
    TRANSLATIONS,
    against,
    by_length,
    of_lines,
    of_tokens,
    scores,
    speed,
)
from flaxnmt import open_run
from flaxnmt.data.documents import Document, Sentence

# One wrong word in each, so that no score is perfect.
DOCUMENTS = [
    Document((tuple(Sentence(text, f"{text} nine") for text in sentences(count, seed=count)),))
    for count in (6, 5, 6)
]


@pytest.fixture(scope="module")
def run(trained_documents, tmp_path_factory):
    """A copy, in which translations may be left."""
    copy = tmp_path_factory.mktemp("measured") / "run"
    shutil.copytree(trained_documents.directory, copy)
    return open_run(copy)


@pytest.mark.slow
def test_controls_have_scores_and_tests(run):
    found = scores(run, DOCUMENTS, samples=20)
    assert list(found) == ["true", "none", "random", "shuffled", "signature"]
    assert found["true"]["s_p"] is None and 0 < found["none"]["d_p"] <= 1
    assert 0 < found["true"]["s_bleu"] < 100
    assert "version:" in found["signature"]


def test_a_run_is_compared_with_its_baseline_on_the_same_documents(run):
    scores(run, DOCUMENTS, kinds=("true", "none"), samples=20)
    shutil.copy(run.directory / TRANSLATIONS, run.directory / BASELINE)
    same = against(run, DOCUMENTS, samples=20)
    assert same == {"s_bleu": 0.0, "s_p": 1.0, "d_bleu": 0.0, "d_p": 1.0}
    worse = [["nine"] * len(document) for document in DOCUMENTS]
    (run.directory / BASELINE).write_text(json.dumps(worse))
    assert against(run, DOCUMENTS, samples=20)["s_bleu"] > 0


def test_time_is_that_of_training_and_of_translating(run):
    found = speed(run, DOCUMENTS)
    assert found["sentences_per_second"] == pytest.approx(17 / found["decoding_seconds"])
    assert 0 < found["padding"] < 1 and found["update_seconds"] > 0


def test_lines_are_scored_timed_and_compared(trained, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(trained.directory, copy)
    run = open_run(copy)
    source = sentences(12, seed=7)
    target = [f"{line} nine" for line in source]
    alone = of_lines(run, source, target, samples=20)
    assert 0 < alone["bleu"] < 100 and alone["gflops"] > 0 and "against" not in alone
    assert 2**26 < alone["peak_memory"] < 2**36 and alone["update_seconds"] > 0
    (copy / BASELINE).write_text(json.dumps(["nine"] * len(source)))
    found = of_lines(run, source, target, samples=20)["against"]
    assert found["bleu"] > 0 and found["bleu_p"] < 0.1 and found["chrf"] > 0


def test_lines_are_counted_in_tokens_and_scored_by_length(trained, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(trained.directory, copy)
    run = open_run(copy)
    source = ["one two three", "four ☃", "one", "five six seven eight"]
    found = of_tokens(run, source, source)
    lengths = [len(ids) for ids in run.vocabularies.source.encode(source)]
    assert found["source_tokens"] == found["target_tokens"] == sum(lengths) / 4
    assert found["unknown"] == 1 / sum(lengths) and found["vocabulary"] == run.vocabularies.target.vocab_size
    (copy / TRANSLATIONS).write_text(json.dumps(["one two three", "four", "one", "five"]))
    assert by_length(run, source, source)["beyond"] == {"lines": 0}
    # The longest line and its end symbol are one more than what training allowed.
    data = dataclasses.replace(run.config.data, max_length=max(lengths))
    run.config = run.config.replace(data=data)
    parts = by_length(run, source, source)
    assert (parts["within"]["lines"], parts["beyond"]["lines"]) == (3, 1)
    assert parts["beyond"]["length_ratio"] == 1 / 4 and parts["within"]["chrf"] > parts["beyond"]["chrf"]
