"""A fine-tuned encoder asked for classes, labels of words and answers, with parameters at random."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from made_runs import make_run
from small_models import small_encoder

from flaxnmt.data.tokenizers import CLS, SEP
from flaxnmt.errors import ConfigError
from flaxnmt.run_directory import LABELS
from flaxnmt.training.labelled import span_logits

NAMES = ("no", "maybe", "yes")
CONTEXT = "The dogs sleep in the garden, and the cat is near the old house."


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each head."""
    folder = tmp_path_factory.mktemp("runs")
    found = {
        head: make_run(folder / head, small_encoder(head=head, classes=3).config)
        for head in ("classes", "labels", "spans")
    }
    for head in ("classes", "labels"):
        (folder / head / LABELS).write_text(json.dumps(NAMES))
    return found


def logits_of(run, ids, segments):
    inputs = (jnp.asarray([row], jnp.int32) for row in (ids, segments))
    return run.model.apply({"params": run.reader.params}, *inputs)


def row_of(run, first, second=None):
    vocabulary = run.vocabularies.source
    ids = [vocabulary.id(CLS), *vocabulary.encode([first])[0], vocabulary.id(SEP)]
    after = [] if second is None else [*vocabulary.encode([second])[0], vocabulary.id(SEP)]
    return ids + after, [0] * len(ids) + [1] * len(after)


@pytest.mark.slow
def test_a_class_is_the_likeliest_of_the_text_or_pair(runs):
    run = runs["classes"]
    # Within the positions that there are.
    texts, seconds = ["The cat.", "Dogs", "It is old."], ["A cat.", "A dog", "It sleeps."]
    pairs, single = run.classify(texts, seconds), run.classify(texts)
    for text, second, found, alone in zip(texts, seconds, pairs, single, strict=True):
        for row, given in ((row_of(run, text, second), found), (row_of(run, text), alone)):
            logits = np.float64(logits_of(run, *row)[0])
            shares = np.exp(logits) / np.exp(logits).sum()
            assert given[0] == NAMES[shares.argmax()]
            assert given[1] == pytest.approx(shares.max(), rel=1e-4)
    assert run.classify(texts[::-1], seconds[::-1])[0][0] == pairs[-1][0]
    assert run.classify([]) == []


def test_texts_are_cut_as_the_evaluation_cuts_them(runs, caplog):
    text = "The cat sees the old garden. " * 9
    run = runs["classes"]
    assert run.classify(["The cat.", text], ["A dog."] * 2)[0][0] in NAMES
    assert caplog.messages == ["1 of 2 texts exceed 32 tokens and are cut there; the first is number 2"]


def test_a_word_has_the_label_of_its_first_piece(runs, caplog):
    run = runs["labels"]
    texts = ["The old dog sees", "", "garden " * 40]
    found = run.label(texts)
    assert [[word for word, _ in words] for words in found] == [text.split() for text in texts]
    pieces = run.vocabularies.source.encode(texts[0].split())
    ids, places = [run.vocabularies.source.id(CLS)], []
    for word in pieces:
        places.append(len(ids))
        ids += word
    logits = logits_of(run, [*ids, run.vocabularies.source.id(SEP)], [0] * (len(ids) + 1))[0]
    assert [label for _, label in found[0]] == [NAMES[int(logits[place].argmax())] for place in places]
    cut = [label for _, label in found[2]]
    read = cut.index(None)
    assert 0 < read < 40 and None not in cut[:read] and set(cut[read:]) == {None}
    assert "1 of 3 sentences exceed 32 tokens" in caplog.text
    assert run.label([]) == []


def test_an_answer_is_the_best_part_of_its_context(runs):
    run = runs["spans"]
    question, context = "dogs", CONTEXT[:29]
    ids, segments = row_of(run, question, context)
    logits = span_logits(logits_of(run, ids, segments), jnp.asarray([ids]))[0]
    start, end = np.asarray(logits)
    begin, tokens = segments.index(1), run.vocabularies.source.encode_with_offsets(context)
    scores = {
        (first, last): start[begin + first] + end[begin + last]
        for first in range(len(tokens.ids))
        for last in range(first, len(tokens.ids))
    }
    first, last = max(scores, key=scores.get)
    expected = context[tokens.spans[first][0] : tokens.spans[last][1]]
    assert run.answer([question], [context]) == [expected]
    # No answer is as likely as the logits of the first token say.
    better = start[0] + end[0] - scores[first, last]
    assert run.answer([question], [context], threshold=better + 1e-3) == [expected]
    assert run.answer([question], [context], threshold=better - 1e-3) == [""]


def test_a_long_context_is_read_in_windows(runs):
    found = runs["spans"].answer(["dogs", "cat"], [CONTEXT * 4, CONTEXT])
    assert all(answer and answer in CONTEXT * 4 for answer in found)
    assert runs["spans"].answer([], []) == []


def test_what_cannot_be_asked_is_one_line(runs):
    for ask, message in (
        (lambda: runs["labels"].classify(["a"]), "'labels': texts are classified by a run with"),
        (lambda: runs["classes"].label(["a"]), "'classes': words are labelled by a run with"),
        (lambda: runs["classes"].answer(["a"], ["b"]), "'classes': questions are answered by a run with"),
        (lambda: runs["classes"].classify(["a", "b"], ["c"]), "1 second texts for 2 texts: give one each"),
        (lambda: runs["spans"].answer(["a"], ["b", "c"]), "2 contexts for 1 texts: give one each"),
        (lambda: runs["classes"].classify("a b"), "'a b' is one text: give a list"),
        (lambda: runs["classes"].classify(["a b"], "a b"), "'a b' is one text: give a list"),
        (lambda: runs["labels"].label("a b"), "'a b' is one text: give a list"),
        (lambda: runs["spans"].answer("a b", ["c"]), "'a b' is one text: give a list"),
        (lambda: runs["spans"].answer(["a"], "c"), "'c' is one text: give a list"),
    ):
        with pytest.raises(ConfigError, match=message):
            ask()
