"""Translation of whole documents: every sentence with the document around it, all in parallel."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flaxnmt.data.batches import SortedBatches
from flaxnmt.data.boundaries import TRUE, Boundaries
from flaxnmt.data.buckets import BucketPlan
from flaxnmt.data.chunks import chunk
from flaxnmt.data.document_batches import DocumentBucket, DocumentChunks
from flaxnmt.data.documents import Document
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.translation.lines import Text
from flaxnmt.translation.translator import FULL, LENGTHS, LONGEST, Translator
from flaxnmt.typing import Int

log = logging.getLogger(__name__)


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


def grid_plan(sentences: int, longest: int, multiple: int = 1, wanted: int | None = None) -> GridPlan:
    """Shapes for documents of up to `longest` sentences of up to `LONGEST` tokens, both in powers of two.

    About `sentences` sentences a batch, fewer above `FULL` tokens; its documents are a multiple of `multiple`. Where
    only `wanted` sentences of a document are translated, there are more documents.
    """
    counts = tuple(2**power for power in range((longest - 1).bit_length())) + (longest,)

    def fitting(count: int, length: int) -> int:
        cost = ENCODED * count if wanted is None else max(ENCODED * min(wanted, count), count)
        return -(-max(ENCODED * sentences * FULL // (cost * max(length, FULL)), 1) // multiple) * multiple

    buckets = tuple(
        DocumentBucket(count, length, fitting(count, length)) for count in counts for length in LENGTHS
    )
    return GridPlan(buckets, LONGEST, counts, LENGTHS)


class DocumentTranslator(Translator):
    """A model of documents: blank lines end them, and each line is translated with its document around it.

    Attributes:
      max_sentences: most sentences that are looked at together; a longer document is cut.
      overlap: sentences of context on either side of a cut.
      boundaries: where the encoder sees sentences begin.
    """

    by_document = True

    def __init__(self, *parts, max_sentences: int, overlap: int, boundaries: Boundaries = TRUE, **options):
        super().__init__(*parts, **options)
        self.max_sentences, self.overlap, self.boundaries = max_sentences, overlap, boundaries

    def batches(
        self, source: TokenArray, target: TokenArray | None, text: Text, batch_size: int | None
    ) -> SortedBatches:
        corpus = TokenCorpus(source, target, text.numbers, text.starts)
        chunks = chunk(corpus.document_offsets, self.max_sentences, self.overlap)
        if chunks.cut:
            log.warning(chunks.cut)
        units = DocumentChunks(corpus, chunks, wanted=text.wanted, boundaries=self.boundaries)
        if text.wanted is None:
            rows, ways = self.rows(len(source), batch_size)
            return SortedBatches(units, grid_plan(rows, self.max_sentences, ways))
        rows, ways = self.rows(int(text.wanted.sum()), batch_size)
        plan = grid_plan(rows, self.max_sentences, ways, units.width)
        return SortedBatches(units, plan, units.wanted_counts > 0)

    def log_probs(self, judged: Sequence[tuple[Document, int]], batch_size: int | None = None) -> list[float]:
        scores = self.score_documents([document for document, _ in judged], batch_size)
        return [found[index].log_prob for found, (_, index) in zip(scores, judged, strict=True)]
