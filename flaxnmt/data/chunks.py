"""Documents as chunks: runs of sentences short enough for a batch, with context where a document was cut."""

from dataclasses import dataclass

import numpy as np

from flaxnmt.errors import ConfigError
from flaxnmt.typing import Int


@dataclass(frozen=True)
class Chunks:
    """Runs of sentences, C of them: chunk c holds the sentences `start[c]` to `stop[c]` of the corpus.

    Of these it scores `scored_start[c]` to `scored_stop[c]`; the others are context. Each sentence of the
    corpus is scored in exactly one chunk. Sentences are counted over the whole corpus; ends are exclusive.

    Attributes:
      cut: says how many documents were cut, for a log; empty where none was.
    """

    start: Int[np.ndarray, "C"]
    stop: Int[np.ndarray, "C"]
    scored_start: Int[np.ndarray, "C"]
    scored_stop: Int[np.ndarray, "C"]
    cut: str = ""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def sentences(self) -> Int[np.ndarray, "C"]:
        """Sentences of each chunk, context included."""
        return self.stop - self.start


def chunk(document_offsets: Int[np.ndarray, "offsets"], longest: int, overlap: int = 0) -> Chunks:
    """Cuts documents of more than `longest` sentences into as few chunks as hold them.

    A chunk repeats `overlap` sentences on either side of a cut, as context of those that it scores. The
    chunks of a document differ by at most one sentence in size, so that none is left with a short rest.

    Args:
      document_offsets: index of the first sentence of each document, then the number of sentences.
      longest: most sentences of a chunk, context included.
      overlap: sentences of context at each cut.

    Raises:
      ConfigError: chunks of this size would be all context.
    """
    if overlap < 0 or longest <= 2 * overlap:
        raise ConfigError(
            f"chunks of {longest} sentences with {overlap} of context at each cut score nothing: "
            f"allow at least {2 * max(overlap, 0) + 1} sentences, or less context"
        )
    begin, sizes = document_offsets[:-1], np.diff(document_offsets)
    # Every cut adds the context of both its sides to what the chunks must hold.
    counts = np.where(sizes > longest, -(-(sizes - 2 * overlap) // (longest - 2 * overlap)), sizes > 0)
    base, larger = np.divmod(sizes + 2 * overlap * (counts - 1), np.maximum(counts, 1))
    document = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    base, larger = base[document], larger[document]
    start = begin[document] + number * (base - 2 * overlap) + np.minimum(number, larger)
    stop = start + base + (number < larger)
    first, last = number == 0, number == counts[document] - 1
    return Chunks(
        start, stop, np.where(first, start, start + overlap), np.where(last, stop, stop - overlap),
        _report(sizes, counts, longest, overlap),
    )  # fmt: skip


def _report(sizes: np.ndarray, counts: np.ndarray, longest: int, overlap: int) -> str:
    cut = counts > 1
    if not cut.any():
        return ""
    noun = "sentence" if overlap == 1 else "sentences"
    return (
        f"{cut.sum()} of {len(sizes)} documents have more than {longest} sentences (up to {sizes.max()}) and "
        f"are cut into {counts[cut].sum()} chunks with {overlap} {noun} of context at each cut"
    )
