"""Shapes in which documents are translated: a document's own, whatever it is translated with."""

import numpy as np
import pytest

from flaxnmt.data.chunks import chunk
from flaxnmt.models.config import DecoderOnlyConfig, Seq2SeqConfig
from flaxnmt.translation.shapes import FULL, LENGTHS, LONGEST, grid_plan, longest_of


@pytest.mark.parametrize(
    ("longest", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_every_document_has_a_shape_that_holds_it_and_no_smaller_one(longest, counts):
    plan = grid_plan(64, longest)
    assert sorted({bucket.sentences for bucket in plan.buckets}) == counts
    sentences, words = map(np.ravel, np.meshgrid(np.arange(1, longest + 1), [1, 8, 9, 64, 65, LONGEST]))
    chosen = [plan.buckets[i] for i in plan.assign(sentences, words)]
    for n, m, bucket in zip(sentences, words, chosen, strict=True):
        assert bucket.sentences == min(count for count in counts if count >= n)
        assert bucket.words == min(length for length in LENGTHS if length >= m)


def test_sentences_end_where_positions_do():
    plan = grid_plan(64, 2, tokens=10)
    assert [bucket.words for bucket in plan.buckets if bucket.sentences == 2] == [8, 10]
    assert [plan.buckets[i].words for i in plan.assign(np.asarray([1, 1, 2]), np.asarray([8, 9, 10]))] == [
        8,
        10,
        10,
    ]


def test_texts_end_where_learned_positions_do():
    learned = {"positions": "learned", "max_positions": 100}
    alone = [longest_of(DecoderOnlyConfig(task=task, **learned)) for task in ("translation", "language")]
    assert [longest_of(Seq2SeqConfig(**learned)), *alone, longest_of(Seq2SeqConfig())] == [
        100,
        50,
        100,
        LONGEST,
    ]


@pytest.mark.parametrize(("sentences", "multiple"), [(64, 1), (1, 1), (3, 1), (64, 8), (1, 8)])
def test_batches_hold_about_as_many_sentences_in_multiples(sentences, multiple):
    for bucket in grid_plan(sentences, 16, multiple).buckets:
        assert bucket.rows % multiple == 0 and bucket.rows >= multiple
        work = bucket.sentences * max(bucket.words, FULL)
        assert bucket.rows * work < max(sentences * FULL, work) + multiple * work


def test_where_few_sentences_are_wanted_there_are_more_documents():
    all_, one, many = (
        [bucket.rows for bucket in grid_plan(64, 16, wanted=wanted).buckets if bucket.words == FULL]
        for wanted in (None, 1, 16)
    )
    assert all_ == many == [64, 32, 16, 8, 4]
    # Eight sentences are encoded for the price of one that is translated.
    assert one == [64, 64, 64, 64, 32]


def test_cuts_score_every_sentence_once():
    """A shape of the plan holds every chunk, also with the context at its cuts."""
    chunks = chunk(np.asarray([0, 9, 9, 10, 47]), longest=6, overlap=2)
    scored = np.concatenate([np.arange(*ends) for ends in zip(chunks.scored_start, chunks.scored_stop)])
    assert scored.tolist() == list(range(47)) and chunks.sentences.max() <= 6
    plan = grid_plan(8, 6)
    places = plan.assign(chunks.sentences, np.full(len(chunks), 5))
    assert all(plan.buckets[i].sentences >= n for i, n in zip(places, chunks.sentences, strict=True))
