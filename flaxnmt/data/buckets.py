"""Static batch shapes: which (source length, target length) each sentence pair is padded to.

The shapes of a plan are nested, each at least as long as the one before on both sides, so that the
shape of a pair is the first that holds it, and any pair also fits every later shape.
"""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from flaxnmt.errors import ConfigError, DataError
from flaxnmt.typing import Int


@dataclass(frozen=True)
class Bucket:
    """A batch shape: `rows` pairs of `source` and `target` tokens, padding included."""

    source: int
    target: int
    rows: int


@dataclass(frozen=True)
class BucketPlan:
    """Nested shapes in rising order; pairs with a side above `max_length` belong to none."""

    buckets: tuple[Bucket, ...]
    max_length: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BucketPlan":
        fields = json.loads(text)
        return cls(tuple(Bucket(**bucket) for bucket in fields["buckets"]), fields["max_length"])

    def __str__(self) -> str:
        return ", ".join(f"{b.rows}x({b.source}, {b.target})" for b in self.buckets)


@dataclass(frozen=True)
class Skipped:
    """Pairs that training leaves out, with the lines of the first few for the message."""

    too_long: int
    empty: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        at = f", first at lines {', '.join(map(str, self.lines))}" if self.lines else ""
        return f"{self.too_long} pairs too long, {self.empty} with an empty side{at}"


def assign(
    plan: BucketPlan, source_lengths: Int[np.ndarray, "P"], target_lengths: Int[np.ndarray, "P"] | None = None
) -> np.ndarray:
    """Index of the first shape that holds each pair (uint8 [P]); `len(plan.buckets)` where none does."""

    def first(sizes: list[int], lengths: np.ndarray) -> np.ndarray:
        return np.searchsorted(sizes, lengths).astype(np.uint8)

    buckets = first([b.source for b in plan.buckets], source_lengths)
    if target_lengths is None:
        return buckets
    return np.maximum(buckets, first([b.target for b in plan.buckets], target_lengths))


def trainable(
    source_lengths: Int[np.ndarray, "P"], target_lengths: Int[np.ndarray, "P"], max_length: int
) -> np.ndarray:
    """Pairs (bool [P]) that training uses: neither side empty (eos alone), neither above `max_length`."""
    longest = np.maximum(source_lengths, target_lengths)
    return (np.minimum(source_lengths, target_lengths) > 1) & (longest <= max_length)


def training_buckets(
    plan: BucketPlan, source_lengths: Int[np.ndarray, "P"], target_lengths: Int[np.ndarray, "P"]
) -> np.ndarray:
    """`assign`, with `len(plan.buckets)` also for pairs that are not trainable."""
    buckets = assign(plan, source_lengths, target_lengths)
    buckets[~trainable(source_lengths, target_lengths, plan.max_length)] = len(plan.buckets)
    return buckets


def skipped(
    plan: BucketPlan,
    source_lengths: Int[np.ndarray, "P"],
    target_lengths: Int[np.ndarray, "P"],
    lines: Int[np.ndarray, "P"],
    examples: int = 5,
) -> Skipped:
    """The pairs that training leaves out; `lines` says where each pair came from."""
    out = np.flatnonzero(training_buckets(plan, source_lengths, target_lengths) == len(plan.buckets))
    empty = int(np.sum(np.minimum(source_lengths[out], target_lengths[out]) <= 1))
    return Skipped(len(out) - empty, empty, tuple(lines[out[:examples]].tolist()))


def padding_share(
    plan: BucketPlan, source_lengths: Int[np.ndarray, "P"], target_lengths: Int[np.ndarray, "P"]
) -> tuple[float, float]:
    """Shares of source and of target positions that are padding, over the pairs that are trained on."""
    buckets = training_buckets(plan, source_lengths, target_lengths)
    held = buckets < len(plan.buckets)
    counts = np.bincount(buckets[held], minlength=len(plan.buckets))

    def share(sizes: list[int], lengths: np.ndarray) -> float:
        padded = int(counts @ np.array(sizes))
        return 1.0 - int(lengths[held].sum()) / padded if padded else 0.0

    return (
        share([b.source for b in plan.buckets], source_lengths),
        share([b.target for b in plan.buckets], target_lengths),
    )


