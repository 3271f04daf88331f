"""Log-probabilities of given outputs."""

import jax
import jax.numpy as jnp

from flaxnmt.typing import Array, Bool, Float, Int


def token_log_probs(
    logits: Float[Array, "*B V"], targets: Int[Array, "*B"], mask: Bool[Array, "*B"]
) -> Float[Array, "*B"]:
    """log softmax(logits)[targets] in float32, natural logarithm; 0 where `mask` is False.

    Only the normaliser and the target's logit are computed, never the normalised array. Differentiable;
    positions outside the mask get no gradient, whatever their logits.
    """
    logits = jnp.where(mask[..., None], logits, 0).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.where(mask, chosen - jax.nn.logsumexp(logits, axis=-1), 0.0)
