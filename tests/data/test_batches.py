"""Training batches are a function of (seed, step, rows); evaluation drops nothing and keeps the order."""

import logging
import zlib
from itertools import islice

import numpy as np
import pytest

from flaxnmt.data.batches import EvaluationBatches, TrainBatches, permute
from flaxnmt.data.buckets import Bucket, BucketPlan, extend, plan_buckets, trainable
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.errors import DataError
from flaxnmt.symbols import EOS


def corpus_of(seed, pairs=300):
    """Random pairs; the first token of a source is the number of the pair, so that batches can be read."""
    rng = np.random.default_rng(seed)
    mean, ratio = rng.uniform(2, 20), rng.uniform(0.5, 2)
    source = 1 + rng.poisson(mean, pairs)
    target = rng.poisson(source * ratio)
    sides = []
    for lengths in (source, target):
        sides.append(
            TokenArray.from_lists(
                [[10 + i, *rng.integers(4, 9, max(0, n - 1)).tolist()][:n] for i, n in enumerate(lengths)]
            )
        )
    return TokenCorpus(*sides, np.arange(1, pairs + 1, dtype=np.int32), np.full(pairs, 3, np.uint8))


def batches_of(seed, pairs=300, max_length=40, batch_tokens=400, **options):
    corpus = corpus_of(seed, pairs)
    lengths = corpus.source.lengths, corpus.target.lengths
    plan = plan_buckets(*lengths, max_length=max_length, batch_tokens=batch_tokens, **options)
    return TrainBatches(corpus, plan, seed)


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def flat(batch):
    return b"".join(batch[key].tobytes() for key in sorted(batch))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 1025])
def test_permute_is_a_permutation(size):
    seen = [permute(np.arange(size), size, (seed, 0)) for seed in range(8)]
    for drawn in seen:
        assert sorted(drawn.tolist()) == list(range(size))
    assert np.array_equal(permute(np.array([size - 1]), size, (3, 0)), seen[3][-1:])
    if size >= 64:
        assert len({drawn.tobytes() for drawn in seen}) == 8


