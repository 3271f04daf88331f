"""Document batches: shapes, context without a target, each sentence scored once, on any number of hosts."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.boundaries import Boundaries
from flaxnmt.data.buckets import BucketPlan
from flaxnmt.data.chunks import chunk
from flaxnmt.data.document_batches import DocumentBucket, DocumentChunks, plan_documents
from flaxnmt.data.shards import DOCUMENT, PARAGRAPH, TokenArray, TokenCorpus
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.symbols import EOS

LONGEST, OVERLAP, MAX_LENGTH = 6, 1, 20


def corpus_of(seed, documents=40, mean=8):
    """Random documents; the first token of a sentence is its number, so that batches can be read."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 15, documents)
    sentences = int(sizes.sum())
    sides = []
    for scale in (1.0, 1.2):
        lengths = rng.poisson(mean * scale, sentences)
        sides.append(
            TokenArray.from_lists(
                [[100 + i, *rng.integers(4, 9, n)][:n] for i, n in enumerate(lengths.tolist())]
            )
        )
    starts = np.where(rng.random(sentences) < 0.3, PARAGRAPH, 0).astype(np.uint8)
    starts[np.cumsum(sizes) - sizes] = DOCUMENT | PARAGRAPH
    return TokenCorpus(*sides, np.arange(1, sentences + 1, dtype=np.int32) * 10, starts)


def train_batches(seed, plan_options=(), **options):
    corpus = corpus_of(seed, **options)
    units = DocumentChunks(corpus, chunk(corpus.document_offsets, LONGEST, OVERLAP), MAX_LENGTH)
    settings = {"max_length": MAX_LENGTH, "batch_tokens": 400, "buckets": 4, "rows_multiple": 2}
    plan = plan_documents(units, **settings | dict(plan_options))
    return corpus, ShuffledBatches(units, plan, seed)


def row(tokens, length):
    tokens = tokens.tolist()
    tokens = tokens if len(tokens) <= length else [*tokens[: length - 1], EOS]
    return tokens + [0] * (length - len(tokens))


@pytest.mark.parametrize("seed", range(4))
def test_an_epoch_scores_every_trainable_sentence_once(seed):
    corpus, batches = train_batches(seed, mean=[8, 12, 15, 4][seed])
    source_lengths, target_lengths = corpus.source.lengths, corpus.target.lengths
    learnt = (np.minimum(source_lengths, target_lengths) > 1) & (
        np.maximum(source_lengths, target_lengths) <= MAX_LENGTH
    )
    assert 0 < learnt.sum() < len(corpus)
    chunks, plan = batches.units.chunks, batches.plan
    for epoch in range(2):
        scored, filler = [], 0
        for step in range(epoch * len(batches), (epoch + 1) * len(batches)):
            shape, batch, indices = batches.shape(step), batches.batch(step), batches.indices(step)
            assert shape in plan.buckets
            rows = (shape.rows, shape.sentences, shape.words)
            assert {key: value.shape for key, value in batch.items()} == {
                "source": rows, "target": rows, "paragraph": rows[:2],
            }  # fmt: skip
            assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
            assert batches.target_tokens(step) == np.count_nonzero(batch["target"])
            filler += -1 in indices
            for place, index in enumerate(indices):
                start, stop = (chunks.start[index], chunks.stop[index]) if index >= 0 else (0, 0)
                for n in range(shape.sentences):
                    here = [batch[key][place, n].tolist() for key in ("source", "target")]
                    if start + n >= stop:
                        assert not any(map(any, here)) and batch["paragraph"][place, n] == 0
                        continue
                    sentence = start + n
                    assert here[0] == row(corpus.source[sentence], shape.words)
                    if any(here[1]):
                        scored.append(sentence)
                        assert here[1] == row(corpus.target[sentence], shape.words)
                    opened = np.count_nonzero(corpus.starts[start + 1 : sentence + 1] & PARAGRAPH)
                    assert batch["paragraph"][place, n] == opened
        assert sorted(scored) == np.flatnonzero(learnt).tolist()
        assert filler <= 1  # only the last batch of the largest shape
    assert batches.pairs == learnt.sum()
    out = np.flatnonzero(~learnt)
    report = batches.skipped
    empty = np.minimum(source_lengths, target_lengths)[out] <= 1
    assert (report.too_long, report.empty) == (np.sum(~empty), np.sum(empty))
    assert report.lines == tuple((out[:5] + 1) * 10)


