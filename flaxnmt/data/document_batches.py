"""Batches of documents: `batches` with chunks of documents as units, and their shapes.

A batch is {"source": int32 [B, N, M], "target": int32 [B, N, T], "paragraph": int32 [B, N]} with T = M. A
sentence that is there as context only, or that training leaves out, has a target of zeros, so that a loss
over the tokens of the target needs to know no more.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flaxnmt.data.batches import Batch
from flaxnmt.data.boundaries import TRUE, Boundaries
from flaxnmt.data.buckets import BucketPlan, Skipped, grid_step, nested_shapes, trainable
from flaxnmt.data.chunks import Chunks
from flaxnmt.data.shards import PARAGRAPH, TokenArray, TokenCorpus
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.typing import Bool, Int


@dataclass(frozen=True)
class DocumentBucket:
    """A batch shape: `rows` documents of `sentences` sentences of `words` tokens, padding included."""

    sentences: int
    words: int
    rows: int

    @property
    def sizes(self) -> tuple[int, int]:
        return self.sentences, self.words


@dataclass(frozen=True)
class DocumentChunks:
    """Chunks of documents as units: their sizes are sentences and the tokens of the longest one.

    Attributes:
      corpus: its target may be None.
      chunks: of `chunks.chunk`.
      max_length: for training, the longest side of a sentence that is learnt from, in tokens: a longer source
        is cut, and the target is left out, as it is where a side is empty. None keeps all, for evaluation.
      wanted: for translation, the sentences whose output is asked for; the others are context. None for all.
      boundaries: where the encoder sees sentences begin.
    """

    corpus: TokenCorpus
    chunks: Chunks
    max_length: int | None = None
    wanted: Bool[np.ndarray, "P"] | None = None
    boundaries: Boundaries = TRUE

    @cached_property
    def _learnt(self) -> Bool[np.ndarray, "P"]:
        """Sentences whose target is kept."""
        if self.max_length is None or self.corpus.target is None:
            return np.ones(len(self.corpus), bool)
        return trainable(self.corpus.source.lengths, self.corpus.target.lengths, self.max_length)

    @cached_property
    def _target_lengths(self) -> Int[np.ndarray, "P"]:
        """Tokens of the targets that are kept; 0 for the others."""
        return np.where(self._learnt, self.corpus.target.lengths, 0)

    @cached_property
    def _paragraphs(self) -> Int[np.ndarray, "P"]:
        """Paragraph of each sentence, counted over the whole corpus."""
        return np.cumsum((self.corpus.starts & PARAGRAPH) > 0, dtype=np.int32)

    @cached_property
    def sizes(self) -> tuple[Int[np.ndarray, "C"], Int[np.ndarray, "C"]]:
        words = _over_runs(np.maximum, self.corpus.source.lengths, self.chunks.start, self.chunks.stop)
        if self.corpus.target is not None:
            scored = self.chunks.scored_start, self.chunks.scored_stop
            words = np.maximum(words, _over_runs(np.maximum, self._target_lengths, *scored))
        if self.max_length is not None:
            words = np.minimum(words, self.max_length)
        return self.chunks.sentences, words

    @property
    def pairs(self) -> Int[np.ndarray, "C"]:
        learnt = self._learnt.astype(np.int64)
        return _over_runs(np.add, learnt, self.chunks.scored_start, self.chunks.scored_stop)

    @cached_property
    def wanted_counts(self) -> Int[np.ndarray, "C"]:
        """Wanted sentences that each chunk scores."""
        wanted = np.ones(len(self.corpus), int) if self.wanted is None else self.wanted.astype(int)
        return _over_runs(np.add, wanted, self.chunks.scored_start, self.chunks.scored_stop)

    @cached_property
    def width(self) -> int:
        """W, the most sentences that are wanted of a chunk, or a power of two above: one for all shapes."""
        return 1 << (int(self.wanted_counts.max(initial=1)) - 1).bit_length()

    def sentences(self, indices: Int[np.ndarray, "B"], shape: DocumentBucket) -> Int[np.ndarray, "B _"]:
        """Sentences that are scored, [B, N]; -1 where a place has context, or nothing.

        With `wanted`, only those: [B, W], or as many as the shape has.
        """
        scored = self._within(indices, shape, self.chunks.scored_start, self.chunks.scored_stop)
        if self.wanted is None:
            return scored
        return np.take_along_axis(np.where(self.wanted[scored], scored, -1), self._places(scored), 1)

    def _places(self, scored: Int[np.ndarray, "B N"]) -> Int[np.ndarray, "B _"]:
        """Where the wanted ones of these sentences stand in their rows, in order, and then others."""
        unwanted = (scored < 0) | ~self.wanted[scored]
        return np.argsort(unwanted, axis=1, kind="stable")[:, : self.width]

    def batch(self, indices: Int[np.ndarray, "B"], shape: DocumentBucket) -> Batch:
        """`source` [B, N, M], `paragraph` [B, N] and, where there is a target, `target` [B, N, M], all int32.

        Paragraphs are counted from 0 at the first sentence of the row. Other boundaries add `places` (see
        `boundaries`). With `wanted` there are also the places of those sentences in their rows, `wanted` [B, W], and
        targets are theirs alone, [B, W, M].
        """
        sentences = self._within(indices, shape, self.chunks.start, self.chunks.stop)
        paragraph = self._paragraphs[sentences]
        batch = {
            "source": _padded(self.corpus.source, sentences, shape.words),
            "paragraph": np.where(sentences >= 0, paragraph - paragraph[:, :1], 0),
        }
        scored = self._within(indices, shape, self.chunks.scored_start, self.chunks.scored_stop)
        if self.wanted is not None:
            batch["wanted"] = self._places(scored).astype(np.int32)
        if self.corpus.target is not None:
            scored = scored if self.wanted is None else self.sentences(indices, shape)
            learnt = np.where(self._learnt[scored], scored, -1)
            batch["target"] = _padded(self.corpus.target, learnt, shape.words)
        return self.boundaries(batch)

    def target_tokens(self, indices: Int[np.ndarray, "B"]) -> int:
        indices = indices[indices >= 0]
        scored = self.chunks.scored_start[indices], self.chunks.scored_stop[indices]
        return int(_over_runs(np.add, self._target_lengths, *scored).sum())

    def skipped(self, plan: BucketPlan) -> Skipped:
        out = ~self._learnt
        held = plan.assign(*self.sizes) < len(plan.buckets)
        for start, stop in zip(self.chunks.scored_start[~held], self.chunks.scored_stop[~held], strict=True):
            out[start:stop] = True
        empty = out & (np.minimum(self.corpus.source.lengths, self.corpus.target.lengths) <= 1)
        first = self.corpus.lines[np.flatnonzero(out)[:5]]
        return Skipped(int(out.sum() - empty.sum()), int(empty.sum()), tuple(first.tolist()))

    def cuts(self, shape: DocumentBucket) -> str:
        over = self.corpus.source.lengths > shape.words
        if self.corpus.target is not None:
            over = over | (self.corpus.target.lengths > shape.words)
        if not over.any():
            return ""
        return (
            f"{over.sum()} of {len(over)} sentences exceed {shape.words} tokens and are cut there; "
            f"the first is line {self.corpus.lines[over.argmax()]}"
        )

    def _within(
        self, indices: np.ndarray, shape: DocumentBucket, start: np.ndarray, stop: np.ndarray
    ) -> Int[np.ndarray, "B N"]:
        """Sentence of each place, where its chunk has one between `start` and `stop`; elsewhere -1."""
        sentences = self.chunks.start[indices][:, None] + np.arange(shape.sentences)
        inside = (sentences >= start[indices][:, None]) & (sentences < stop[indices][:, None])
        return np.where(inside & (indices >= 0)[:, None], sentences, -1)


def _padded(side: TokenArray, sentences: np.ndarray, length: int) -> Int[np.ndarray, "B N M"]:
    return side.padded(sentences.ravel(), length).reshape(*sentences.shape, length)


def _over_runs(reduce: np.ufunc, values: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """`reduce` of values[start:stop] for each run; no run is empty."""
    ends = np.stack([start, stop], 1).ravel()
    return reduce.reduceat(np.append(values, values.dtype.type(0)), ends)[::2]


def plan_documents(
    units: DocumentChunks,
    *,
    max_length: int,
    batch_tokens: int,
    buckets: int = 5,
    rows_multiple: int = 1,
    length_multiple: int = 8,
    sentences_multiple: int = 1,
) -> BucketPlan:
    """The nested shapes, at most `buckets`, over which chunks have the fewest padded tokens N M.

    Every chunk has a shape that holds all its sentences; those above `max_length` tokens are cut. Shapes lie
    on a grid of `sentences_multiple` and `length_multiple`, coarser above 32 steps on a side.

    Args:
      max_length: tokens at which a sentence is cut, in either language.
      batch_tokens: padded target tokens of a batch; a bucket has as many rows as fit, in `rows_multiple`s.

    Raises:
      DataError: no chunk has anything to score.
      ConfigError: `rows_multiple` rows of the largest shape do not fit into `batch_tokens`.
    """
    used = units.pairs > 0
    if not used.any():
        raise DataError(f"none of {len(units.corpus)} sentences is non-empty and within {max_length} tokens")
    sentences, words = (sizes[used] for sizes in units.sizes)
    words = np.minimum(words, max_length)
    steps = grid_step(int(sentences.max()), sentences_multiple), grid_step(int(words.max()), length_multiple)
    shapes = nested_shapes(sentences, words, steps=steps, buckets=buckets, cost=np.multiply)
    rows = [batch_tokens // (n * m) // rows_multiple * rows_multiple for n, m in shapes]
    if not rows[-1]:
        n, m = shapes[-1]
        raise ConfigError(
            f"batch_tokens {batch_tokens} holds fewer than {rows_multiple} rows (rows_multiple) of {n} sentences "
            f"of {m} tokens; raise it to {rows_multiple * n * m}, or cut documents or sentences shorter"
        )
    return BucketPlan(
        tuple(DocumentBucket(*shape, count) for shape, count in zip(shapes, rows, strict=True)), max_length
    )
