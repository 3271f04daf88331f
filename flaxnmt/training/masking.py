"""Masked language modelling: which tokens are to be said, and what stands in their place (Devlin et al. 2019, 3.1)."""

import math

import jax
import jax.numpy as jnp

from flaxnmt.typing import Array, Bool, Int, PRNGKeyArray

RATE, MASKED, RANDOM = 0.15, 0.8, 0.1
"""Share of the tokens that are chosen; of these the shares that are masked, and replaced by a random token."""


def choose(
    key: PRNGKeyArray, words: Bool[Array, "B L"], rate: float = RATE
) -> tuple[Int[Array, "B P"], Bool[Array, "B P"]]:
    """Places of the chosen tokens of each sequence, and which of the P = ceil(rate L) places count.

    Of n words round(rate n) are chosen, one at least, all alike; so few outputs are looked at, and P is static.
    """
    places = math.ceil(rate * words.shape[-1])
    scores = jnp.where(words, jax.random.uniform(key, words.shape), -1)
    _, chosen = jax.lax.top_k(scores, places)
    count = words.sum(-1, keepdims=True)
    wanted = jnp.where(count > 0, jnp.maximum(jnp.round(rate * count), 1), 0)
    return chosen, jnp.arange(places) < jnp.minimum(wanted, count)


def corrupt(
    key: PRNGKeyArray,
    tokens: Int[Array, "B L"],
    chosen: Int[Array, "B P"],
    counts: Bool[Array, "B P"],
    mask: int,
    words: tuple[int, int],
) -> Int[Array, "B L"]:
    """The tokens with those that are chosen masked (80%), replaced by a random word (10%) or left (10%).

    Args:
      key: of what is drawn.
      tokens: of each sequence.
      chosen, counts: as `choose` has them.
      mask: id of the mask.
      words: the first id of a random word, and the one after the last.
    """
    draw, word = jax.random.split(key)
    share = jax.random.uniform(draw, chosen.shape)
    own = jnp.take_along_axis(tokens, chosen, axis=-1)
    other = jax.random.randint(word, chosen.shape, *words, dtype=tokens.dtype)
    shown = jnp.where(share < MASKED, mask, jnp.where(share < MASKED + RANDOM, other, own))
    rows = jnp.arange(len(tokens))[:, None]
    return tokens.at[rows, chosen].set(jnp.where(counts, shown, own))
