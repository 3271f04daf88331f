"""How much the embeddings of a word depend on its context (Ethayarajh 2019)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flaxnmt.errors import DataError
from flaxnmt.language.contextual import Contextual
from flaxnmt.typing import Float

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
"""Letters and digits, with apostrophes and hyphens between them."""

TEXTS = 1024
"""Texts whose embeddings are in memory at a time."""


class HasContextual(Protocol):
    """A run, or its reader."""

    def contextual(self, texts: Sequence[str]) -> list[Contextual]: ...


@dataclass(frozen=True)
class Similarities:
    """Self-similarity of words in every layer, 0 before the first.

    Attributes:
      words: that were asked for.
      counts: occurrences of each.
      own: self-similarity of each.
      baseline: mean cosine between any words of different texts.
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    own: Float[np.ndarray, "words layers"]
    baseline: Float[np.ndarray, "layers"]

    @property
    def adjusted(self) -> Float[np.ndarray, "words layers"]:
        """Self-similarity less that of any two words: what is left where all embeddings lie in a narrow cone."""
        return self.own - self.baseline


def unit(vectors: Float[np.ndarray, "*B D"]) -> Float[np.ndarray, "*B D"]:
    """Vectors of length 1 in the same directions, float64."""
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def mean_product(vectors: Float[np.ndarray, "*B n D"]) -> Float[np.ndarray, "*B"]:
    """Mean inner product of two different vectors: (|sum_j v_j|^2 - sum_j |v_j|^2) / (n^2 - n), without n^2 products."""
    count = vectors.shape[-2]
    whole = np.square(vectors.sum(-2)).sum(-1)
    return (whole - np.square(vectors).sum((-1, -2))) / (count * (count - 1))


def self_similarity(vectors: Float[np.ndarray, "*B n D"]) -> Float[np.ndarray, "*B"]:
    """Mean cosine between the embeddings of one word in n > 1 contexts: 1 where context makes no difference.

    Equation 1 of Ethayarajh 2019; leading dimensions may be layers.
    """
    return mean_product(unit(vectors))


def anisotropy(means: Float[np.ndarray, "*B n D"]) -> Float[np.ndarray, "*B"]:
    """Mean cosine between a word of one text and a word of another: 0 where directions are uniform.

    The baseline of section 3.4 of Ethayarajh 2019, of words from different contexts, all texts alike. Its expectation
    over all pairs, which the paper samples, is that of the products of the means over texts.

    Args:
      means: of each of n > 1 texts the mean of the embeddings of its words, each of length 1.
    """
    return mean_product(np.asarray(means, np.float64))


def word_vectors(text: str, found: Contextual) -> tuple[list[str], Float[np.ndarray, "layers words D"]]:
    """The words of a text and their embeddings, each the mean of those of its pieces; words without one are left out."""
    starts, ends = np.asarray(found.spans).T
    words, vectors = [], []
    for match in WORD.finditer(text):
        own = (starts < match.end()) & (ends > match.start())
        if own.any():
            words.append(match[0])
            vectors.append(found.layers[:, own].mean(1, dtype=np.float64))
    return words, np.stack(vectors, 1) if words else np.zeros((len(found.layers), 0, found.layers.shape[-1]))


def similarities(reader: HasContextual, texts: Sequence[str], words: Sequence[str]) -> Similarities:
    """Self-similarity of words over all their occurrences in texts, and the baseline over all words, in every layer.

    Args:
      reader: a run of a model of one stack, or its reader.
      texts: contexts, such as sentences; one that comes again counts once.
      words: as they are written; capital letters matter.

    Raises:
      DataError: for a word that is not there twice, or fewer than two texts with words.
    """
    texts = list(dict.fromkeys(texts))
    occurrences: dict[str, list[np.ndarray]] = {word: [] for word in words}
    means = []
    for first in range(0, len(texts), TEXTS):
        some = texts[first : first + TEXTS]
        for text, found in zip(some, reader.contextual(some), strict=True):
            there, vectors = word_vectors(text, found)
            if there:
                means.append(unit(vectors).mean(1))
            for place, word in enumerate(there):
                if word in occurrences:
                    occurrences[word].append(vectors[:, place])
    if rare := [word for word, found in occurrences.items() if len(found) < 2]:
        raise DataError(
            f"{rare[0]!r} is {len(occurrences[rare[0]])} times in {len(texts)} different texts: self-similarity "
            "compares occurrences of a word, name one that is there at least twice"
        )
    if len(means) < 2:
        raise DataError(
            f"{len(means)} texts with words: the baseline compares words of at least two different texts"
        )
    return Similarities(
        tuple(occurrences),
        tuple(map(len, occurrences.values())),
        np.stack([self_similarity(np.stack(found, 1)) for found in occurrences.values()])
        if occurrences
        else np.zeros((0, len(means[0]))),
        anisotropy(np.stack(means, 1)),
    )
