"""The static shapes in which texts are translated: powers of two, of lines and of documents."""

from dataclasses import dataclass

import numpy as np

from flaxnmt.data.buckets import Bucket, BucketPlan
from flaxnmt.data.document_batches import DocumentBucket
from flaxnmt.models.config import DecoderOnlyConfig, ModelConfig
from flaxnmt.typing import Int

LONGEST = 1024
"""Tokens at which a source or target line is cut at the latest, with a warning; lengths double from 8 up to here."""

LENGTHS = tuple(8 * 2**power for power in range(8))

FULL = 64
"""Tokens up to which a batch has as many rows as its batch size."""


def longest_of(config: ModelConfig) -> int:
    """Tokens of a text that a model reads, symbols included: where positions are learned, as many as there are.

    Of a decoder alone that translates the half of them, since its output stands behind the source.
    """
    if config.positions != "learned":
        return LONGEST
    in_one = isinstance(config, DecoderOnlyConfig) and config.task == "translation"
    return min(config.max_positions // (2 if in_one else 1), LONGEST)


def most_outputs(config: ModelConfig) -> int | None:
    """Tokens for which a model has positions, of an output or, of a decoder alone, with its source; None: any number."""
    return config.max_positions if config.positions == "learned" else None


def lengths_to(longest: int) -> tuple[int, ...]:
    """Those of `LENGTHS` below `longest`, and it, `LONGEST` at most."""
    return (*(length for length in LENGTHS if length < longest), min(longest, LONGEST))


def square_plan(rows: int, multiple: int = 1, longest: int = LONGEST) -> BucketPlan:
    """Shapes for lines of any length up to `longest`, `LONGEST` at most, sources and targets alike.

    `rows` rows up to `FULL` tokens and fewer beyond, so that one long line takes no more memory than a batch of
    short ones; always in `multiple`s, the devices that share a batch.
    """

    def fitting(length: int) -> int:
        return -(-max(rows * FULL // max(length, FULL), 1) // multiple) * multiple

    lengths = lengths_to(longest)
    return BucketPlan(tuple(Bucket(length, length, fitting(length)) for length in lengths), lengths[-1])


@dataclass(frozen=True)
class GridPlan(BucketPlan):
    """All shapes of some numbers of sentences with some lengths: the shape of a document follows from it alone."""

    sentences: tuple[int, ...]
    lengths: tuple[int, ...]

    def assign(self, first: Int[np.ndarray, "U"], second: Int[np.ndarray, "U"]) -> Int[np.ndarray, "U"]:
        row, column = np.searchsorted(self.sentences, first), np.searchsorted(self.lengths, second)
        return row * len(self.lengths) + column


ENCODED = 8
"""Sentences that are encoded for the price of one that is translated, roughly."""


def grid_plan(
    sentences: int, longest: int, multiple: int = 1, wanted: int | None = None, tokens: int = LONGEST
) -> GridPlan:
    """Shapes for documents of up to `longest` sentences of up to `tokens` tokens, both in powers of two.

    About `sentences` sentences a batch, fewer above `FULL` tokens; its documents are a multiple of `multiple`. Where
    only `wanted` sentences of a document are translated, there are more documents.
    """
    counts = tuple(2**power for power in range((longest - 1).bit_length())) + (longest,)

    def fitting(count: int, length: int) -> int:
        cost = ENCODED * count if wanted is None else max(ENCODED * min(wanted, count), count)
        return -(-max(ENCODED * sentences * FULL // (cost * max(length, FULL)), 1) // multiple) * multiple

    lengths = lengths_to(tokens)
    buckets = tuple(
        DocumentBucket(count, length, fitting(count, length)) for count in counts for length in lengths
    )
    return GridPlan(buckets, lengths[-1], counts, lengths)
