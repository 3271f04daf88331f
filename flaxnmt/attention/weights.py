"""From scores to attention weights: soft, or hard with the gradient of something soft (straight-through).

Each function takes scores in which masked keys stand at -1e30. Hard weights are 0 or 1 as they are in the forward pass,
and pass the gradient of their surrogate in the backward pass (Bengio et al. 2013, section 4).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from flaxnmt.attention.dot_product import MASKED
from flaxnmt.typing import Array, Float

Weights = Callable[[Array], Array]
"""Scores [..., Q, L] to weights [..., Q, L] in float32."""


def softmax_weights(scores: Float[Array, "*B L"]) -> Float[Array, "*B L"]:
    """Positive weights that sum to one; uniform where every key is masked."""
    return jax.nn.softmax(scores, axis=-1)


def _straight_through(hard: Float[Array, "*B L"], soft: Float[Array, "*B L"]) -> Float[Array, "*B L"]:
    # The difference is an exact zero, so that weights are exact, too.
    return hard + (soft - jax.lax.stop_gradient(soft))


def threshold_weights(scores: Float[Array, "*B L"], threshold: float = 0.0) -> Float[Array, "*B L"]:
    """1 where the score is above the threshold, else 0: hard attention (Tripp, soft vs. hard attention).

    Weights are not normalised: the output is the sum of the values that pass, and zeros where none does. Each weight
    depends on its own score alone, and so does the gradient, that of sigmoid(score - threshold).
    """
    hard = (scores > threshold).astype(scores.dtype)
    return _straight_through(hard, jax.nn.sigmoid(scores - threshold))


def argmax_weights(scores: Float[Array, "*B L"]) -> Float[Array, "*B L"]:
    """1 for the largest score, the first of several, else 0; zeros where every key is masked.

    The gradient is that of a softmax.
    """
    seen = scores.max(-1, keepdims=True) > MASKED / 2
    hard = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1], dtype=scores.dtype)
    return jnp.where(seen, _straight_through(hard, jax.nn.softmax(scores, axis=-1)), 0)
