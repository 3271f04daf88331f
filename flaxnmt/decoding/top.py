"""The best continuations of a beam, without sorting or writing an array of the size of the vocabulary."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from flaxnmt.typing import Array, Float, Int

CHUNK = 64
"""Tokens in a chunk; a multiple of vector widths, near sqrt(V / 2), where both selections cost the same."""


class Continuations(NamedTuple):
    """The k best (beam, token) pairs of each row, best first."""

    log_probs: Float[Array, "B k"]
    beams: Int[Array, "B k"]
    tokens: Int[Array, "B k"]
    normaliser: Float[Array, "B K"]
    """log_probs[b, k] + (logits[b, k, v] - normaliser[b, k]) is hypothesis k continued by v."""


def top_continuations(
    logits: Float[Array, "B K V"], log_probs: Float[Array, "B K"], k: int, suppressed: tuple[int, ...] = ()
) -> Continuations:
    """The k <= K best of log_probs + log_softmax(logits) over all beams and the tokens not in `suppressed`.

    Exact, equal values in the order of beam, then token. The vocabulary is cut into chunks; an element among
    the k best lies in one of the k chunks with the largest maxima (each of k better chunks would hold an
    element that goes before it; equal maxima are taken in the order of chunks), so that after one pass for
    the maxima and one for the normaliser only k chunks are looked at. Suppressed tokens count in the
    normaliser: log-probabilities are those of the model.
    """
    batch, beams, vocab = logits.shape
    tail = -vocab % CHUNK
    window = (1, 1, CHUNK)
    maxima = lax.reduce_window(logits, -jnp.inf, lax.max, window, window, ((0, 0), (0, 0), (0, tail)))
    chunks = maxima.shape[-1]

    largest = maxima.max(-1)
    normaliser = largest + jnp.log(jnp.exp(logits - largest[..., None]).sum(-1))
    normaliser = jnp.where(jnp.isfinite(normaliser), normaliser, jnp.inf)

    for chunk in sorted({token // CHUNK for token in suppressed}):
        part = logits[..., chunk * CHUNK : (chunk + 1) * CHUNK]
        hidden = np.isin(np.arange(part.shape[-1]) + chunk * CHUNK, suppressed)
        maxima = maxima.at[..., chunk].set(jnp.where(hidden, -jnp.inf, part).max(-1))

    # In this order of operations rounding lifts no continuation above the hypothesis that it continues.
    bounds = log_probs[..., None] + (maxima - normaliser[..., None])
    _, best = lax.top_k(bounds.reshape(batch, -1), k)
    best = jnp.sort(best, axis=-1)
    beam = best // chunks
    token = (best % chunks * CHUNK)[..., None] + jnp.arange(CHUNK)
    allowed = token < vocab
    for hidden in suppressed:
        allowed &= token != hidden
    token = jnp.minimum(token, vocab - 1)

    flat = ((beam * vocab)[..., None] + token).reshape(batch, -1)
    values = jnp.take_along_axis(logits.reshape(batch, -1), flat, axis=1, mode="promise_in_bounds")
    before, norm = (jnp.take_along_axis(array, beam, axis=1)[..., None] for array in (log_probs, normaliser))
    values = before + (values.reshape(token.shape) - norm)
    values, index = lax.top_k(jnp.where(allowed, values, -jnp.inf).reshape(batch, -1), k)
    flat = jnp.take_along_axis(flat, index, axis=1)
    return Continuations(values, flat // vocab, flat % vocab, normaliser)
