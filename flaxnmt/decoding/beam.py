"""Beam search on the device: one `lax.while_loop`, static shapes, rows independent of each other."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from flaxnmt.decoding.cache import DecodeCache, Step, reorder
from flaxnmt.decoding.hypotheses import Constraints, Hypotheses, length_penalties
from flaxnmt.decoding.top import top_continuations
from flaxnmt.errors import ConfigError
from flaxnmt.symbols import BOS, EOS, PAD
from flaxnmt.typing import Array, Float, Int


class Live(NamedTuple):
    """The K unfinished hypotheses of a row, best first; dead ones have log-probability -inf."""

    tokens: Int[Array, "B K T"]
    log_probs: Float[Array, "B K"]
    last: Int[Array, "B K"]


def _select(array, index):
    return jnp.take_along_axis(array, index.reshape(index.shape + (1,) * (array.ndim - 2)), axis=1)


def _merge(finished: Hypotheses, new: Hypotheses) -> Hypotheses:
    """The best of both, as many as `finished` holds; at equal scores what finished earlier goes first."""
    _, index = lax.top_k(jnp.concatenate([finished.scores, new.scores], 1), finished.scores.shape[1])
    return Hypotheses(*(_select(jnp.concatenate(pair, 1), index) for pair in zip(finished, new, strict=True)))


def beam_search(
    step: Step,
    cache: DecodeCache,
    max_lengths: Int[Array, "B"],
    *,
    max_length: int,
    beam_size: int,
    n_best: int = 1,
    length_penalty: float = 0.6,
    min_lengths: Int[Array, "B"] | None = None,
    prefix: Int[Array, "B P"] | None = None,
    suppress: tuple[int, ...] = (),
    pad: int = PAD,
    bos: int = BOS,
    eos: int = EOS,
) -> Hypotheses:
    """The `n_best` best outputs of each row that a beam of K = `beam_size` hypotheses finds, best first.

    Score: log-probability / ((5 + n) / 6)^alpha, n the length with eos, alpha = `length_penalty` (Wu et al.
    2016, eq. 14). At each step all continuations of the K live hypotheses are ranked by log-probability.
    An eos among the first K finishes a hypothesis; the first K others live on (they lie among the first 2K,
    since only K end with eos). Finished hypotheses are kept apart and take no place in the beam. Equal
    values: eos first, then the lower beam, then the lower token id; equal scores: the earlier finished.

    Limits count tokens with eos. At its maximal length every live hypothesis of a row takes eos, whatever
    it costs, so that an output always ends with eos and its score equals rescoring. `prefix` (filled with
    pad, without eos) is what every output of a row begins with, and counts in its log-probability. The
    maximal length goes before the prefix, the prefix before the minimal length. pad, bos and `suppress` are
    never produced. Rows of maximal length 0 take no part (see `Hypotheses`).

    Stop rule. After a step let l be the best live log-probability of a row, t its length so far, N the
    maximal length. An output still to come has a length n, t + 1 <= n <= N, and a log-probability
    l' <= l <= 0, since every further token adds a term <= 0. Its score is l' / p(n) <= l / p(n) <= l / P,
    where P is the largest p(n) > 0 over those n, because l <= 0. The penalty p is monotone in n (rising for
    alpha > 0, falling for alpha < 0, constant for alpha = 0), so P = max(p(t + 1), p(N)). If l / P is not
    above the worst of the n_best kept scores, nothing to come can enter (it would have to be strictly
    better), and the row's live hypotheses are dropped. The bound is tight for alpha >= 0: an output of length
    N at no further cost reaches it. Float32 sums, quotients and the rounded table of p are monotone too, so
    this holds for the numbers that are computed: stopping never changes a result. A stopped row has only
    dead hypotheses, whose continuations are dead, so it is frozen while other rows go on.

    The loop ends when no row has a live hypothesis. Pure and jittable; everything after `*` but
    `min_lengths` and `prefix` is static. Raises ConfigError on sizes below 1.
    """
    if min(beam_size, n_best, max_length) < 1:
        given = f"beam_size {beam_size}, n_best {n_best}, max_length {max_length}"
        raise ConfigError(f"beam search: {given}: each must be at least 1")
    limits = Constraints.of(max_lengths, min_lengths, prefix, max_length, pad)
    batch = limits.max_lengths.shape[0]
    suppress = tuple(sorted({pad, bos, eos, *suppress}))
    lengths = np.arange(max_length + 2)
    penalties = jnp.asarray(length_penalties(lengths, length_penalty), jnp.float32)
    arange = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32), (batch, beam_size))

    def going(state):
        position, live, _, _ = state
        return (position < max_length) & (live.log_probs > -jnp.inf).any()

    def advance(state):
        position, live, finished, cache = state
        rules = limits.at(position)
        alive = live.log_probs > -jnp.inf
        logits, cache = step(cache, jnp.where(alive, live.last, pad), position)
        top = top_continuations(logits, live.log_probs, beam_size, suppress)

        # Inside its prefix a row continues every hypothesis with the same token: the beams keep their order.
        forced = jnp.broadcast_to(rules.forced[:, None], (batch, beam_size))
        forced_logits = jnp.take_along_axis(logits, forced[..., None], axis=2)[..., 0]
        forced_log_probs = live.log_probs + (forced_logits - top.normaliser)
        is_forced = rules.is_forced[:, None]
        log_probs = jnp.where(is_forced, forced_log_probs, top.log_probs)
        log_probs = jnp.where(rules.must_end[:, None], -jnp.inf, log_probs)
        parents = jnp.where(is_forced, arange, top.beams)
        tokens = jnp.where(is_forced, forced, top.tokens)

        ended = live.log_probs + (logits[..., eos] - top.normaliser)
        ended = jnp.where(rules.may_end[:, None], ended, -jnp.inf)
        ranked, rank = lax.top_k(jnp.concatenate([ended, log_probs], 1), beam_size)
        ended = jnp.where(rank < beam_size, ranked, -jnp.inf)
        history = _select(live.tokens, rank % beam_size).at[:, :, position].set(eos)
        real = ended > -jnp.inf
        length = position + 1
        new = Hypotheses(
            tokens=jnp.where(real[..., None], history, pad),
            scores=ended / penalties[length],
            log_probs=ended,
            lengths=jnp.where(real, length, 0),
        )
        finished = _merge(finished, new)

        best_penalty = jnp.maximum(penalties[length + 1], penalties[limits.max_lengths])
        hopeless = log_probs.max(-1) / best_penalty <= finished.scores[:, -1]
        log_probs = jnp.where(hopeless[:, None], -jnp.inf, log_probs)
        history = _select(live.tokens, parents).at[:, :, position].set(tokens)
        return length, Live(history, log_probs, tokens), finished, reorder(cache, parents)

    empty = limits.max_lengths[:, None] <= 0
    first = (arange == 0) & ~empty
    live = Live(
        tokens=jnp.full((batch, beam_size, max_length), pad, jnp.int32),
        log_probs=jnp.where(first, 0.0, -jnp.inf),
        last=jnp.full((batch, beam_size), bos, jnp.int32),
    )
    nothing = jnp.where(empty & (jnp.arange(n_best) == 0), 0.0, -jnp.inf)
    finished = Hypotheses(
        tokens=jnp.full((batch, n_best, max_length), pad, jnp.int32),
        scores=nothing,
        log_probs=nothing,
        lengths=jnp.zeros((batch, n_best), jnp.int32),
    )
    return lax.while_loop(going, advance, (jnp.int32(0), live, finished, cache))[2]


def greedy(step: Step, cache: DecodeCache, max_lengths: Int[Array, "B"], **options) -> Hypotheses:
    """The likeliest token at every step, N = 1: a beam of one hypothesis without length penalty.

    With alpha = 0 the row stops at the first eos that is its best continuation, since no score can rise after
    it. `options` are those of `beam_search` but beam_size, n_best and length_penalty.
    """
    return beam_search(step, cache, max_lengths, beam_size=1, n_best=1, length_penalty=0.0, **options)
