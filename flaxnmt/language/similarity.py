"""How much the embedding of a word depends on its context (Ethayarajh 2019)."""

import numpy as np

from flaxnmt.typing import Float


def cosines(vectors: Float[np.ndarray, "*B n D"]) -> Float[np.ndarray, "*B n n"]:
    """Cosine of the angle between each two vectors."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit @ np.swapaxes(unit, -1, -2)


def self_similarity(vectors: Float[np.ndarray, "*B n D"]) -> Float[np.ndarray, "*B"]:
    """Mean cosine between the embeddings of one word in n contexts: 1 where context makes no difference.

    Equation 1 of Ethayarajh 2019; leading dimensions may be layers. Of fewer than two contexts there is none: nan.
    """
    count = vectors.shape[-2]
    if count < 2:
        return np.full(vectors.shape[:-2], np.nan)
    return (cosines(vectors).sum((-1, -2)) - count) / (count * (count - 1))


def anisotropy(vectors: Float[np.ndarray, "*B n D"]) -> Float[np.ndarray, "*B"]:
    """Mean cosine between embeddings of different words, by which a self-similarity is to be corrected (section 3.4)."""
    return self_similarity(vectors)
