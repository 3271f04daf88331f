"""Texts of one language as sequences of one length: documents end to end, cut wherever a sequence is full.

A batch is {"tokens": int32 [B, L], "packed": int32 [B, L]}: `packed` is the number of the document of each token, by
which attention keeps them apart. A sentence ends with eos, or with the symbol in its place. Only the last sequence of a
corpus is padded; or the last one of each document, for models that could not keep several in a sequence apart.

For a model that says what follows, the tokens of the corpus are the "target" int32 [B, L], and "tokens" what stands
before each: bos at the beginning of a line, as where a text by itself is read, else the token before. So every token
of the corpus is said, and eos is said but never read.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flaxnmt.data.batches import Batch
from flaxnmt.data.buckets import Bucket, BucketPlan, Skipped
from flaxnmt.data.shards import TokenCorpus
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.symbols import BOS, EOS
from flaxnmt.typing import Int


@dataclass(frozen=True)
class PackedSequences:
    """Sequences as units: sequence i is tokens [i n, (i + 1) n) of the corpus, or, in turn, of each document.

    Attributes:
      corpus: its sources, each sentence closed by eos.
      length: L.
      first: a symbol that begins every sequence, such as [CLS], so that n = L - 1; None for n = L.
      last: the symbol that closes a sentence, such as [SEP].
      apart: no sequence holds tokens of two documents.
      follows: batches have a target.
    """

    corpus: TokenCorpus
    length: int
    first: int | None = None
    last: int = EOS
    apart: bool = False
    follows: bool = False

    @property
    def _step(self) -> int:
        return self.length - (self.first is not None)

    def __len__(self) -> int:
        return len(self._bounds[0])

    @cached_property
    def _bounds(self) -> tuple[Int[np.ndarray, "U"], Int[np.ndarray, "U"]]:
        """Places of the first token of each sequence, and of the one after its last."""
        offsets = self.corpus.source.offsets
        edges = offsets[self.corpus.document_offsets] if self.apart else offsets[[0, -1]]
        counts = -(-np.diff(edges) // self._step)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.repeat(edges[:-1], counts) + number * self._step
        return begins, np.minimum(begins + self._step, np.repeat(edges[1:], counts))

    @cached_property
    def _starts(self) -> Int[np.ndarray, "documents"]:
        """Place of the first token of each document."""
        return self.corpus.source.offsets[self.corpus.document_offsets[:-1]]

    @property
    def sizes(self) -> tuple[Int[np.ndarray, "U"], Int[np.ndarray, "U"]]:
        every = np.full(len(self), self.length, np.int32)
        return every, every

    @property
    def pairs(self) -> Int[np.ndarray, "U"]:
        return np.ones(len(self), np.int64)

    def batch(self, indices: Int[np.ndarray, "B"], shape: Bucket) -> Batch:
        begins, ends = (bound[indices, None] for bound in self._bounds)
        places = begins + np.arange(self._step)
        real = (places < ends) & (indices >= 0)[:, None]
        within = np.where(real, places, 0)
        tokens = np.where(real, self.corpus.source.tokens[within], 0).astype(np.int32)
        tokens = np.where(tokens == EOS, np.int32(self.last), tokens)
        packed = np.searchsorted(self._starts, within, side="right").astype(np.int32)
        packed = np.where(real, packed, np.int32(0))
        if self.first is not None:
            begins = np.where(indices >= 0, self.first, 0).astype(np.int32)
            tokens = np.concatenate([begins[:, None], tokens], axis=1)
            packed = np.concatenate([packed[:, :1], packed], axis=1)
        if self.follows:
            before = self.corpus.source.tokens[np.maximum(within - 1, 0)].astype(np.int32)
            before = np.where((within == 0) | (before == EOS), np.int32(BOS), before)
            return {"tokens": np.where(real, before, np.int32(0)), "target": tokens, "packed": packed}
        return {"tokens": tokens, "packed": packed}

    def target_tokens(self, indices: Int[np.ndarray, "B"]) -> int:
        begins, ends = (bound[indices[indices >= 0]] for bound in self._bounds)
        return int((ends - begins).sum())

    def skipped(self, plan: BucketPlan) -> Skipped:
        return Skipped(0, 0, ())

    def cuts(self, shape: Bucket) -> str:
        return ""

    def sentences(self, indices: Int[np.ndarray, "B"], shape: Bucket) -> Int[np.ndarray, "B"]:
        return indices


def plan_sequences(length: int, batch_tokens: int, rows_multiple: int) -> BucketPlan:
    """The one shape of a batch.

    Raises:
      ConfigError: where not even `rows_multiple` sequences are in a batch.
    """
    rows = batch_tokens // length // rows_multiple * rows_multiple
    if not rows:
        raise ConfigError(
            f"--data.batch-tokens {batch_tokens} holds fewer than {rows_multiple} sequences (--data.rows-multiple) of "
            f"{length} tokens (--data.max-length): raise it to {rows_multiple * length}"
        )
    return BucketPlan((Bucket(length, length, rows),), length)


def packed_sequences(
    corpus: TokenCorpus,
    length: int,
    first: int | None = None,
    last: int = EOS,
    apart: bool = False,
    follows: bool = False,
) -> PackedSequences:
    """`PackedSequences`, where there is anything to learn.

    Raises:
      DataError: if the corpus has fewer than two tokens.
    """
    if corpus.source.offsets[-1] < 2:
        raise DataError("the corpus has no text to learn from; check the training files")
    return PackedSequences(corpus, length, first, last, apart, follows)
