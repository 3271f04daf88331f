"""Absolute position encodings: sinusoidal and learned, at one level or at several."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from flaxnmt.layers.initializers import partitioned
from flaxnmt.typing import Array, Bool, Float, Int


def sinusoids(positions: Int[Array, "..."], d_model: int) -> Float[Array, "... D"]:
    """p_{2i}(k) = sin(k / 10000^{2i/D}), p_{2i+1}(k) = cos(k / 10000^{2i/D}) (Vaswani et al. 2017, 3.5)."""
    rates = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*angles.shape[:-1], -1)[..., :d_model]


def word_positions(mask: Bool[Array, "B *N M"]) -> Int[Array, "B *N M"]:
    """The index of each word in its document, from zero; padding has the index of the word before it."""
    count = jnp.cumsum(mask.reshape(len(mask), -1), axis=-1, dtype=jnp.int32).reshape(mask.shape)
    return jnp.maximum(count - 1, 0)


def document_positions(
    mask: Bool[Array, "B N M"], paragraphs: Int[Array, "B N"], count: Literal["sequence", "unit"] = "sequence"
) -> Int[Array, "B N M 3"]:
    """The index of each word, of its sentence and of its paragraph, from zero (Trankova et al. 2024, section 1.2).

    The 135th word of the text, in the 4th sentence of the 2nd paragraph, is (134, 3, 1) where everything is
    counted from the beginning of the sequence. By unit, a word is counted in its sentence, a sentence in its
    paragraph and a paragraph in the document. Padding is not counted, and has the index of the word before it.

    Args:
      mask: False at padding.
      paragraphs: of each sentence, rising from zero.
      count: from where.
    """
    _, sentences, words = mask.shape
    sentence = jnp.arange(sentences, dtype=jnp.int32)
    if count == "sequence":
        word = word_positions(mask)
    else:
        word = word_positions(mask.reshape(-1, words)).reshape(mask.shape)
        opens = jnp.diff(paragraphs, axis=-1, prepend=-1) != 0
        sentence = sentence - jax.lax.cummax(jnp.where(opens, sentence, 0), axis=1)
    levels = (word, sentence[..., None], paragraphs[..., None].astype(jnp.int32))
    return jnp.stack([jnp.broadcast_to(level, mask.shape) for level in levels], axis=-1)


class SinusoidalPositions(nn.Module):
    """Sinusoids for arbitrary position ids; no parameters.

    Attributes:
      d_model: D.
      roll: by how many places the features are rolled, to tell apart levels of `MultiLevelPositions`.
    """

    d_model: int
    roll: int = 0

    def __call__(self, ids: Int[Array, "B *N L"]) -> Float[Array, "B *N L D"]:
        return jnp.roll(sinusoids(ids, self.d_model), self.roll, axis=-1)


class LearnedPositions(nn.Module):
    """A learned vector a position; ids past the table take its last row.

    Drawn from N(0, 1/D) or, where token embeddings are not `scaled`, from N(0, 0.02^2) like those (Devlin et al. 2019):
    their sum is normalised there, and would else begin as position alone.

    Attributes:
      d_model: D.
      length: rows of the table.
      scaled: whether the embeddings of the tokens are multiplied by sqrt(D).
      dtype: of the result; the table is float32.
    """

    d_model: int
    length: int
    scaled: bool = True
    dtype: Any = jnp.float32

    def setup(self):
        deviation = self.d_model**-0.5 if self.scaled else 0.02
        init = partitioned(nn.initializers.normal(deviation), None, "embed")
        self.table = self.param("table", init, (self.length, self.d_model))

    def __call__(self, ids: Int[Array, "B *N L"]) -> Float[Array, "B *N L D"]:
        return jnp.take(self.table, jnp.minimum(ids, self.length - 1), axis=0).astype(self.dtype)


class MultiLevelPositions(nn.Module):
    """The sum of an encoding at each structural level (Trankova et al. 2024, section 1.2).

    A sum of the same sinusoids cannot say which index is of which level. Counted from the beginning of the
    sequence it still tells all positions apart, since a word's index is never below its sentence's, nor that
    below its paragraph's; counted by unit, word 4 of sentence 2 has the vector of word 2 of sentence 4. A `roll`
    of its own for each level, such as 0, D / 3 and 2 D / 3, separates them and moves the nearest positions two to
    three times further apart in either count, because the fast features of one level then meet slow ones of the
    others. Learned levels differ by themselves.

    Attributes:
      levels: for each level, a module from ids [B, *N, L] to [B, *N, L, D].
    """

    levels: tuple[nn.Module, ...]

    def __call__(
        self, ids: Int[Array, "B *N L levels"], chosen: tuple[int, ...] | None = None
    ) -> Float[Array, "B *N L D"]:
        """The sum over all levels, or over those `chosen`, by their place."""
        if ids.shape[-1] != len(self.levels):
            raise ValueError(f"positions at {ids.shape[-1]} levels for encodings of {len(self.levels)}")
        places = range(len(self.levels)) if chosen is None else chosen
        return sum(self.levels[i](ids[..., i]) for i in places)
