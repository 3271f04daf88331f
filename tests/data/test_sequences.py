"""Packed sequences: every token of a corpus once, documents told apart, padding at the end alone."""

import numpy as np
import pytest

from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.labelled.layout import layout
from flaxnmt.data.sequences import packed_sequences, plan_sequences
from flaxnmt.data.shards import DOCUMENT, PARAGRAPH, TokenArray, TokenCorpus
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.symbols import BOS, EOS

CLS, SEP, LENGTH, ROWS = 5, 6, 12, 4


def corpus_of(seed, documents=20):
    """Random documents of one language, each token the number of its document above 100."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, documents)
    numbers = np.repeat(np.arange(documents), sizes)
    tokens = TokenArray.from_lists(
        [[100 + number] * count for number, count in zip(numbers, rng.poisson(4, len(numbers)))]
    )
    starts = np.zeros(len(numbers), np.uint8)
    starts[np.cumsum(sizes) - sizes] = DOCUMENT | PARAGRAPH
    return TokenCorpus(tokens, None, np.arange(1, len(numbers) + 1, dtype=np.int32), starts)


def all_of(batches, count):
    """Sequences of that many batches, one below the other, without empty rows."""
    found = [batches.batch(step) for step in range(count)]
    tokens, packed = (np.concatenate([batch[name] for batch in found]) for name in ("tokens", "packed"))
    real = (tokens != 0).any(-1)
    return tokens[real], packed[real]


def of_training(corpus, first, seed=0):
    plan = plan_sequences(LENGTH, ROWS * LENGTH, ROWS)
    return ShuffledBatches(packed_sequences(corpus, LENGTH, first), plan, seed)


@pytest.mark.parametrize(("first", "last"), [(CLS, SEP), (CLS, EOS), (None, EOS)])
@pytest.mark.parametrize("seed", range(3))
def test_every_token_once_in_order_with_padding_at_the_end_alone(seed, first, last):
    corpus = corpus_of(seed)
    units = packed_sequences(corpus, LENGTH, first, last)
    batches = SortedBatches(units, plan_sequences(LENGTH, ROWS * LENGTH, ROWS))
    tokens, packed = all_of(batches, len(batches))
    assert tokens.shape == packed.shape == (len(units), LENGTH) and tokens.dtype == packed.dtype == np.int32
    if first is not None:
        assert (tokens[:, 0] == first).all()
        # It belongs to the document of the token behind it.
        np.testing.assert_array_equal(packed[:, 0], packed[:, 1])
        tokens, packed = tokens[:, 1:], packed[:, 1:]
    flat, total = tokens.ravel(), len(corpus.source.tokens)
    expected = np.where(corpus.source.tokens == EOS, last, corpus.source.tokens)
    np.testing.assert_array_equal(flat[:total], expected)
    assert (flat[total:] == 0).all() and (packed.ravel()[total:] == 0).all() and len(flat) - total < LENGTH
    counted = [
        units.target_tokens(batches.units.sentences(batches.indices(i), batches.shape(i)))
        for i in range(len(batches))
    ]
    assert sum(counted) == total


@pytest.mark.parametrize("seed", range(3))
def test_documents_are_told_apart(seed):
    corpus = corpus_of(seed)
    batches = SortedBatches(packed_sequences(corpus, LENGTH), plan_sequences(LENGTH, ROWS * LENGTH, ROWS))
    _, packed = all_of(batches, len(batches))
    ends = corpus.source.offsets[corpus.document_offsets[1:]]
    sizes = np.diff(ends, prepend=0)
    expected = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    np.testing.assert_array_equal(packed.ravel()[: len(expected)], expected)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_stands_before_each_token_is_given(seed, apart):
    corpus, rng = corpus_of(seed), np.random.default_rng(seed)
    words = corpus.source.tokens > EOS
    corpus.source.tokens[words] = rng.integers(10, 60, words.sum())
    units = packed_sequences(corpus, LENGTH, apart=apart, follows=True)
    batches = SortedBatches(units, plan_sequences(LENGTH, ROWS * LENGTH, ROWS))
    found = [batches.batch(i) for i in range(len(batches))]
    given, said, packed = (
        np.concatenate([batch[name] for batch in found]) for name in ("tokens", "target", "packed")
    )
    np.testing.assert_array_equal(said[said > 0], corpus.source.tokens)
    np.testing.assert_array_equal((given > 0) & (packed > 0), said > 0)
    before = [BOS, *corpus.source.tokens[:-1].tolist()]
    np.testing.assert_array_equal(given[said > 0], [BOS if token == EOS else token for token in before])


@pytest.mark.parametrize("first", [CLS, None])
@pytest.mark.parametrize("seed", range(3))
def test_documents_that_are_kept_apart_share_no_sequence(seed, first):
    corpus = corpus_of(seed)
    units = packed_sequences(corpus, LENGTH, first, apart=True)
    batches = SortedBatches(units, plan_sequences(LENGTH, ROWS * LENGTH, ROWS))
    tokens, packed = all_of(batches, len(batches))
    assert len(tokens) == len(units)
    for row, numbers in zip(tokens, packed):
        assert len(set(numbers[row > 0])) == 1 and (numbers[row == 0] == 0).all()
        assert len(set(row[row > 100])) <= 1 and (np.diff((row > 0).astype(int)) <= 0).all()
    # Every token once, in order; a document has as few sequences as hold it.
    words = tokens if first is None else tokens[:, 1:]
    np.testing.assert_array_equal(words[words > 0], corpus.source.tokens)
    sizes = np.diff(corpus.source.offsets[corpus.document_offsets])
    assert len(units) == sum(-(-sizes // words.shape[1]))
    assert units.target_tokens(np.array([*range(len(units)), -1])) == sizes.sum()


@pytest.mark.parametrize("first", [CLS, None])
def test_an_epoch_has_every_sequence_once_and_each_has_its_own_order(first):
    corpus = corpus_of(1)
    batches = of_training(corpus, first)
    expected = sorted(map(tuple, all_of(SortedBatches(batches.units, batches.plan), len(batches))[0]))
    epochs = []
    for epoch in range(2):
        rows = np.concatenate(
            [batches.batch(epoch * len(batches) + i)["tokens"] for i in range(len(batches))]
        )
        epochs.append([tuple(row) for row in rows if row.any()])
    assert sorted(epochs[0]) == sorted(epochs[1]) == expected
    assert epochs[0] != epochs[1] and batches.pairs == len(expected)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_together_hold_the_global_batch(hosts):
    batches = of_training(corpus_of(2), CLS)
    for step in range(len(batches) + 1):
        parts = [
            batches.batch(step, slice(host * ROWS // hosts, (host + 1) * ROWS // hosts))
            for host in range(hosts)
        ]
        whole = batches.batch(step)
        assert whole["tokens"].shape == (ROWS, LENGTH)
        for name in whole:
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), whole[name])


def test_a_line_is_read_as_fine_tuning_reads_it():
    corpus = corpus_of(0)
    units = packed_sequences(corpus, 99, CLS, SEP, apart=True)
    batch = units.batch(np.arange(len(units)), plan_sequences(99, 99 * len(units), 1).buckets[0])
    first, last = corpus.source.offsets[:2]
    line = corpus.source.tokens[first : last - 1].tolist()
    expected = layout(line, None, CLS, SEP, 99).ids
    assert batch["tokens"][0, : len(expected)].tolist() == expected


def test_empty_rows_are_empty():
    units = packed_sequences(corpus_of(0), LENGTH, CLS)
    batch = units.batch(np.array([0, -1]), plan_sequences(LENGTH, 2 * LENGTH, 2).buckets[0])
    assert batch["tokens"][0].all() and not batch["tokens"][1].any() and not batch["packed"][1].any()


def test_what_holds_no_sequence_is_refused():
    with pytest.raises(ConfigError, match=r"holds fewer than 8 sequences .* raise it to 96"):
        plan_sequences(LENGTH, 95, 8)
    empty = TokenCorpus(
        TokenArray.from_lists([[]]), None, np.ones(1, np.int32), np.full(1, DOCUMENT, np.uint8)
    )
    assert empty.source.tokens.tolist() == [EOS]
    with pytest.raises(DataError, match="no text to learn from"):
        packed_sequences(empty, LENGTH)
