"""Translation of whole documents: every sentence with the document around it, all in parallel."""

import logging
from collections.abc import Sequence

from flaxnmt.data.batches import SortedBatches
from flaxnmt.data.boundaries import TRUE, Boundaries
from flaxnmt.data.chunks import chunk
from flaxnmt.data.document_batches import DocumentChunks
from flaxnmt.data.documents import Document
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.translation.lines import Text
from flaxnmt.translation.shapes import grid_plan, longest_of
from flaxnmt.translation.translator import Translator

log = logging.getLogger(__name__)


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
        some = text.wanted is not None
        rows, ways = self.rows(int(text.wanted.sum()) if some else len(source), batch_size)
        longest = longest_of(self.model.config)
        plan = grid_plan(rows, self.max_sentences, ways, units.width if some else None, longest)
        return SortedBatches(units, plan, units.wanted_counts > 0 if some else None)

    def log_probs(self, judged: Sequence[tuple[Document, int]], **options) -> list[float]:
        documents = [document for document, _ in judged]
        if self.model.config.document.decoder_looks_around:
            # The decoder reads all sentences, whichever it writes.
            scores = self.score_documents(documents, **options)
            return [found[index].log_prob for found, (_, index) in zip(scores, judged, strict=True)]
        text = Text.of_documents(documents, [(index,) for _, index in judged])
        targets = [sentence.target or "" for document in documents for sentence in document]
        return [score.log_prob for score in self.scores(text, targets, **options)]