def plan_buckets(
    source_lengths: Int[np.ndarray, "P"],
    target_lengths: Int[np.ndarray, "P"],
    *,
    max_length: int,
    batch_tokens: int,
    buckets: int = 5,
    rows_multiple: int = 8,
    length_multiple: int = 8,
) -> BucketPlan:
    """The nested shapes, at most `buckets`, over which a corpus has the fewest padded tokens.

    The chain is optimal among all nested chains on a grid of `length_multiple` (coarser above 32 steps per
    side), by dynamic programming over its last shape; source and target tokens cost the same.

    Args:
      source_lengths, target_lengths: tokens of every pair, eos included.
      max_length: longest side of a pair that is kept, in tokens.
      batch_tokens: padded target tokens of a batch; a bucket has as many rows as fit, in `rows_multiple`s.

    Raises:
      DataError: no pair is kept.
      ConfigError: `rows_multiple` rows of the longest shape do not fit into `batch_tokens`.
    """
    keep = trainable(source_lengths, target_lengths, max_length)
    if not keep.any():
        raise DataError(f"none of {len(keep)} pairs is non-empty and within {max_length} tokens")
    longest = int(max(source_lengths[keep].max(), target_lengths[keep].max()))
    step = length_multiple * -(-longest // (32 * length_multiple))
    size = -(-longest // step)
    cells = (source_lengths[keep] - 1) // step * size + (target_lengths[keep] - 1) // step
    counts = np.bincount(cells, minlength=size * size).reshape(size, size)
    used_source, used_target = np.nonzero(counts)
    shapes = [
        (step * (i + 1), step * (j + 1))
        for i, j in _cheapest_chain(counts[: used_source.max() + 1, : used_target.max() + 1], buckets)
    ]
    rows = [batch_tokens // target // rows_multiple * rows_multiple for _, target in shapes]
    if not rows[-1]:
        raise ConfigError(
            f"batch_tokens {batch_tokens} holds fewer than {rows_multiple} rows (rows_multiple) of "
            f"{shapes[-1][1]} tokens; raise it to {rows_multiple * shapes[-1][1]} or lower max_length"
        )
    return BucketPlan(tuple(Bucket(*shape, n) for shape, n in zip(shapes, rows, strict=True)), max_length)


def _cheapest_chain(counts: Int[np.ndarray, "I J"], links: int) -> list[tuple[int, int]]:
    """Cells of the chain, ending in the last cell, that minimises the padded size of all pairs.

    `counts[i, j]` pairs need the cell (i, j), of size i + j + 2. With C the two-dimensional running sum,
    the last shape b of a chain after a shape a takes C(b) - C(a) pairs, so best_k(b) is the least of
    best_{k-1}(a) + (C(b) - C(a)) size(b) over all a that b contains.
    """
    rows, columns = (axis.ravel() for axis in np.indices(counts.shape))
    total = counts.cumsum(0).cumsum(1).ravel().astype(np.float64)
    size = rows + columns + 2.0
    best, previous = total * size, []
    contains = (rows[:, None] >= rows) & (columns[:, None] >= columns)
    step = np.where(contains, (total[:, None] - total) * size[:, None], np.inf)
    for _ in range(links - 1):
        cost = step + best
        previous.append(cost.argmin(1))
        best = cost.min(1)
    chain = [len(best) - 1]
    for links_before in reversed(previous):
        chain.append(int(links_before[chain[-1]]))
    return [(int(rows[cell]), int(columns[cell])) for cell in sorted(set(chain))]


def extend(plan: BucketPlan, cap: int, rows: int | None = None, rows_multiple: int = 8) -> BucketPlan:
    """The plan for evaluation and translation, where nothing is left out.

    Both sides of the last shape are doubled until one would reach `cap`; the shape after that is `cap` on
    both sides, and what is still longer is cut there.

    Args:
      cap: longest side, in tokens; at least the longest of the plan.
      rows: the same number of rows in every shape; by default a doubled shape has half the rows of the
        one before it, in `rows_multiple`s.
    """
    shapes = list(plan.buckets)
    cap = max(cap, shapes[-1].source, shapes[-1].target)
    while min(shapes[-1].source, shapes[-1].target) < cap:
        last = shapes[-1]
        doubled = (2 * last.source, 2 * last.target)
        if max(doubled) >= cap:
            doubled = (cap, cap)
        shapes.append(Bucket(*doubled, max(1, last.rows // 2 // rows_multiple) * rows_multiple))
    if rows is not None:
        shapes = [replace(bucket, rows=rows) for bucket in shapes]
    return BucketPlan(tuple(shapes), cap)
