"""Label-smoothed cross-entropy, summed over the target positions that count.

Smoothing mixes the one-hot target with the uniform distribution over all V classes, the target's own
included (Szegedy et al. 2016, section 7): q = (1 - smoothing) onehot(target) + smoothing / V. With
z = logsumexp(logits), the loss of a position is z - (1 - smoothing) logits[target] - smoothing mean(logits).
Sums and counts leave the device; whoever has the global count divides.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.errors import ConfigError
from flaxnmt.typing import Array, Bool, Float, Int

LossSums = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


def label_smoothed_cross_entropy(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    mask: Bool[Array, "*rows"],
    smoothing: float,
) -> LossSums:
    """Sums over the positions where `mask` is true: (smoothed loss, negative log-likelihood, count).

    Natural logarithms, computed in float32 whatever the type of the logits. Positions outside of the mask
    give neither loss nor gradient, even where their logits are not finite. Perplexity is exp(nll / count).
    """
    logits = jnp.where(mask[..., None], logits.astype(jnp.float32), 0.0)
    loss, nll, _ = _per_row(logits, targets, smoothing)
    return _masked_sum(loss, mask), _masked_sum(nll, mask), jnp.sum(mask, dtype=jnp.float32)


def fused_linear_cross_entropy(
    hidden: Float[Array, "R D"],
    embedding: Float[Array, "V D"],
    targets: Int[Array, " R"],
    mask: Bool[Array, " R"],
    smoothing: float,
    chunk: int,
) -> LossSums:
    """The sums of `label_smoothed_cross_entropy` for logits hidden @ embedding^T that are never kept whole.

    Each chunk of rows makes its logits, its loss and its share of the gradient while they are in the cache:
    the loss is a sum, so its gradient is known up to one factor before the backward pass, which multiplies by
    it. Only the first result is differentiated; the other two give no gradient. Products are in the type of
    `hidden`, sums in float32.

    Args:
      chunk: rows of logits in memory at a time; R is a multiple of it or smaller.

    Raises:
      ConfigError: if R rows do not divide into chunks.
    """
    rows = hidden.shape[0]
    if rows > chunk and rows % chunk:
        raise ConfigError(
            f"{rows} rows of logits do not divide into chunks of {chunk}: choose a divisor of {rows}"
        )
    hidden = jnp.where(mask[:, None], hidden, 0)
    return _fused(hidden, embedding, targets, mask, smoothing, min(rows, chunk))


def _per_row(logits, targets, smoothing):
    """Smoothed loss, negative log-likelihood and log-partition of each row of float32 logits."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = log_z - target
    if not smoothing:
        return nll, nll, log_z
    return nll + smoothing * (target - jnp.mean(logits, axis=-1)), nll, log_z


def _masked_sum(x, mask):
    return jnp.sum(jnp.where(mask, x, 0.0))


def _logits(hidden, table):
    return jnp.einsum("rd,vd->rv", hidden, table, preferred_element_type=jnp.float32)


def _chunks(x, chunk):
    """[R, ...] -> [R / chunk, chunk, ...]."""
    return x.reshape(-1, chunk, *x.shape[1:])


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _fused(hidden, embedding, targets, mask, smoothing, chunk):
    table = embedding.astype(hidden.dtype)

    def add_chunk(sums, inputs):
        rows, labels, keep = inputs
        new = label_smoothed_cross_entropy(_logits(rows, table), labels, keep, smoothing)
        return jax.tree.map(jnp.add, sums, new), None

    inputs = [_chunks(x, chunk) for x in (hidden, targets, mask)]
    return jax.lax.scan(add_chunk, (jnp.zeros(()),) * 3, inputs)[0]


def _fused_forward(hidden, embedding, targets, mask, smoothing, chunk):
    table = embedding.astype(hidden.dtype)
    off = smoothing / table.shape[0]

    def add_chunk(carry, inputs):
        sums, d_table = carry
        rows, labels, keep = inputs
        logits = _logits(rows, table)
        loss, nll, log_z = _per_row(logits, labels, smoothing)
        new = _masked_sum(loss, keep), _masked_sum(nll, keep), jnp.sum(keep, dtype=jnp.float32)
        # A comparison fuses into the loop, where a one-hot or a scatter would be a second array.
        classes = jax.lax.broadcasted_iota(labels.dtype, logits.shape, 1)
        smoothed = jnp.where(classes == labels[:, None], 1 - smoothing + off, off)
        d_logits = jnp.where(keep[:, None], jnp.exp(logits - log_z[:, None]) - smoothed, 0.0).astype(
            rows.dtype
        )
        # Transposed, since as [V, D] the product would begin with a transposed copy of the larger factor.
        d_table += jnp.einsum("rd,rv->dv", rows, d_logits, preferred_element_type=jnp.float32)
        return (jax.tree.map(jnp.add, sums, new), d_table), d_logits @ table

    zeros = (jnp.zeros(()),) * 3, jnp.zeros(table.T.shape, jnp.float32)
    inputs = [_chunks(x, chunk) for x in (hidden, targets, mask)]
    (sums, d_table), d_rows = jax.lax.scan(add_chunk, zeros, inputs)
    return sums, (d_rows.reshape(hidden.shape), d_table.T.astype(embedding.dtype), targets, mask)


def _fused_backward(smoothing, chunk, residuals, cotangents):
    d_hidden, d_table, targets, mask = residuals
    scale = cotangents[0]
    no_gradient = [np.zeros(x.shape, jax.dtypes.float0) for x in (targets, mask)]
    return d_hidden * scale.astype(d_hidden.dtype), d_table * scale.astype(d_table.dtype), *no_gradient


_fused.defvjp(_fused_forward, _fused_backward)
