"""From labelled examples to rows of tokens, and from spans of tokens back to text."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from labelled_sets import questions, sentences

from flaxnmt.data.labelled.examples import Answer, TaggedExample, TextExample
from flaxnmt.data.labelled.layout import (
    NO_LABEL,
    NO_PLACE,
    layout,
    padded,
    tagged_inputs,
    text_inputs,
    truncate,
)
from flaxnmt.data.labelled.questions import read_questions
from flaxnmt.data.labelled.spans import (
    NOWHERE,
    answer_in,
    answer_text,
    answer_tokens,
    best_answer,
    best_span,
    question_inputs,
    windows,
)
from flaxnmt.data.tokenizers import CLS, SEP, train
from flaxnmt.errors import ConfigError, DataError

SHARED = Path(os.environ.get("FLAXNMT_DATA", Path(__file__).parents[2] / "../shared/data"))
LINES = sentences(150)


@pytest.fixture(scope="module", params=["bpe", "char", "wordpiece"])
def tokenizer(request):
    if request.param == "wordpiece":
        pytest.importorskip("tokenizers")
    texts = [*LINES, *(example.context for example in questions())]
    return train(request.param, texts, 250, symbols=(CLS, SEP))


def longer_first(first, second, room):
    """The longer one loses its last token until both fit; the second one among equals."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def test_truncation_takes_tokens_of_the_longer_text():
    for sizes in itertools.product(range(8), range(8), range(10)):
        first, second = range(sizes[0]), range(10, 10 + sizes[1])
        assert truncate(first, second, sizes[2]) == longer_first(first, second, sizes[2]), sizes


def test_layout_of_one_text_and_of_a_pair():
    assert layout([5, 6], None, 8, 9, 16) == ([8, 5, 6, 9], [0] * 4)
    assert layout([5, 6], [7], 8, 9, 16) == ([8, 5, 6, 9, 7, 9], [0, 0, 0, 0, 1, 1])
    assert layout([5, 6], [], 8, 9, 16) == ([8, 5, 6, 9, 9], [0, 0, 0, 0, 1])
    assert layout([5, 6, 7, 5], [7], 8, 9, 6) == ([8, 5, 6, 9, 7, 9], [0, 0, 0, 0, 1, 1])
    assert layout([5, 6, 7, 5], None, 8, 9, 3) == ([8, 5, 9], [0] * 3)
    with pytest.raises(ConfigError, match="max_length 4 has no room for a token: give at least 5"):
        layout([5], [6], 8, 9, 4)


def test_texts_become_rows(tokenizer):
    examples = [TextExample(LINES[0]), TextExample(LINES[1], LINES[2]), TextExample(LINES[3], LINES[4])]
    rows = text_inputs(examples, tokenizer, 24)
    ids = padded([row.ids for row in rows])
    assert (
        ids.shape == (3, max(len(row.ids) for row in rows)) and ids.dtype == np.int32 and ids.shape[1] <= 24
    )
    assert set(ids[:, 0]) == {tokenizer.id(CLS)}
    assert [row.ids.count(tokenizer.id(SEP)) for row in rows] == [1, 2, 2]
    assert LINES[0].startswith(tokenizer.decode([rows[0].ids])[0])
    assert padded([[1], [2, 3]], 3).tolist() == [[1, 0, 0], [2, 3, 0]]
    assert padded([[1], [2, 3]], value=NO_LABEL).tolist() == [[1, -1], [2, 3]]
    with pytest.raises(ValueError, match="row 1 has 2 tokens, more than 1"):
        padded([[1], [2, 3]], 1)


def test_symbols_are_asked_for():
    with pytest.raises(DataError, match=r"no symbol '\[CLS\]'"):
        text_inputs([TextExample("a")], train("char", LINES, 100), 8)


