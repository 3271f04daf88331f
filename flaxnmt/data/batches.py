"""Batches as a function of (seed, step, rows): the same global batch on any number of hosts, at any step."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import isqrt
from typing import Any

import grain
import numpy as np

from flaxnmt.data.buckets import Bucket, BucketPlan, Skipped, assign, skipped, training_buckets
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.errors import DataError
from flaxnmt.typing import Int

log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]
ALL_ROWS = slice(None)
ROUNDS = 6


@lru_cache(maxsize=64)
def _round_keys(seed: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)


def permute(positions: Int[np.ndarray, "B"], size: int, seed: tuple[int, ...]) -> Int[np.ndarray, "B"]:
    """Where a random permutation of range(size), drawn by `seed`, sends the given positions.

    A Feistel network on pairs of digits in base ceil(sqrt(size)), repeated where it leaves the range
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): no state, no memory, any position.
    """
    base = np.uint64(isqrt(size - 1) + 1)

    def encipher(x: np.ndarray) -> np.ndarray:
        left, right = np.divmod(x, base)
        for key in _round_keys(seed):
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, (left + (mixed >> np.uint64(32))) % base
        return left * base + right

    out = encipher(positions.astype(np.uint64))
    while (outside := out >= size).any():
        out[outside] = encipher(out[outside])
    return out.astype(np.int64)


class TrainBatches:
    """The batches of training, for ever: step s is batch s mod `len` of epoch s div `len`.

    An epoch holds every trainable pair exactly once. Within a bucket pairs are permuted by (seed, epoch,
    bucket) and cut into full batches; the pairs left over move up into the next bucket, so that only the
    last batch of the longest bucket can have empty rows. Batches are then permuted by (seed, epoch).
    """

    def __init__(self, corpus: TokenCorpus, plan: BucketPlan, seed: int):
        self.corpus, self.plan, self.seed = corpus, plan, seed
        lengths = corpus.source.lengths, corpus.target.lengths
        buckets = training_buckets(plan, *lengths)
        own = np.bincount(buckets, minlength=len(plan.buckets) + 1)[:-1]
        self.pairs = int(own.sum())
        if not self.pairs:
            raise DataError(f"none of {len(corpus)} pairs can be trained on: {self.skipped}")
        index_type = np.uint32 if len(corpus) <= 1 << 32 else np.int64
        self._members = np.argsort(buckets, kind="stable")[: self.pairs].astype(index_type)
        self._starts = np.cumsum(own) - own
        self._own = own
        self._total = own.copy()
        self._counts = np.zeros(len(own), np.int64)
        for k, bucket in enumerate(plan.buckets):
            last = k + 1 == len(own)
            self._counts[k] = -(-self._total[k] // bucket.rows) if last else self._total[k] // bucket.rows
            if not last:
                self._total[k + 1] += self._total[k] % bucket.rows
        self._ends = np.cumsum(self._counts)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return int(self._ends[-1])

    @property
    def skipped(self) -> Skipped:
        """The pairs of the corpus that are never in a batch."""
        return skipped(self.plan, self.corpus.source.lengths, self.corpus.target.lengths, self.corpus.lines)

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """The shapes that occur, for warm-up."""
        return tuple(bucket for bucket, count in zip(self.plan.buckets, self._counts, strict=True) if count)

    def shape(self, step: int) -> Bucket:
        """Global shape of a step's batch, known without loading it."""
        return self.plan.buckets[self._locate(step)[1]]

    def indices(self, step: int, rows: slice = ALL_ROWS) -> Int[np.ndarray, "B"]:
        """Pairs of the given rows of the global batch; -1 is an empty row."""
        epoch, bucket, batch = self._locate(step)
        size = self.plan.buckets[bucket].rows
        positions = np.arange(batch * size, (batch + 1) * size)[rows]
        indices = np.full(len(positions), -1, np.int64)
        real = positions < self._total[bucket]
        indices[real] = self._pairs_at(epoch, bucket, positions[real])
        return indices

    def batch(self, step: int, rows: slice = ALL_ROWS) -> Batch:
        """`source` int32 [B, S] and `target` int32 [B, T] of the rows that this process owns."""
        indices, shape = self.indices(step, rows), self.shape(step)
        return {
            "source": self.corpus.source.padded(indices, shape.source),
            "target": self.corpus.target.padded(indices, shape.target),
        }

    def target_tokens(self, step: int) -> int:
        """Target tokens of the global batch, padding not counted."""
        indices = self.indices(step)
        return int(self.corpus.target.lengths[indices[indices >= 0]].sum())

    def dataset(self, rows: Callable[[int], slice] | None = None) -> grain.MapDataset:
        """Random access by step: `dataset[step]` is a batch.

        Args:
          rows: from the rows of a global batch to those that this process owns; all by default.
        """

        def load(step: int) -> Batch:
            return self.batch(step, rows(self.shape(step).rows) if rows else ALL_ROWS)

        return grain.MapDataset.range(0, sys.maxsize).map(load)

    def iterate(
        self, start_step: int, rows: Callable[[int], slice] | None = None, threads: int = 1, ahead: int = 8
    ) -> Iterator[Batch]:
        """The batches from `start_step` on, without end; threads load up to `ahead` of them beforehand."""
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        return iter(self.dataset(rows)[start_step:].to_iter_dataset(options))

    def _locate(self, step: int) -> tuple[int, int, int]:
        """Epoch, bucket and the number of the batch among those of its bucket."""
        epoch, position = divmod(step, len(self))
        order = (self.seed, epoch, len(self.plan.buckets))
        batch = int(permute(np.array([position]), len(self), order)[0])
        bucket = int(np.searchsorted(self._ends, batch, side="right"))
        return epoch, bucket, batch - int(self._ends[bucket] - self._counts[bucket])

    def _pairs_at(self, epoch: int, bucket: int, positions: np.ndarray) -> np.ndarray:
        """Pairs at positions of a bucket's permutation; those beyond its own come from the bucket below."""
        drawn = permute(positions, int(self._total[bucket]), (self.seed, epoch, bucket))
        own = drawn < self._own[bucket]
        pairs = np.empty(len(positions), np.int64)
        pairs[own] = self._members[self._starts[bucket] + drawn[own]]
        if not own.all():
            full = self._counts[bucket - 1] * self.plan.buckets[bucket - 1].rows
            pairs[~own] = self._pairs_at(epoch, bucket - 1, full + drawn[~own] - self._own[bucket])
        return pairs


