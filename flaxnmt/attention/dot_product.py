"""Scaled dot-product attention (Vaswani et al. 2017, eq. 1), the pure function under every attention kind."""

import jax
import jax.numpy as jnp

from flaxnmt.typing import Array, Bool, Float

# Finite, so that a row with every key masked gives uniform weights and zero gradients in place of NaN.
MASKED = -1e30


def attention_scores(
    query: Float[Array, "*B H Q K"],
    key: Float[Array, "*B H L K"],
    mask: Bool[Array, "*#B #H #Q L"] | None = None,
    bias: Float[Array, "*#B #H #Q L"] | None = None,
) -> Float[Array, "*B H Q L"]:
    """Scores q k^T / sqrt(K) in float32, plus an additive bias, with masked keys at -1e30.

    A bias may be a mask itself: what it leaves below -1e30, such as -inf, is at -1e30, too.
    """
    scale = query.shape[-1] ** -0.5
    scores = jnp.einsum("...qk,...lk->...ql", query * scale, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias
        # What is no number stays none, so that it is noticed.
        scores = jnp.where(scores <= MASKED, MASKED, scores)
    if mask is not None:
        scores = jnp.where(mask, scores, MASKED)
    return scores


def attend(weights: Float[Array, "*B H Q L"], value: Float[Array, "*B H L K"]) -> Float[Array, "*B H Q K"]:
    """The weighted sums of the values, in the dtype of the values."""
    return jnp.einsum("...ql,...lk->...qk", weights.astype(value.dtype), value)


def dot_product_attention(
    query: Float[Array, "*B H Q K"],
    key: Float[Array, "*B H L K"],
    value: Float[Array, "*B H L K"],
    mask: Bool[Array, "*#B #H #Q L"] | None = None,
    bias: Float[Array, "*#B #H #Q L"] | None = None,
) -> Float[Array, "*B H Q K"]:
    """softmax(q k^T / sqrt(K)) v per head; scores and softmax in float32.

    A query whose keys are all masked gets the plain mean of the values, and a finite gradient.

    Args:
      query: [*B, H, Q, K], heads before positions: the layout in which each head is one matrix.
      key: [*B, H, L, K].
      value: [*B, H, L, K].
      mask: True where a query may look at a key, broadcast against [*B, H, Q, L].
      bias: added to the scores before the softmax; an additive mask with -inf where a query may not look.
    """
    return attend(jax.nn.softmax(attention_scores(query, key, mask, bias), axis=-1), value)
