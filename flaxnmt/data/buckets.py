"""Static batch shapes: which (source length, target length) each sentence pair is padded to.

The shapes of a plan are nested, each at least as long as the one before on both sides, so that the
shape of a pair is the first that holds it, and any pair also fits every later shape. What a shape holds
has two sizes: tokens of the source and of the target here, sentences and words in `document_batches`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from flaxnmt.errors import ConfigError, DataError
from flaxnmt.typing import Float, Int


class Shape(Protocol):
    """A batch shape: `rows` units, each padded to two `sizes`."""

    @property
    def rows(self) -> int: ...

    @property
    def sizes(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Bucket:
    """A batch shape: `rows` pairs of `source` and `target` tokens, padding included."""

    source: int
    target: int
    rows: int

    @property
    def sizes(self) -> tuple[int, int]:
        return self.source, self.target


@dataclass(frozen=True)
class BucketPlan:
    """Nested shapes in rising order; sentences above `max_length` tokens are not trained on."""

    buckets: tuple[Shape, ...]
    max_length: int

    def __str__(self) -> str:
        return ", ".join(f"{bucket.rows}x{bucket.sizes}" for bucket in self.buckets)

    def assign(self, first: Int[np.ndarray, "U"], second: Int[np.ndarray, "U"]) -> Int[np.ndarray, "U"]:
        """Index of the first shape that holds each unit (uint8); `len(buckets)` where none does."""
        limits = zip(*(bucket.sizes for bucket in self.buckets), strict=True)
        held = [
            np.searchsorted(limit, sizes).astype(np.uint8)
            for limit, sizes in zip(limits, (first, second), strict=True)
        ]
        return np.maximum(*held)


@dataclass(frozen=True)
class Skipped:
    """Pairs that training leaves out, with the lines of the first few for the message."""

    too_long: int
    empty: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        at = f", first at lines {', '.join(map(str, self.lines))}" if self.lines else ""
        return f"{self.too_long} pairs too long, {self.empty} with an empty side{at}"


def trainable(
    source_lengths: Int[np.ndarray, "P"], target_lengths: Int[np.ndarray, "P"], max_length: int
) -> np.ndarray:
    """Pairs (bool [P]) that training uses: neither side empty (eos alone), neither above `max_length`."""
    longest = np.maximum(source_lengths, target_lengths)
    return (np.minimum(source_lengths, target_lengths) > 1) & (longest <= max_length)


def training_buckets(
    plan: BucketPlan, source_lengths: Int[np.ndarray, "P"], target_lengths: Int[np.ndarray, "P"]
) -> np.ndarray:
    """`plan.assign`, with `len(plan.buckets)` also for pairs that are not trainable."""
    buckets = plan.assign(source_lengths, target_lengths)
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
    sides = source_lengths[keep], target_lengths[keep]
    step = grid_step(int(max(side.max() for side in sides)), length_multiple)
    shapes = nested_shapes(*sides, steps=(step, step), buckets=buckets, cost=np.add)
    rows = [batch_tokens // target // rows_multiple * rows_multiple for _, target in shapes]
    if not rows[-1]:
        raise ConfigError(
            f"batch_tokens {batch_tokens} holds fewer than {rows_multiple} rows (rows_multiple) of "
            f"{shapes[-1][1]} tokens; raise it to {rows_multiple * shapes[-1][1]} or lower max_length"
        )
    return BucketPlan(tuple(Bucket(*shape, n) for shape, n in zip(shapes, rows, strict=True)), max_length)


def grid_step(longest: int, multiple: int) -> int:
    """The least multiple of `multiple` of which at most 32 steps reach `longest`."""
    return multiple * -(-longest // (32 * multiple))


def nested_shapes(
    first: Int[np.ndarray, "U"],
    second: Int[np.ndarray, "U"],
    *,
    steps: tuple[int, int],
    buckets: int,
    cost: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> list[tuple[int, int]]:
    """The nested shapes, at most `buckets`, for which units of two sizes cost least, padding included.

    Exact among all nested chains of shapes whose sizes are multiples of `steps`; the last holds every unit.

    Args:
      cost: padded size of one unit from the two sizes of its shape; arrays to an array.
    """
    cells = (first - 1) // steps[0], (second - 1) // steps[1]
    shape = cells[0].max() + 1, cells[1].max() + 1
    counts = np.bincount(cells[0] * shape[1] + cells[1], minlength=shape[0] * shape[1]).reshape(shape)
    grid = [step * (axis + 1) for step, axis in zip(steps, np.indices(shape), strict=True)]
    chain = _cheapest_chain(counts, cost(*grid).astype(np.float64), buckets)
    return [(steps[0] * (i + 1), steps[1] * (j + 1)) for i, j in chain]


def _cheapest_chain(
    counts: Int[np.ndarray, "I J"], cost: Float[np.ndarray, "I J"], links: int
) -> list[tuple[int, int]]:
    """Cells of the chain, ending in the last cell, that minimises the padded size of all units.

    `counts[i, j]` units need the cell (i, j). With C the two-dimensional running sum of counts, the last
    shape b of a chain after a shape a takes C(b) - C(a) units, so best_k(b) is the least of
    best_{k-1}(a) + (C(b) - C(a)) cost(b) over all a that b contains.
    """
    rows, columns = (axis.ravel() for axis in np.indices(counts.shape))
    total = counts.cumsum(0).cumsum(1).ravel().astype(np.float64)
    cost = cost.ravel()
    best, previous = total * cost, []
    contains = (rows[:, None] >= rows) & (columns[:, None] >= columns)
    step = np.where(contains, (total[:, None] - total) * cost[:, None], np.inf)
    for _ in range(links - 1):
        through = step + best
        previous.append(through.argmin(1))
        best = through.min(1)
    chain = [len(best) - 1]
    for links_before in reversed(previous):
        chain.append(int(links_before[chain[-1]]))
    return [(int(rows[cell]), int(columns[cell])) for cell in sorted(set(chain))]


def extend(plan: BucketPlan, cap: int, rows: int | None = None, rows_multiple: int = 8) -> BucketPlan:
    """The plan for the evaluation and translation of sentences, where nothing is left out.

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
