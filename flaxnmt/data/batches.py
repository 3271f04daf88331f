"""Batches as a function of (seed, step, rows): the same global batch on any number of hosts, at any step.

What stands in a row is a unit: a sentence pair here, a chunk of a document in `document_batches`.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Any, Protocol

import grain
import numpy as np

from flaxnmt.data.buckets import BucketPlan, Shape, Skipped, skipped, trainable
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.errors import DataError
from flaxnmt.typing import Bool, Int

log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]
Rows = slice | Int[np.ndarray, " own"]
"""Which rows of a global batch."""

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


class Units(Protocol):
    """What batches are made of: U units with two sizes each, which the two sizes of a shape must hold."""

    @property
    def sizes(self) -> tuple[Int[np.ndarray, "U"], Int[np.ndarray, "U"]]: ...

    @property
    def pairs(self) -> Int[np.ndarray, "U"]:
        """Sentence pairs that training learns from in each unit; one without any is left out of training."""
        ...

    def batch(self, indices: Int[np.ndarray, "B"], shape: Shape) -> Batch:
        """Arrays with one row per unit, padded to the shape; index -1 is a row of zeros."""
        ...

    def target_tokens(self, indices: Int[np.ndarray, "B"]) -> int:
        """Target tokens of the units, padding not counted; index -1 has none."""
        ...

    def skipped(self, plan: BucketPlan) -> Skipped:
        """The sentence pairs that training in the shapes of the plan leaves out."""
        ...

    def cuts(self, shape: Shape) -> str:
        """Says which sentences are too long for the shape and are cut there; empty where none is."""
        ...

    def sentences(self, indices: Int[np.ndarray, "B"], shape: Shape) -> Int[np.ndarray, "B ..."]:
        """Sentence of each output that is wanted of a batch, each once; -1 is none."""
        ...


@dataclass(frozen=True)
class SentencePairs:
    """Sentence pairs as units: their sizes are tokens of the source and of the target.

    Attributes:
      target: None where only the source is known.
      lines: line number of each pair, for messages; 1, 2, 3, ... if None.
      max_length: longest side of a pair that is trained on, in tokens; any by default.
    """

    source: TokenArray
    target: TokenArray | None
    lines: Sequence[int] | np.ndarray | None = None
    max_length: int = sys.maxsize

    @property
    def sizes(self) -> tuple[Int[np.ndarray, "U"], Int[np.ndarray, "U"]]:
        lengths = self.source.lengths
        return lengths, np.zeros_like(lengths) if self.target is None else self.target.lengths

    @property
    def pairs(self) -> np.ndarray:
        return trainable(*self.sizes, self.max_length)

    def batch(self, indices: Int[np.ndarray, "B"], shape: Shape) -> Batch:
        """`source` int32 [B, S] and, where there is a target, `target` int32 [B, T]."""
        source, target = shape.sizes
        batch = {"source": self.source.padded(indices, source)}
        if self.target is not None:
            batch["target"] = self.target.padded(indices, target)
        return batch

    def target_tokens(self, indices: Int[np.ndarray, "B"]) -> int:
        return int(self.sizes[1][indices[indices >= 0]].sum())

    def skipped(self, plan: BucketPlan) -> Skipped:
        return skipped(plan, *self.sizes, line_numbers(self.lines, len(self.source)))

    def cuts(self, shape: Shape) -> str:
        over = np.any([sizes > limit for sizes, limit in zip(self.sizes, shape.sizes, strict=True)], axis=0)
        if not over.any():
            return ""
        source, target = shape.sizes
        return (
            f"{over.sum()} of {len(over)} lines exceed {source} source or {target} target tokens and are cut "
            f"there; the first is line {line_numbers(self.lines, len(over))[over.argmax()]}"
        )

    def sentences(self, indices: Int[np.ndarray, "B"], shape: Shape) -> Int[np.ndarray, "B"]:
        return indices


def line_numbers(lines: Sequence[int] | np.ndarray | None, count: int) -> Int[np.ndarray, "P"]:
    """The given numbers, or 1, 2, 3, ... where there are none."""
    return np.arange(1, count + 1) if lines is None else np.asarray(lines)


class ShuffledBatches:
    """The batches of training, for ever: step s is batch s mod `len` of epoch s div `len`.

    An epoch holds every unit that has something to learn exactly once. Within a bucket units are permuted by
    (seed, epoch, bucket) and cut into full batches; the units left over move up into the next bucket, so that
    only the last batch of the longest bucket can have empty rows. Batches are then permuted by (seed, epoch).

    Attributes:
      pairs: sentence pairs that an epoch learns from.

    Raises:
      DataError: there is nothing to learn.
    """

    def __init__(self, units: Units, plan: BucketPlan, seed: int):
        self.units, self.plan, self.seed = units, plan, seed
        pairs, buckets = units.pairs, plan.assign(*units.sizes)
        buckets[pairs == 0] = len(plan.buckets)
        own = np.bincount(buckets, minlength=len(plan.buckets) + 1)[:-1]
        self.pairs = int(pairs[buckets < len(plan.buckets)].sum())
        if not self.pairs:
            left_out = self.skipped
            total = left_out.too_long + left_out.empty
            raise DataError(f"none of {total} pairs can be trained on: {left_out}")
        index_type = np.uint32 if len(buckets) <= 1 << 32 else np.int64
        self._members = np.argsort(buckets, kind="stable")[: own.sum()].astype(index_type)
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
        """The pairs of the corpus that training never learns from."""
        return self.units.skipped(self.plan)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes that occur, for warm-up."""
        return tuple(bucket for bucket, count in zip(self.plan.buckets, self._counts, strict=True) if count)

    def shape(self, step: int) -> Shape:
        """Global shape of a step's batch, known without loading it."""
        return self.plan.buckets[self._locate(step)[1]]

    def indices(self, step: int, rows: Rows = ALL_ROWS) -> Int[np.ndarray, "B"]:
        """Units of the given rows of the global batch; -1 is an empty row."""
        epoch, bucket, batch = self._locate(step)
        size = self.plan.buckets[bucket].rows
        positions = np.arange(batch * size, (batch + 1) * size)[rows]
        indices = np.full(len(positions), -1, np.int64)
        real = positions < self._total[bucket]
        indices[real] = self._units_at(epoch, bucket, positions[real])
        return indices

    def batch(self, step: int, rows: Rows = ALL_ROWS) -> Batch:
        """The arrays of the rows that this process owns (see `batch` of the units)."""
        return self.units.batch(self.indices(step, rows), self.shape(step))

    def target_tokens(self, step: int) -> int:
        """Target tokens of the global batch, padding not counted."""
        return self.units.target_tokens(self.indices(step))

    def dataset(self, rows: Callable[[int], Rows] | None = None) -> grain.MapDataset:
        """Random access by step: `dataset[step]` is a batch.

        Args:
          rows: from the rows of a global batch to those that this process owns; all by default.
        """

        def load(step: int) -> Batch:
            return self.batch(step, rows(self.shape(step).rows) if rows else ALL_ROWS)

        return grain.MapDataset.range(0, sys.maxsize).map(load)

    def iterate(
        self, start_step: int, rows: Callable[[int], Rows] | None = None, threads: int = 1, ahead: int = 8
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

    def _units_at(self, epoch: int, bucket: int, positions: np.ndarray) -> np.ndarray:
        """Units at positions of a bucket's permutation; those beyond its own come from the bucket below."""
        drawn = permute(positions, int(self._total[bucket]), (self.seed, epoch, bucket))
        own = drawn < self._own[bucket]
        units = np.empty(len(positions), np.int64)
        units[own] = self._members[self._starts[bucket] + drawn[own]]
        if not own.all():
            full = self._counts[bucket - 1] * self.plan.buckets[bucket - 1].rows
            units[~own] = self._units_at(epoch, bucket - 1, full + drawn[~own] - self._own[bucket])
        return units


class SortedBatches:
    """All units once, near ones in size together, nothing dropped.

    Sentences that exceed the last shape of the plan are cut there, with a warning.

    Attributes:
      chosen: the units that are wanted, where not all are.
    """

    def __init__(self, units: Units, plan: BucketPlan, chosen: Bool[np.ndarray, "U"] | None = None):
        self.units, self.plan = units, plan
        if cuts := units.cuts(plan.buckets[-1]):
            log.warning(cuts)
        limits = plan.buckets[-1].sizes
        sizes = [np.minimum(sizes, limit) for sizes, limit in zip(units.sizes, limits, strict=True)]
        buckets = plan.assign(*sizes)
        order = np.lexsort((*reversed(sizes), buckets))
        if chosen is not None:
            order, buckets = order[chosen[order]], buckets[chosen]
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
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes that occur, for warm-up."""
        return tuple(self.plan.buckets[k] for k in sorted({k for k, _ in self._batches}))

    def shape(self, index: int) -> Shape:
        return self.plan.buckets[self._batches[index][0]]

    def indices(self, index: int, rows: Rows = ALL_ROWS) -> Int[np.ndarray, "B ..."]:
        """Sentence of each output that is wanted, [B] or, in documents, [B, N]; -1 is none."""
        return self.units.sentences(self._batches[index][1][rows], self.shape(index))

    def batch(self, index: int, rows: Rows = ALL_ROWS) -> Batch:
        """The arrays of the rows that this process owns (see `batch` of the units)."""
        return self.units.batch(self._batches[index][1][rows], self.shape(index))

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def restore(self, outputs: Iterable[Sequence]) -> list[Any]:
        """One output per sentence that is wanted, in the order of the input.

        Args:
          outputs: for each batch one output per place of `indices`, flattened: B, or B times N in documents.
        """
        found: dict[int, Any] = {}
        for index, places in zip(range(len(self)), outputs, strict=True):
            for sentence, output in zip(self.indices(index).ravel().tolist(), places, strict=True):
                if sentence >= 0:
                    found[sentence] = output
        return [found[sentence] for sentence in sorted(found)]


class TrainBatches(ShuffledBatches):
    """`ShuffledBatches` of the sentence pairs of a corpus."""

    def __init__(self, corpus: TokenCorpus, plan: BucketPlan, seed: int):
        super().__init__(
            SentencePairs(corpus.source, corpus.target, corpus.lines, plan.max_length), plan, seed
        )
        self.corpus = corpus


class EvaluationBatches(SortedBatches):
    """`SortedBatches` of sentences, with the targets where they are known.

    A warning about sentences that are cut names the first by its number among `line_numbers`.
    """

    def __init__(
        self,
        source: TokenArray,
        target: TokenArray | None,
        plan: BucketPlan,
        line_numbers: Sequence[int] | None = None,
        chosen: Bool[np.ndarray, "P"] | None = None,
    ):
        super().__init__(SentencePairs(source, target, line_numbers), plan, chosen)