def test_a_sentence_that_is_too_long_is_context_only():
    sides = [TokenArray.from_lists([[5] * 3, [6] * long, [7] * 2]) for long in (30, 4)]
    corpus = TokenCorpus(*sides, np.array([1, 2, 3]), np.array([3, 0, 0], np.uint8))
    units = DocumentChunks(corpus, chunk(corpus.document_offsets, 3), max_length=16)
    batch = units.batch(np.array([0]), DocumentBucket(3, 16, 1))
    assert batch["source"][0, 1].tolist() == [6] * 15 + [EOS]
    assert np.count_nonzero(batch["target"], axis=2).tolist() == [[4, 0, 3]]
    assert [size.tolist() for size in units.sizes] == [[3], [16]]


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_together_hold_the_global_batch(hosts):
    _, batches = train_batches(1, {"rows_multiple": 4, "batch_tokens": 800})

    def rows(host):
        return lambda count: slice(host * count // hosts, (host + 1) * count // hosts)

    streams = [batches.iterate(2, rows(host)) for host in range(hosts)]
    for step in range(2, len(batches) + 4):
        parts = [next(stream) for stream in streams]
        for key, whole in batches.batch(step).items():
            assert np.array_equal(np.concatenate([part[key] for part in parts]), whole)


def test_order_is_a_function_of_seed_and_step():
    (_, one), (_, same), (_, other) = train_batches(3), train_batches(3), train_batches(3)
    other.seed = 4
    order = [np.concatenate([b.indices(step) for step in range(len(b))]) for b in (one, same, other)]
    assert np.array_equal(order[0], order[1]) and not np.array_equal(order[0], order[2])
    later = np.concatenate([one.indices(step) for step in range(len(one), 2 * len(one))])
    assert not np.array_equal(order[0], later)


@pytest.mark.parametrize("multiple", [1, 2, 8])
def test_plans(multiple):
    _, batches = train_batches(2, {"rows_multiple": multiple, "batch_tokens": 1200, "buckets": 4}, mean=10)
    buckets = batches.plan.buckets
    assert 2 <= len(buckets) <= 4
    for bucket in buckets:
        size = bucket.sentences * bucket.words
        assert bucket.rows % multiple == 0 and bucket.words % 8 == 0
        assert bucket.rows * size <= 1200 < (bucket.rows + multiple) * size
    for a, b in zip(buckets, buckets[1:], strict=False):
        assert a.sentences <= b.sentences and a.words <= b.words and a.sizes != b.sizes
    assert str(batches.plan).startswith(f"{buckets[0].rows}x({buckets[0].sentences}, {buckets[0].words})")


@pytest.mark.parametrize("seed", range(4))
def test_no_two_shapes_pad_less(seed):
    corpus = corpus_of(seed, mean=[5, 10, 20, 40][seed])
    units = DocumentChunks(corpus, chunk(corpus.document_offsets, LONGEST, OVERLAP))
    first, last = plan_documents(units, max_length=1024, batch_tokens=10000, buckets=2).buckets
    sizes = list(zip(*units.sizes, strict=True))

    def cost(n, m):
        return sum(n * m if a <= n and b <= m else last.sentences * last.words for a, b in sizes)

    grid = [(n, m) for n in range(1, last.sentences + 1) for m in range(8, last.words + 1, 8)]
    assert cost(*first.sizes) == min(cost(*shape) for shape in grid)


def test_impossible_requests():
    with pytest.raises(
        ConfigError, match="fewer than 8 rows .* of 6 sentences of 24 tokens; raise it to 1152"
    ):
        train_batches(2, {"rows_multiple": 8, "batch_tokens": 1151})
    corpus = corpus_of(0)
    units = DocumentChunks(corpus, chunk(corpus.document_offsets, LONGEST), max_length=1)
    with pytest.raises(DataError, match="none of .* sentences is non-empty and within 1 tokens"):
        plan_documents(units, max_length=1, batch_tokens=400)
    plan = BucketPlan((DocumentBucket(1, 1, 1),), 1)
    with pytest.raises(DataError, match=f"none of {len(corpus)} pairs can be trained on"):
        ShuffledBatches(units, plan, 0)


@pytest.mark.parametrize("with_target", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_evaluation_scores_every_sentence_once_and_keeps_the_order(seed, with_target):
    corpus = corpus_of(seed, mean=14)
    chunks = chunk(corpus.document_offsets, LONGEST, OVERLAP)
    if not with_target:
        corpus = replace(corpus, target=None)
    units = DocumentChunks(corpus, chunks)
    plan = plan_documents(units, max_length=1024, batch_tokens=1000, buckets=3)
    batches = SortedBatches(units, plan)
    outputs, scored = [], 0
    for i, batch in enumerate(batches):
        shape, sentences = batches.shape(i), batches.indices(i)
        assert batch["source"].shape == (shape.rows, shape.sentences, shape.words)
        assert ("target" in batch) == with_target
        if with_target:
            assert np.array_equal(batch["target"].any(-1), sentences >= 0)
        scored += np.count_nonzero(sentences >= 0)
        # What a model would give: an output for each place, of which only the scored ones are wanted.
        outputs.append(
            [
                (list(filter(None, words)), sentence)
                for words, sentence in zip(
                    batch["source"].reshape(-1, shape.words).tolist(), sentences.ravel(), strict=True
                )
            ]
        )
        parts = [batches.batch(i, rows) for rows in (slice(0, 1), slice(1, None))]
        for key, whole in batch.items():
            assert np.array_equal(np.concatenate([part[key] for part in parts]), whole)
    assert scored == len(corpus)
    assert batches.restore(outputs) == [(corpus.source[i].tolist(), i) for i in range(len(corpus))]


@pytest.mark.parametrize("share, width", [(0.05, 2), (0.5, 4), (0.9, 8)])
def test_of_wanted_sentences_each_has_one_place_and_the_rest_is_context(share, width):
    corpus = replace(corpus_of(2), target=None)
    chunks = chunk(corpus.document_offsets, LONGEST, OVERLAP)
    wanted = np.random.default_rng(5).random(len(corpus)) < share
    units = DocumentChunks(corpus, chunks, wanted=wanted)
    assert width // 2 < units.wanted_counts.max() <= width == units.width
    plan = plan_documents(DocumentChunks(corpus, chunks), max_length=1024, batch_tokens=1000, buckets=3)
    batches, found = SortedBatches(units, plan, units.wanted_counts > 0), []
    for i, batch in enumerate(batches):
        shape, members = batches.shape(i), batches.indices(i)
        assert members.shape == batch["wanted"].shape == (shape.rows, min(width, shape.sentences))
        # A row with nothing to translate is empty.
        assert np.array_equal((members >= 0).any(-1), batch["source"].any((1, 2)))
        rows = np.take_along_axis(batch["source"], batch["wanted"][..., None], axis=1)
        for member, words in zip(members.ravel(), rows.reshape(-1, shape.words)):
            assert member < 0 or words[words > 0].tolist() == corpus.source[member].tolist()
        parts = [batches.batch(i, rows) for rows in (slice(0, 1), slice(1, None))]
        assert np.array_equal(np.concatenate([part["wanted"] for part in parts]), batch["wanted"])
        found.append(members.ravel().tolist())
    assert batches.restore(found) == np.flatnonzero(wanted).tolist()


def test_boundaries_are_those_of_the_units():
    corpus = corpus_of(1)
    chunks = chunk(corpus.document_offsets, LONGEST, OVERLAP)
    settings = {"max_length": 1024, "batch_tokens": 1000, "buckets": 2}
    kinds = [DocumentChunks(corpus, chunks, boundaries=Boundaries(kind)) for kind in ("true", "fixed")]
    true, fixed = (SortedBatches(units, plan_documents(units, **settings)).batch(0) for units in kinds)
    assert true["target"].tolist() == fixed["target"].tolist() and "places" not in true
    assert fixed["places"].shape == fixed["source"].shape and (fixed["source"] != true["source"]).any()


def test_too_long_for_every_shape_is_cut_and_said(caplog):
    caplog.set_level(logging.WARNING, "flaxnmt.data.batches")
    source = TokenArray.from_lists([[5, 6], [5] * 30, [7]])
    corpus = TokenCorpus(source, None, np.array([4, 5, 7]), np.array([3, 0, 0], np.uint8))
    units = DocumentChunks(corpus, chunk(corpus.document_offsets, 4))
    batches = SortedBatches(units, plan_documents(units, max_length=8, batch_tokens=64))
    assert "1 of 3 sentences exceed 8 tokens and are cut there; the first is line 5" in caplog.text
    (batch,) = batches
    assert batches.restore([batch["source"].reshape(-1, 8).tolist()])[1] == [5] * 7 + [EOS]
