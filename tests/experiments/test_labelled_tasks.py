"""Labelled sets of a task: nothing of them is left out without a word, whatever fits into a row."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import configs
from experiments.tasks import labelled
from experiments.tasks.labelled_sets import examples_of, make_set
from flaxnmt.checks.options import check_used
from flaxnmt.config import DataConfig
from flaxnmt.data.labelled.examples import Answer, QuestionExample, TaggedExample
from flaxnmt.data.labelled.spans import NOWHERE
from flaxnmt.data.tokenizers import CLS, SEP, train
from flaxnmt.errors import ConfigError

WORDS = "the old dog sees a cat in the garden".split()
LABELS = ("other", "name")


@pytest.fixture(scope="module")
def tokenizer():
    return train("word", [" ".join(WORDS)], 40, symbols=(CLS, SEP))


def right(rows):
    """Logits of a model that is always right, of rows padded to one width."""
    found = np.zeros((len(rows.ids), max(map(len, rows.ids)), len(LABELS)))
    for row, labels in zip(found, rows.said):
        for place, label in enumerate(labels):
            row[place, max(label, 0)] = 1
    return list(found)


@pytest.mark.slow
def test_words_that_were_cut_off_are_wrong(tokenizer, caplog):
    pytest.importorskip("sklearn")
    examples = [
        TaggedExample(tuple(WORDS), tuple(place % 2 for place in range(len(WORDS))), 1),
        TaggedExample(("a", "cat"), (0, 1), 11),
    ]
    whole, cut = (
        make_set("labels", examples, tokenizer, DataConfig(max_length=length, labels=LABELS), "dev")
        for length in (16, 6)
    )
    assert whole.scored(right(whole.rows))[0]["accuracy"]["score"] == 100
    scores, lines = cut.scored(right(cut.rows))
    # Four of nine words are in a row with [CLS] and [SEP], and both of the other sentence.
    assert scores["accuracy"]["score"] == pytest.approx(100 * 6 / 11)
    assert 0 < scores["f1"]["score"] < 100
    assert lines == ["other name other name" + " -" * 5, "other name"]
    assert caplog.messages == [
        "1 of 2 dev sentences exceed 6 tokens and are cut there; the first is line 1; 5 words of dev sentences are not "
        "read, and count as labelled wrongly"
    ]


def test_words_outside_do_not_count_as_found(tokenizer):
    pytest.importorskip("sklearn")
    # By the alphabet O is the second of two labels.
    data = DataConfig(max_length=16, labels=("NAME", "O"))
    made = make_set("labels", [TaggedExample(tuple(WORDS), (1,) * 6 + (0,) * 3, 1)], tokenizer, data, "dev")
    nothing, half = (np.zeros((len(WORDS) + 2, 2)) for _ in range(2))
    nothing[:, 1] = half[:, 1] = 1
    half[1 + 6, 0] = 2
    assert made.scored([nothing])[0]["f1"]["score"] == 0
    assert made.scored([half])[0]["f1"]["score"] == pytest.approx(100 * 2 / (2 + 2))


def test_questions_that_are_cut_are_counted(tokenizer, caplog):
    context = " ".join(WORDS)
    examples = [
        QuestionExample("a", question, context, (Answer("dog", 8),))
        for question in ("the cat", " ".join(WORDS * 8))
    ]
    made = make_set("spans", examples, tokenizer, DataConfig(max_length=128, stride=8), "test")
    assert len(made.rows) == 2
    assert caplog.messages == [
        "1 of 2 test questions exceed 64 tokens and are cut there; the first is number 2"
    ]


@pytest.fixture
def questions(tmp_path):
    """A file of a question that has an answer, in the first of several windows, and of one that has none."""
    context = " ".join(WORDS * 4)
    asked = [
        {"id": "a", "question": "the cat", "answers": [{"text": "dog", "answer_start": 8}]},
        {"id": "b", "question": "a cat", "is_impossible": True, "answers": []},
    ]
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}))
    return str(path)


@pytest.mark.parametrize("answered", [False, True])
def test_questions_without_an_answer_are_left_out_where_that_is_wanted(questions, tmp_path, answered):
    config = configs.load("classify_small")
    data = dataclasses.replace(
        config.data,
        **{"train": (questions,), "dev": (questions,), "answered": answered, "max_length": 16, "stride": 8},
        tokenizer=dataclasses.replace(config.data.tokenizer, kind="word", vocab_size=40),
    )
    config = config.replace(
        data=data,
        model=dataclasses.replace(config.model, head="spans", max_positions=16),
        training=dataclasses.replace(config.training, metric="f1"),
    )
    said = labelled.make(config, tmp_path, lambda: None).corpus.said
    assert NOWHERE not in said and said if answered else said.count(NOWHERE) > 5
    # What is scored keeps all windows: nobody says where the answer is.
    examples = examples_of("spans", data.dev, (), answered=answered)
    assert [example.id for example in examples] == ["a", "b"][: 2 - answered]


def test_answered_questions_are_refused_where_none_are_read():
    config = configs.load("classify_small")
    with pytest.raises(ConfigError, match="--data.answered: .* --model.head spans"):
        check_used(config.replace(data=dataclasses.replace(config.data, answered=True)))
