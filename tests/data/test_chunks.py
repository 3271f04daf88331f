"""Chunks hold no more sentences than allowed, and score each sentence once, with its context."""

import re

import numpy as np
import pytest

from flaxnmt.data.chunks import chunk
from flaxnmt.errors import ConfigError

SIZES = np.arange(50)
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


@pytest.mark.parametrize("longest", range(1, 12))
def test_every_sentence_is_scored_once_with_its_context(longest):
    for overlap in range((longest + 1) // 2):
        chunks = chunk(OFFSETS, longest, overlap)
        document = np.searchsorted(OFFSETS, chunks.start, side="right") - 1
        first, last = OFFSETS[document], OFFSETS[document + 1]
        assert (chunks.sentences <= longest).all() and (chunks.sentences > 0).all()
        assert (first <= chunks.start).all() and (chunks.stop <= last).all()
        scored = [
            np.arange(a, b) for a, b in zip(chunks.scored_start, chunks.scored_stop, strict=True) if a < b
        ]
        assert len(scored) == len(chunks)
        assert np.concatenate(scored).tolist() == list(range(OFFSETS[-1]))
        assert np.array_equal(chunks.scored_start - chunks.start, np.where(chunks.start > first, overlap, 0))
        assert np.array_equal(chunks.stop - chunks.scored_stop, np.where(chunks.stop < last, overlap, 0))


def test_as_few_chunks_as_hold_a_document_and_of_even_size():
    for longest, overlap in ((10, 0), (10, 3), (7, 3)):
        chunks = chunk(OFFSETS, longest, overlap)
        document = np.searchsorted(OFFSETS, chunks.start, side="right") - 1
        for d in np.unique(document):
            sizes, count = chunks.sentences[document == d], np.sum(document == d)
            assert sizes.max() - sizes.min() <= 1
            fewer = count - 1
            assert count == 1 or fewer * longest - 2 * overlap * (fewer - 1) < SIZES[d]


def test_a_document_cut_by_hand():
    chunks = chunk(np.array([0, 3, 14]), longest=6, overlap=1)
    assert chunks.start.tolist() == [0, 3, 6, 9]
    assert chunks.stop.tolist() == [3, 8, 11, 14]
    assert chunks.scored_start.tolist() == [0, 3, 7, 10]
    assert chunks.scored_stop.tolist() == [3, 7, 10, 14]
    assert chunks.cut == (
        "1 of 2 documents have more than 6 sentences (up to 11) and are cut into 3 chunks with 1 sentence of "
        "context at each cut"
    )
    assert chunk(np.array([0, 3, 14]), longest=11).cut == ""


@pytest.mark.parametrize(("longest", "overlap", "least"), [(4, 2, 5), (0, 0, 1), (3, 2, 5), (5, -1, 1)])
def test_chunks_that_score_nothing_are_refused(longest, overlap, least):
    message = f"chunks of {longest} sentences with {overlap} .* at least {least} sentences"
    with pytest.raises(ConfigError, match=re.compile(message)):
        chunk(OFFSETS, longest, overlap)
