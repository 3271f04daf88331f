"""Shapes are nested, hold every pair that training uses, and no chain of shapes on the grid pads less."""

from itertools import combinations

import numpy as np
import pytest

from flaxnmt.data.buckets import (
    Bucket,
    BucketPlan,
    extend,
    nested_shapes,
    padding_share,
    plan_buckets,
    skipped,
    trainable,
    training_buckets,
)
from flaxnmt.errors import ConfigError, DataError


def draw(seed, count=500, longest=200):
    """Lengths of a random distribution: mean, spread and ratio differ from seed to seed."""
    rng = np.random.default_rng(seed)
    source = np.exp(rng.normal(rng.uniform(1, 4), rng.uniform(0.1, 1), count))
    target = source * np.exp(rng.normal(rng.uniform(-1, 1), rng.uniform(0, 0.7), count))
    return tuple(np.clip(side, 1, longest).astype(np.int32) for side in (source, target))


def padded_tokens(plan, source, target):
    chosen = [plan.buckets[k] for k in plan.assign(source, target)]
    return sum(bucket.source + bucket.target for bucket in chosen)


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_random_lengths(seed):
    source, target = draw(seed)
    max_length, rows_multiple = (40, 8) if seed % 2 else (128, 4)
    plan = plan_buckets(
        source, target, max_length=max_length, batch_tokens=1600, buckets=5, rows_multiple=rows_multiple
    )
    assert 1 <= len(plan.buckets) <= 5
    for a, b in zip(plan.buckets, plan.buckets[1:], strict=False):
        assert a.source <= b.source and a.target <= b.target and (a.source, a.target) != (b.source, b.target)
    for bucket in plan.buckets:
        assert bucket.rows % rows_multiple == 0
        assert bucket.rows * bucket.target <= 1600 < (bucket.rows + rows_multiple) * bucket.target
    buckets = training_buckets(plan, source, target)
    used = trainable(source, target, max_length)
    assert ((buckets < len(plan.buckets)) == used).all()
    for k, s, t in zip(buckets[used], source[used], target[used], strict=True):
        assert s <= plan.buckets[k].source and t <= plan.buckets[k].target
        if k:
            below = plan.buckets[k - 1]
            assert s > below.source or t > below.target


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_no_chain_on_the_grid_pads_less(seed, buckets):
    source, target = (side + 1 for side in draw(seed, count=60, longest=31))
    plan = plan_buckets(source, target, max_length=32, batch_tokens=4096, buckets=buckets)
    last = plan.buckets[-1]
    grid = [(s, t) for s in range(8, last.source + 1, 8) for t in range(8, last.target + 1, 8)]
    least = min(
        padded_tokens(BucketPlan(tuple(Bucket(*shape, 8) for shape in chain), 32), source, target)
        for size in range(1, buckets + 1)
        for chain in combinations(grid, size)
        if chain[-1] == grid[-1]
        and all(a[0] <= b[0] and a[1] <= b[1] for a, b in zip(chain, chain[1:], strict=False))
    )
    assert padded_tokens(plan, source, target) == least


@pytest.mark.parametrize("seed", range(4))
def test_no_chain_on_the_grid_costs_less(seed):
    rng = np.random.default_rng(seed)
    sentences, words = rng.integers(1, 7, 40), rng.integers(1, 25, 40)
    shapes = nested_shapes(sentences, words, steps=(1, 4), buckets=2, cost=np.multiply)
    assert list(shapes[-1]) == [sentences.max(), -(-words.max() // 4) * 4]

    def cost(chain):
        held = np.array([next(n * m for n, m in chain if s <= n and w <= m) for s, w in pairs])
        return held.sum()

    pairs = list(zip(sentences, words, strict=True))
    grid = [(n, m) for n in range(1, shapes[-1][0] + 1) for m in range(4, shapes[-1][1] + 1, 4)]
    assert cost(shapes) == min(cost([shape, shapes[-1]]) for shape in grid)


def test_more_buckets_pad_less():
    rng = np.random.default_rng(0)
    source, target = rng.integers(2, 129, (2, 5000))
    shares = []
    for buckets in (1, 3, 6):
        plan = plan_buckets(source, target, max_length=128, batch_tokens=4096, buckets=buckets)
        shares.append(sum(padding_share(plan, source, target)))
    assert shares[0] > shares[1] > shares[2]


def test_padding_share_by_hand():
    plan = BucketPlan((Bucket(8, 8, 8), Bucket(16, 32, 8)), 32)
    source, target = np.array([4, 10, 40]), np.array([6, 16, 2])
    assert padding_share(plan, source, target) == (1 - 14 / 24, 1 - 22 / 40)


def test_skipped_pairs_are_counted_with_their_lines():
    source, target = np.array([5, 50, 1, 5, 5, 1]), np.array([5, 5, 5, 41, 40, 90])
    plan = plan_buckets(source, target, max_length=40, batch_tokens=4096)
    lines = np.array([10, 20, 30, 40, 50, 60])
    report = skipped(plan, source, target, lines, examples=3)
    assert (report.too_long + report.empty, report.empty, report.lines) == (4, 2, (20, 30, 40))
    assert str(report) == "2 pairs too long, 2 with an empty side, first at lines 20, 30, 40"


def test_impossible_requests():
    lengths = np.array([50, 60])
    with pytest.raises(DataError, match="none of 2 pairs"):
        plan_buckets(lengths, lengths, max_length=40, batch_tokens=4096)
    with pytest.raises(ConfigError, match="raise it to 512"):
        plan_buckets(lengths, lengths, max_length=64, batch_tokens=500)


@pytest.mark.parametrize(
    ("cap", "shapes"), [(256, [(48, 40), (96, 80), (192, 160), (256, 256)]), (20, [(48, 40), (48, 48)])]
)
def test_extend_doubles_up_to_the_cap(cap, shapes):
    plan = extend(BucketPlan((Bucket(48, 40, 48),), 40), cap)
    assert [(b.source, b.target) for b in plan.buckets] == shapes
    assert [b.rows for b in plan.buckets] == [48, 24, 8, 8][: len(shapes)]
    assert {b.rows for b in extend(plan, cap, rows=5).buckets} == {5}
    assert extend(plan, cap) == plan
