"""What decoding returns, what it must respect, and how lengths enter a score."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from flaxnmt.typing import Array, Bool, Float, Int


class Hypotheses(NamedTuple):
    """N outputs for each of B rows.

    tokens: ends with eos, filled with pad. log_probs: sum over the tokens, eos included, natural logarithm,
    under the model's own distribution. scores: log_probs / length penalty. lengths: tokens, eos included.
    Where a row has fewer outputs than N, the rest have length 0 and score and log-probability -inf. A row
    with maximal length 0 has one output: no token at all, log-probability 0.
    """

    tokens: Int[Array, "B N T"]
    scores: Float[Array, "B N"]
    log_probs: Float[Array, "B N"]
    lengths: Int[Array, "B N"]


def length_penalties(lengths, alpha: float):
    """((5 + n) / 6)^alpha for lengths n (eos included): Wu et al. 2016, eq. 14, `lp`; numpy or jax arrays."""
    return ((5.0 + lengths) / 6.0) ** alpha


class Rules(NamedTuple):
    """What holds for the next token of each row."""

    forced: Int[Array, "B"]
    """The token of the prefix, where `is_forced`."""
    is_forced: Bool[Array, "B"]
    may_end: Bool[Array, "B"]
    must_end: Bool[Array, "B"]


class Constraints(NamedTuple):
    """Limits of every row, counted in tokens with eos; `prefix` is filled with pad."""

    max_lengths: Int[Array, "B"]
    min_lengths: Int[Array, "B"]
    prefix: Int[Array, "B T"]
    pad: int

    @classmethod
    def of(cls, max_lengths, min_lengths, prefix, max_length: int, pad: int) -> "Constraints":
        """Constraints for outputs of at most `max_length` tokens; None means no lower limit, no prefix."""
        max_lengths = jnp.minimum(jnp.asarray(max_lengths, jnp.int32), max_length)
        batch = max_lengths.shape[0]
        if min_lengths is None:
            min_lengths = jnp.zeros(batch, jnp.int32)
        if prefix is None:
            prefix = jnp.zeros((batch, 0), jnp.int32)
        prefix = jnp.asarray(prefix, jnp.int32)[:, :max_length]
        prefix = jnp.pad(prefix, ((0, 0), (0, max_length - prefix.shape[1])), constant_values=pad)
        return cls(max_lengths, jnp.asarray(min_lengths, jnp.int32), prefix, pad)

    def at(self, position: Int[Array, ""]) -> Rules:
        """Rules for the token at `position`: maximal length before prefix before minimal length."""
        forced = lax.dynamic_index_in_dim(self.prefix, position, axis=1, keepdims=False)
        must_end = position + 1 >= self.max_lengths
        is_forced = (forced != self.pad) & ~must_end
        may_end = must_end | ((position + 1 >= self.min_lengths) & ~is_forced)
        return Rules(forced, is_forced, may_end, must_end)
