"""What sweeps measure of a run, on a run that the tests share."""

import shutil

import pytest
from tiny_runs import sentences

from experiments.measures import TRANSLATIONS, against, scores, speed
from flaxnmt import open_run
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import RunError

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


def test_controls_have_scores_and_tests(run):
    found = scores(run, DOCUMENTS, samples=20)
    assert list(found) == ["true", "none", "random", "shuffled", "signature"]
    assert found["true"]["s_p"] is None and 0 < found["none"]["d_p"] <= 1
    assert 0 < found["true"]["s_bleu"] < 100
    assert "version:" in found["signature"]


def test_two_runs_are_compared_on_the_same_documents(run, tmp_path):
    other = tmp_path / "other"
    with pytest.raises(RunError, match="no translations to compare with; train other again, before run"):
        against(run, other, DOCUMENTS)
    scores(run, DOCUMENTS, kinds=("true", "none"), samples=20)
    other.mkdir()
    shutil.copy(run.directory / TRANSLATIONS, other)
    same = against(run, other, DOCUMENTS, samples=20)
    assert same == {"run": "other", "s_bleu": 0.0, "s_p": 1.0, "d_bleu": 0.0, "d_p": 1.0}
    (other / TRANSLATIONS).write_text(
        str([["nine"] * len(document) for document in DOCUMENTS]).replace("'", '"')
    )
    assert against(run, other, DOCUMENTS, samples=20)["s_bleu"] > 0


def test_time_is_that_of_training_and_of_translating(run):
    found = speed(run, DOCUMENTS)
    assert found["sentences_per_second"] == pytest.approx(17 / found["decoding_seconds"])
    assert 0 < found["padding"] < 1 and found["update_seconds"] > 0
