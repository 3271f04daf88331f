"""Scores of classifiers, and of answers to questions, against their definitions written out."""

import numpy as np
import pytest

from flaxnmt.data.labelled.examples import Answer, QuestionExample
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.answers import answer_scores, exact_match, normalise, word_f1
from flaxnmt.evaluation.classification import classification_scores


def question(id: str, *answers: str) -> QuestionExample:
    return QuestionExample(
        id, "?", " ".join(answers) or "nothing", tuple(Answer(text, 0) for text in answers)
    )


def test_two_classes_by_their_counts():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    predictions = np.where(rng.random(200) < 0.7, labels, 1 - labels)
    counts = {(p, t): int(np.sum((predictions == p) & (labels == t))) for p in (0, 1) for t in (0, 1)}
    tp, fp, fn, tn = counts[1, 1], counts[1, 0], counts[0, 1], counts[0, 0]
    found = classification_scores(predictions, labels)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    assert found == pytest.approx(
        {
            "accuracy": 100 * (tp + tn) / 200,
            "f1": 100 * 2 * tp / (2 * tp + fp + fn),
            "matthews": 100 * (tp * tn - fp * fn) / product**0.5,
        }
    )


def test_more_classes_have_the_mean_f1_of_all():
    pytest.importorskip("sklearn")
    found = classification_scores([0, 1, 2, 2], [0, 1, 1, 2])
    assert found["accuracy"] == 75 and found["f1"] == pytest.approx(100 * (1 + 2 / 3 + 2 / 3) / 3)
    # A class that nobody sees counts as 0.
    assert classification_scores([0, 1], [0, 1], classes=4, metrics=("f1",)) == {"f1": 50.0}


def test_of_marked_classes_all_that_is_found_counts_together():
    pytest.importorskip("sklearn")
    labels, said = [0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 0, 1]
    # One of the three that are marked is found, among three that are said.
    found = classification_scores(said, labels, marked=(1, 2), metrics=("f1",))
    assert found["f1"] == pytest.approx(100 / 3)
    assert classification_scores([0] * 6, labels, marked=(1, 2), metrics=("f1",)) == {"f1": 0.0}


def test_nothing_said_is_wrong_and_no_class_of_its_own():
    pytest.importorskip("sklearn")
    labels = [0, 1, 1, 0, 1]
    found = classification_scores([0, 1, -1, -1, 1], labels, classes=2)
    assert found["accuracy"] == pytest.approx(60)
    # Two of the three of class 1 are found, and nothing else is taken for it.
    assert found["f1"] == pytest.approx(80) and 0 < found["matthews"] < 100
    assert classification_scores([-1] * 5, labels, classes=2) == {"accuracy": 0, "f1": 0, "matthews": 0}
    assert classification_scores([0, 1, -1], [0, 1, 2])["f1"] == pytest.approx(200 / 3)


def test_predictions_that_are_all_the_same_have_no_correlation():
    pytest.importorskip("sklearn")
    assert classification_scores([1, 1, 1], [0, 1, 1], metrics=("matthews",)) == {"matthews": 0.0}
    assert classification_scores([0, 0], [1, 1])["f1"] == 0.0


def test_what_cannot_be_scored_is_refused():
    pytest.importorskip("sklearn")
    with pytest.raises(DataError, match="1 predictions for 2 labels"):
        classification_scores([1], [1, 0])
    with pytest.raises(DataError, match="0 predictions for 0 labels"):
        classification_scores([], [])
    with pytest.raises(ConfigError, match="unknown metric 'bleu': choose from accuracy, f1, matthews"):
        classification_scores([1], [1], metrics=("bleu",))
    with pytest.raises(DataError, match="nothing to score"):
        answer_scores({}, [])
    with pytest.raises(DataError, match="question b has no prediction"):
        answer_scores({"a": ""}, [question("a"), question("b")])


def test_answers_are_compared_without_case_punctuation_and_articles():
    assert normalise("The  U.S.A., an   Anthem") == "usa anthem"
    assert exact_match("a dog!", "The DOG") == 1.0 and exact_match("dogs", "dog") == 0.0
    # Articles are whole words.
    assert normalise("another theory") == "another theory"


@pytest.mark.parametrize(
    ("predicted", "right", "f1"),
    [
        ("the cat sat", "cat sat", 1.0),
        # Precision 2/4, recall 2/3.
        ("cat sat on mat", "cat cat sat", 4 / 7),
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("cat", "", 0.0),
        ("", "", 1.0),
        ("the", "", 1.0),
    ],
)
def test_f1_of_words(predicted, right, f1):
    assert word_f1(predicted, right) == pytest.approx(f1)


def test_scores_take_the_best_answer_and_know_none():
    examples = [question("a", "red dog", "dog"), question("b"), question("c", "cat"), question("d")]
    predictions = {"a": "the dog", "b": "", "c": "", "d": "some"}
    assert answer_scores(predictions, examples) == {
        "exact": 50.0, "f1": 50.0, "exact_answerable": 50.0, "f1_answerable": 50.0,
        "exact_unanswerable": 50.0, "f1_unanswerable": 50.0, "questions": 4,
    }  # fmt: skip
    assert answer_scores({"a": "red"}, examples[:1]) == {
        "exact": 0.0, "f1": pytest.approx(200 / 3), "questions": 1
    }  # fmt: skip


def test_scores_are_those_of_the_official_script():
    """As torchmetrics has it, which keeps that of SQuAD."""
    text = pytest.importorskip("torchmetrics.functional.text")
    draw = np.random.default_rng(0)
    words = "a the an red Red dog, dog. cat's U.S. 5% — x-y theory".split()
    for _ in range(1000):
        predicted, right = (" ".join(draw.choice(words, draw.integers(0, 5))) for _ in range(2))
        official = text.squad(
            [{"prediction_text": predicted, "id": "0"}],
            [{"answers": {"answer_start": [0], "text": [right]}, "id": "0"}],
        )
        assert 100 * exact_match(predicted, right) == float(official["exact_match"])
        assert 100 * word_f1(predicted, right) == pytest.approx(float(official["f1"]), abs=1e-4)