def test_permute_is_uniform():
    size, draws = 10, 2000
    counts = np.zeros((size, size))
    for seed in range(draws):
        counts[np.arange(size), permute(np.arange(size), size, (seed,))] += 1
    chi2 = ((counts - draws / size) ** 2 / (draws / size)).sum()
    assert 40 < chi2 < 140  # 81 degrees of freedom: mean 81, standard deviation 12.7
    drawn = permute(np.arange(50_000), 50_000, (1,))
    assert abs(np.corrcoef(np.arange(50_000), drawn)[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("seed", range(10))
def test_every_pair_once_per_epoch_in_shapes_of_the_plan(seed):
    batches = batches_of(seed, pairs=[300, 37, 3, 1000][seed % 4], buckets=1 + seed % 5)
    corpus, shapes = batches.corpus, set(batches.plan.buckets)
    expected = np.flatnonzero(
        trainable(corpus.source.lengths, corpus.target.lengths, batches.plan.max_length)
    )
    partial = 0
    for epoch in range(2):
        seen = []
        for step in range(epoch * len(batches), (epoch + 1) * len(batches)):
            shape, indices, batch = batches.shape(step), batches.indices(step), batches.batch(step)
            assert shape in shapes and shape in batches.shapes
            assert batch["source"].shape == (shape.rows, shape.source)
            assert batch["target"].shape == (shape.rows, shape.target)
            assert batch["source"].dtype == batch["target"].dtype == np.int32
            for side, array in (("source", corpus.source), ("target", corpus.target)):
                for row, index in zip(batch[side], indices, strict=True):
                    tokens = array[index].tolist() if index >= 0 else []
                    assert row.tolist() == tokens + [0] * (len(row) - len(tokens))
            assert batches.target_tokens(step) == np.count_nonzero(batch["target"])
            partial += -1 in indices
            seen += indices[indices >= 0].tolist()
        assert sorted(seen) == expected.tolist()
    assert partial <= 2  # at most the last batch of the longest bucket, in each epoch
    assert {batches.shape(step) for step in range(len(batches))} == set(batches.shapes)
    assert batches.pairs == len(expected) == len(corpus) - batches.skipped.too_long - batches.skipped.empty


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_together_hold_the_global_batch(hosts):
    batches = batches_of(5)

    def rows(host):
        return lambda count: slice(host * count // hosts, (host + 1) * count // hosts)

    streams = [batches.iterate(0, rows(host)) for host in range(hosts)]
    for step in range(len(batches) + 2):
        parts = [next(stream) for stream in streams]
        whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        assert same(whole, batches.batch(step))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_resuming_anywhere_equals_the_unbroken_run(threads):
    batches = batches_of(2)
    unbroken = list(islice(batches.iterate(0, threads=threads), 3 * len(batches)))
    for start in (1, len(batches) - 1, len(batches), 2 * len(batches) + 1):
        fresh = batches_of(2)
        resumed = list(islice(fresh.iterate(start, threads=threads), 3 * len(batches) - start))
        assert all(map(same, resumed, unbroken[start:]))
    assert same(batches.dataset()[10**9], batches.batch(10**9))


def test_the_order_is_that_of_earlier_versions():
    """A run that was begun before sees the same batches after an update of the library."""
    number = np.arange(1000)
    source, target = (
        TokenArray.from_lists([4 + (i + np.arange(size)) % 50 for i, size in enumerate(sizes)])
        for sizes in (1 + number * 7919 % 37, 1 + number * 104729 % 41)
    )
    corpus = TokenCorpus(source, target, number + 1, np.full(1000, 3, np.uint8))
    plan = plan_buckets(source.lengths, target.lengths, max_length=36, batch_tokens=512, buckets=4)
    assert str(plan) == "32x(16, 16), 16x(24, 24), 16x(32, 32), 8x(40, 40)"

    def checksum(batches, count):
        crc = 0
        for batch in map(batches.batch, range(count)):
            crc = zlib.crc32(batch["target"].tobytes(), zlib.crc32(batch["source"].tobytes(), crc))
        return f"{crc:08x}"

    train, evaluation = TrainBatches(corpus, plan, 7), EvaluationBatches(source, target, plan)
    assert (len(train), checksum(train, 121)) == (59, "ed19e85d")
    assert (len(evaluation), checksum(evaluation, 82)) == (82, "b1bb7ae4")


def test_epochs_and_seeds_differ():
    batches = batches_of(4)
    other = TrainBatches(batches.corpus, batches.plan, seed=99)
    steps = len(batches)
    epochs = [
        [flat(b.batch(e * steps + i)) for i in range(steps)] for b in (batches, other) for e in range(2)
    ]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({flat_batch for epoch in epochs for flat_batch in epoch}) > 3.5 * steps
    shapes = [[b.shape(i).target for i in range(steps)] for b in (batches, other)]
    assert shapes[0] != shapes[1] and sorted(shapes[0]) == sorted(shapes[1])


def test_nothing_to_train_on():
    corpus = corpus_of(0, pairs=5)
    with pytest.raises(DataError, match="none of 5 pairs can be trained on: 5 pairs too long"):
        TrainBatches(corpus, BucketPlan((Bucket(1, 1, 8),), 1), 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_target", [True, False])
def test_evaluation_keeps_all_and_the_order(seed, with_target):
    corpus = corpus_of(seed, pairs=[100, 1, 9, 257][seed])
    longest = int(max(corpus.source.lengths.max(), corpus.target.lengths.max()))
    plan = extend(
        BucketPlan((Bucket(8, 8, 16), Bucket(12, 16, 8)), 16), longest, rows=7 if seed % 2 else None
    )
    batches = EvaluationBatches(corpus.source, corpus.target if with_target else None, plan)
    outputs = []
    for i, batch in enumerate(batches):
        shape = batches.shape(i)
        assert shape in plan.buckets and shape in batches.shapes
        assert batch["source"].shape == (shape.rows, shape.source)
        assert ("target" in batch) == with_target
        outputs.append([[int(token) for token in row if token] for row in batch["source"]])
        assert same(
            {
                key: np.concatenate([batches.batch(i, rows)[key] for rows in (slice(0, 3), slice(3, None))])
                for key in batch
            },
            batch,
        )
    assert batches.restore(outputs) == [corpus.source[i].tolist() for i in range(len(corpus))]


def test_too_long_for_every_shape_is_cut_and_said(caplog):
    caplog.set_level(logging.WARNING, "flaxnmt.data.batches")
    source = TokenArray.from_lists([[5, 6], [5] * 30, [7]])
    target = TokenArray.from_lists([[5, 6], [5], [7]])
    plan = BucketPlan((Bucket(4, 4, 2), Bucket(8, 8, 2)), 8)
    batches = EvaluationBatches(source, target, plan)
    assert (
        "1 of 3 lines exceed 8 source or 8 target tokens and are cut there; the first is line 2"
        in caplog.text
    )
    restored = batches.restore(batch["source"].tolist() for batch in batches)
    assert restored[1] == [5] * 7 + [EOS]
    assert restored[0] == [5, 6, EOS, 0]