def test_labels_of_words_are_those_of_their_first_pieces(tokenizer):
    words = tuple(LINES[0].split())
    labels = tuple(range(len(words)))
    whole, cut = (tagged_inputs([TaggedExample(words, labels)], tokenizer, size)[0] for size in (200, 12))
    assert [label for label in whole.labels if label != NO_LABEL] == list(labels)
    starts = [place for place, label in enumerate(whole.labels) if label != NO_LABEL]
    assert whole.labels[0] == whole.labels[-1] == NO_LABEL
    for word, start, end in zip(words, starts, [*starts[1:], len(whole.ids) - 1]):
        assert tokenizer.decode([whole.ids[start:end]]) == [word]
    assert cut.labels[:11] == whole.labels[:11] and cut.labels[11] == NO_LABEL and len(cut.ids) == 12
    assert whole.places == starts
    assert cut.places == [place if place < 11 else NO_PLACE for place in starts] and NO_PLACE in cut.places


def test_what_is_cut_is_counted_once(tokenizer, caplog):
    examples = [
        TextExample(LINES[0], line=7),
        TextExample("a", "b", line=8),
        TextExample("a", LINES[1], line=9),
    ]
    text_inputs(examples, tokenizer, 200)
    assert not caplog.records
    text_inputs(examples, tokenizer, 8, "dev texts")
    (said,) = caplog.messages
    assert said == "2 of 3 dev texts exceed 8 tokens and are cut there; the first is line 7"
    caplog.clear()
    words = [tuple(line.split()) for line in LINES[:3]]
    (*_, last) = rows = tagged_inputs([TaggedExample(each, (0,) * len(each)) for each in words], tokenizer, 9)
    lost = sum(row.places.count(NO_PLACE) for row in rows)
    (said,) = caplog.messages
    assert said.startswith("3 of 3 sentences exceed 9 tokens and are cut there; the first is number 1")
    assert said.endswith(f"{lost} words of sentences are not read, and count as labelled wrongly")
    assert len(last.places) == len(words[-1])


@pytest.mark.parametrize(
    ("context", "stride"), [(0, 3), (1, 1), (5, 2), (6, 6), (7, 6), (20, 3), (20, 6), (21, 5)]
)
def test_windows_hold_the_whole_context(context, stride):
    found = windows([1, 2], range(100, 100 + context), 8, 9, max_length=11, stride=stride)
    seen = {}
    for number, window in enumerate(found):
        assert window.ids[:4] == [8, 1, 2, 9] and window.ids[-1] == 9 and len(window.ids) <= 11
        assert window.segments == [0] * 4 + [1] * (window.size + 1)
        assert window.first == number * stride and window.begin == 4
        part = window.ids[window.begin : window.begin + window.size]
        assert part == list(range(100 + window.first, 100 + window.first + window.size))
        seen |= dict.fromkeys(part)
    assert sorted(seen) == list(range(100, 100 + context))
    # The last one is needed: those before it do not reach the end.
    assert len(found) == 1 or found[-2].first + 6 < context


def test_windows_without_room_or_with_gaps_are_refused():
    with pytest.raises(
        ConfigError, match="--data.max-length 5 has no room for a context beside .* at least 7"
    ):
        windows([1, 2, 3], [4], 8, 9, max_length=5, stride=1)
    assert len(windows([1, 2, 3], [4], 8, 9, max_length=5, stride=1, max_question=1)) == 1
    assert len(windows([1, 2, 3, 4], [4], 8, 9, max_length=7, stride=1)) == 1
    for stride in (0, 9):
        with pytest.raises(ConfigError, match=f"--data.stride {stride}: rows .* give 1 to 8"):
            windows([1, 2], [4], 8, 9, max_length=11, stride=stride)


@pytest.mark.parametrize("asked", [2, 6, 40])
def test_a_long_question_brings_its_windows_closer_and_stops_nothing(asked):
    found = windows(range(1, asked + 1), range(100, 130), 8, 9, max_length=16, stride=10)
    room = 16 - min(asked, 8) - 3
    assert [window.first for window in found] == list(range(0, 31 - room + min(10, room) - 1, min(10, room)))
    assert {token for window in found for token in window.ids if token >= 100} == set(range(100, 130))
    assert all(len(window.ids) <= 16 and window.begin == min(asked, 8) + 2 for window in found)


