"""Sentences cut elsewhere: what is left of attention over sentences where nobody knows where they end.

Trankova et al. 2024 take the boundaries of sentences for granted. Here the source of a document is cut at other
places: the same words in the same order, the end symbols of the true sentences among them, in as many units. The
encoder sees these units alone. The decoder still translates true sentences, and looks at the encoded words of its
own: `places` says where they lie. So what is measured is what boundaries mean to attention over a document, and no
source word is kept from the sentence that translates it.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from flaxnmt.config import Boundaries as Kind
from flaxnmt.typing import Int

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Boundaries:
    """Where the units of a source begin.

    Attributes:
      kind: `jittered`, each boundary at random between the middles of the sentences on its two sides; `fixed`, units
        of one length (to a word), the same number of them; `true`, where sentences begin.
      seed: of the jitter, which depends on nothing else than this and the words of the document.
    """

    kind: Kind = "true"
    seed: int = 0

    def __call__(self, batch: Batch) -> Batch:
        """A batch with `source` [B, N, M] and `paragraph` [B, N] cut elsewhere, and `places` [B, N, M].

        A place is the index, in the N M words of its document as they are cut, of each word of each true sentence; -1
        at padding. A unit belongs to the paragraph of its first word. True boundaries leave the batch as it is.
        """
        if self.kind == "true":
            return batch
        source, paragraph = batch["source"], batch["paragraph"]
        cut, opened, places = np.zeros_like(source), np.zeros_like(paragraph), np.full_like(source, -1)
        for row, words in enumerate(source):
            inside = words != 0
            lengths = inside.sum(-1)
            lengths = lengths[: np.flatnonzero(lengths).max(initial=-1) + 1]
            stream = words[inside]
            starts = self._starts(lengths, stream)
            unit = np.searchsorted(starts, np.arange(len(stream)), side="right") - 1
            column = np.arange(len(stream)) - starts[unit]
            cut[row, unit, column] = stream
            places[row][inside] = unit * words.shape[-1] + column
            owner = np.repeat(np.arange(len(lengths)), lengths)
            opened[row, : len(starts)] = paragraph[row, owner[np.minimum(starts, len(stream) - 1)]]
        return batch | {"source": cut, "paragraph": opened, "places": places}

    def _starts(
        self, lengths: Int[np.ndarray, "n"], stream: Int[np.ndarray, "words"]
    ) -> Int[np.ndarray, "n"]:
        """First word of each unit, rising, for true sentences of these lengths; no unit is longer than the longest."""
        count, total = len(lengths), len(stream)
        if self.kind == "fixed":
            return np.arange(count) * total // max(count, 1)
        rng = np.random.default_rng([self.seed, zlib.crc32(np.ascontiguousarray(stream, np.int32))])
        true = np.cumsum(lengths) - lengths
        low, high = true[1:] - lengths[:-1] // 2, true[1:] + lengths[1:] // 2
        starts, longest = np.zeros(count, int), int(lengths.max(initial=0))
        for number, drawn in enumerate(rng.integers(low, high, endpoint=True), 1):
            # What follows must fit, too.
            least = max(starts[number - 1], total - (count - number) * longest)
            starts[number] = np.clip(drawn, least, starts[number - 1] + longest)
        return starts


TRUE = Boundaries()