class EvaluationBatches:
    """All sentences once, near ones in length together, nothing dropped.

    Sentences that exceed the last shape of the plan are cut there, with a warning that names the first by its
    line number; see `buckets.extend`.
    """

    def __init__(
        self,
        source: TokenArray,
        target: TokenArray | None,
        plan: BucketPlan,
        line_numbers: Sequence[int] | None = None,
    ):
        self.source, self.target, self.plan = source, target, plan
        last = plan.buckets[-1]
        lengths = [np.minimum(source.lengths, last.source)]
        over = source.lengths > last.source
        if target is not None:
            lengths.append(np.minimum(target.lengths, last.target))
            over = over | (target.lengths > last.target)
        if over.any():
            first = int(over.argmax())
            log.warning(
                "%d of %d lines exceed %d source or %d target tokens and are cut there; the first is line %d",
                *(over.sum(), len(source), last.source, last.target),
                first + 1 if line_numbers is None else line_numbers[first],
            )
        buckets = assign(plan, *lengths)
        order = np.lexsort((lengths[-1], lengths[0], buckets))
        ends = np.cumsum(np.bincount(buckets, minlength=len(plan.buckets)))
        self._batches: list[tuple[int, np.ndarray]] = []
        for k, members in enumerate(np.split(order, ends[:-1])):
            rows = plan.buckets[k].rows
            for first in range(0, len(members), rows):
                some = members[first : first + rows]
                self._batches.append((k, np.pad(some, (0, rows - len(some)), constant_values=-1)))

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """The shapes that occur, for warm-up."""
        return tuple(self.plan.buckets[k] for k in sorted({k for k, _ in self._batches}))

    def shape(self, index: int) -> Bucket:
        return self.plan.buckets[self._batches[index][0]]

    def indices(self, index: int, rows: slice = ALL_ROWS) -> Int[np.ndarray, "B"]:
        """Which sentence stands in each row; -1 is an empty row."""
        return self._batches[index][1][rows]

    def batch(self, index: int, rows: slice = ALL_ROWS) -> Batch:
        """`source` int32 [B, S] and, where there is a target, `target` int32 [B, T]."""
        indices, shape = self.indices(index, rows), self.shape(index)
        batch = {"source": self.source.padded(indices, shape.source)}
        if self.target is not None:
            batch["target"] = self.target.padded(indices, shape.target)
        return batch

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def restore(self, outputs: Iterable[Sequence]) -> list[Any]:
        """One output per sentence in the order of the input, from one output per row of each batch."""
        restored: list[Any] = [None] * len(self.source)
        for (_, indices), rows in zip(self._batches, outputs, strict=True):
            for index, output in zip(indices.tolist(), rows, strict=True):
                if index >= 0:
                    restored[index] = output
        return restored