def check_answer(example, answer, spans):
    first, last = answer_tokens(spans, answer)
    found = answer_text(example.context, spans, first, last)
    assert answer.text.strip() in found
    # Without either of its ends the span would not hold the whole answer.
    assert spans[first][1] > answer.start and spans[last][0] < answer.end
    return found == answer.text


def test_answers_become_tokens_and_come_back(tokenizer):
    for example in questions():
        spans = tokenizer.encode_with_offsets(example.context).spans
        assert all(check_answer(example, answer, spans) for answer in example.answers)


def test_an_answer_of_space_alone_has_no_token():
    assert answer_tokens([(0, 1), (2, 3)], Answer(" ", 1)) is None


def logits(question, wanted, rng):
    """Noise, with the ends of the answer far above it in the windows that hold it whole."""
    starts, ends = ([rng.normal(size=len(window.ids) + 3) for window in question.windows] for _ in range(2))
    for window, start, end in zip(question.windows, starts, ends):
        places = answer_in(window, wanted)
        if places != NOWHERE:
            start[places[0]] += 50
            end[places[1]] += 50
        # Padding, the question and nothing are no answers, however likely.
        start[len(window.ids) :] = end[len(window.ids) :] = 1000
        start[1 : window.begin] = end[1 : window.begin] = 1000
    return starts, ends


def test_rows_of_questions_give_their_answers_back(tokenizer):
    rng = np.random.default_rng(0)
    for example in questions():
        question = question_inputs(example, tokenizer, max_length=64, stride=20)
        assert len(question.windows) == len(question.answers) > 1
        wanted = answer_tokens(question.context.spans, example.answers[0]) if example.answers else None
        assert any(places != NOWHERE for places in question.answers) == bool(example.answers)
        for window, places in zip(question.windows, question.answers):
            if places != NOWHERE:
                (text,) = tokenizer.decode([window.ids[places[0] : places[1] + 1]])
                assert text.strip() == example.answers[0].text
        starts, ends = logits(question, wanted, rng)
        longest = 40
        if example.answers:
            found = best_answer(question, example.context, starts, ends, longest=longest, threshold=0.0)
            assert found == example.answers[0].text
        for start in starts:
            start[0] += 500
        assert best_answer(question, example.context, starts, ends, longest=longest, threshold=0.0) == ""
        assert best_answer(question, example.context, starts, ends, longest=longest) != ""


def test_the_best_span_is_the_best_of_all():
    rng = np.random.default_rng(1)
    for context, longest in ((1, 1), (6, 2), (9, 30), (9, 3)):
        (window,) = windows([1, 2], range(context), 8, 9, max_length=20, stride=1)
        start, end = rng.normal(size=(2, 20))
        spans = [(i, j) for i in range(context) for j in range(i, min(i + longest, context))]
        best = max(spans, key=lambda span: start[4 + span[0]] + end[4 + span[1]])
        found = best_span(window, start, end, longest)
        assert (found.first, found.last) == best and found.score == start[4 + best[0]] + end[4 + best[1]]
    (empty,) = windows([1, 2], [], 8, 9, max_length=20, stride=1)
    assert best_span(empty, start, end) is None


@pytest.mark.parametrize(("kind", "split"), [("bpe", "train"), ("char", "dev"), ("wordpiece", "test")])
def test_every_verified_answer_of_real_questions(kind, split):
    path = SHARED / f"squad2_small/{split}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    examples = list(read_questions(path))
    contexts = list(dict.fromkeys(example.context for example in examples))
    lines = [" ".join(context.split()) for context in contexts]
    tokenizer = train(kind, lines[:60], 700, character_coverage=0.999)
    spans = {context: tokenizer.encode_with_offsets(context).spans for context in contexts}
    exact = [check_answer(each, answer, spans[each.context]) for each in examples for answer in each.answers]
    assert len(exact) > 700
    # An answer that ends inside of a token comes back with the rest of it.
    assert np.mean(exact) > {"bpe": 0.9, "char": 0.99, "wordpiece": 0.95}[kind]
