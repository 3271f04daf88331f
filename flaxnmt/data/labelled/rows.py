"""Rows of tokens with what is to be said of them, as units of batches.

A batch is {"tokens": int32 [B, L], "segments": int32 [B, L]} and what a head is to say: "classes" [B], "labels" [B, L]
or "spans" [B, 2]; -1 where there is nothing to be said.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from flaxnmt.data.batches import Batch
from flaxnmt.data.buckets import Bucket, BucketPlan, Skipped
from flaxnmt.data.labelled.layout import NO_LABEL, padded
from flaxnmt.models.config import Head
from flaxnmt.symbols import PAD
from flaxnmt.typing import Int


@dataclass(frozen=True)
class LabelledRows:
    """Rows as units, whose two sizes are both their length.

    Attributes:
      ids: tokens of each row.
      segments: of each of them.
      said: a class, the labels of its tokens, or the two places of a span, of each row.
      head: which of them it is.
    """

    ids: Sequence[Sequence[int]]
    segments: Sequence[Sequence[int]]
    said: Sequence
    head: Head

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, places: Sequence[int]) -> "LabelledRows":
        """The rows at these places."""
        ids, segments, said = (
            [values[place] for place in places] for values in (self.ids, self.segments, self.said)
        )
        return LabelledRows(ids, segments, said, self.head)

    @cached_property
    def lengths(self) -> Int[np.ndarray, "U"]:
        return np.fromiter(map(len, self.ids), np.int32, len(self.ids))

    @property
    def sizes(self) -> tuple[Int[np.ndarray, "U"], Int[np.ndarray, "U"]]:
        return self.lengths, self.lengths

    @property
    def pairs(self) -> Int[np.ndarray, "U"]:
        return np.ones(len(self), np.int64)

    def batch(self, indices: Int[np.ndarray, "B"], shape: Bucket) -> Batch:
        length, rows = shape.sizes[0], indices.tolist()

        def of(values: Sequence[Sequence[int]], fill: int) -> Int[np.ndarray, "B L"]:
            return padded(([] if row < 0 else values[row] for row in rows), length, fill)

        if self.head == "labels":
            said = of(self.said, NO_LABEL)
        else:
            nothing = NO_LABEL if self.head == "classes" else (NO_LABEL, NO_LABEL)
            said = np.asarray([nothing if row < 0 else self.said[row] for row in rows], np.int32)
        return {"tokens": of(self.ids, PAD), "segments": of(self.segments, 0), self.head: said}

    def target_tokens(self, indices: Int[np.ndarray, "B"]) -> int:
        return int((indices >= 0).sum())

    def skipped(self, plan: BucketPlan) -> Skipped:
        return Skipped(0, 0, ())

    def cuts(self, shape: Bucket) -> str:
        return ""

    def sentences(self, indices: Int[np.ndarray, "B"], shape: Bucket) -> Int[np.ndarray, "B"]:
        return indices

    def checksum(self) -> str:
        """CRC-32 of all rows and what is said of them, in eight hexadecimal digits."""
        parts = chain(self.ids, self.segments, map(np.atleast_1d, self.said))
        crc = 0
        for part in parts:
            crc = zlib.crc32(np.asarray(part, np.int32), crc)
        return f"{crc:08x}"
