"""Random outputs: temperature, top-k, top-p; a row's draws depend on its own number only."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from flaxnmt.decoding.cache import DecodeCache, Step
from flaxnmt.decoding.hypotheses import Constraints, Hypotheses
from flaxnmt.decoding.scoring import token_log_probs
from flaxnmt.errors import ConfigError
from flaxnmt.symbols import BOS, EOS, PAD
from flaxnmt.typing import Array, Float, Int, PRNGKeyArray


def _keep_heaviest(logits, weights, target):
    """The likeliest tokens whose `weights` reach `target`, the others -inf; no sort over the vocabulary.

    The bits of a float32, with those of negative numbers turned round, are integers in the same order, so
    32 halvings find the largest threshold exactly.
    """
    bits = lax.bitcast_convert_type(logits.astype(jnp.float32), jnp.int32)
    order = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)

    def halve(_, bounds):
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)
        enough = jnp.where(order >= middle[..., None], weights, 0).sum(-1) >= target
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = lax.fori_loop(0, 32, halve, (order.min(-1), order.max(-1) + 1))
    return jnp.where(order >= low[..., None], logits, -jnp.inf)


def keep_top_k(logits: Float[Array, "*B V"], k: int) -> Float[Array, "*B V"]:
    """Logits with all but the k largest at -inf (Fan et al. 2018); equals of the k-th stay too."""
    return _keep_heaviest(logits, 1, min(k, logits.shape[-1]))


def keep_top_p(logits: Float[Array, "*B V"], p: float) -> Float[Array, "*B V"]:
    """The smallest set of likeliest tokens that has probability p (Holtzman et al. 2020), the others -inf.

    Equals of the least likely one stay too.
    """
    return _keep_heaviest(logits, jax.nn.softmax(logits, axis=-1), p)


def sample(
    step: Step,
    cache: DecodeCache,
    key: PRNGKeyArray,
    rows: Int[Array, "B"],
    max_lengths: Int[Array, "B"],
    *,
    max_length: int,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_lengths: Int[Array, "B"] | None = None,
    prefix: Int[Array, "B P"] | None = None,
    suppress: tuple[int, ...] = (),
    pad: int = PAD,
    bos: int = BOS,
    eos: int = EOS,
) -> Hypotheses:
    """N = `samples` independent outputs of each row, in the order drawn.

    Tokens are drawn from softmax(logits / temperature), cut to the `top_k` likeliest and then to the nucleus
    `top_p` (None: all). The draw for sample n at position t uses key folded with (rows[b], n, t): give every
    line its number in the input as `rows`, and its samples depend neither on its batch nor on how many
    samples are drawn. Limits, prefix and `suppress` as in `beam_search`; scores are the log-probabilities,
    which are the model's own, whatever the temperature. The cache holds N hypotheses per row.

    Pure and jittable; static: max_length, samples, temperature, top_k, top_p and the ids. Raises ConfigError
    on a temperature or top_p not above 0 and on counts below 1.
    """
    # So that what is no number is refused, too.
    if not temperature > 0 or (top_p is not None and not top_p > 0):
        raise ConfigError(f"sampling: temperature {temperature}, top-p {top_p}: both must be above 0")
    if min(samples, max_length, 1 if top_k is None else top_k) < 1:
        given = f"samples {samples}, max_length {max_length}, top-k {top_k}"
        raise ConfigError(f"sampling: {given}: each must be at least 1")
    limits = Constraints.of(max_lengths, min_lengths, prefix, max_length, pad)
    shape = (limits.max_lengths.shape[0], samples)
    suppress = jnp.asarray(sorted({pad, bos, *suppress} - {eos}))

    fold = jax.random.fold_in
    keys = jax.vmap(lambda row: jax.vmap(partial(fold, fold(key, row)))(jnp.arange(samples)))(rows)

    def draw(logits, rules, position):
        may, must = rules.may_end[:, None], rules.must_end[:, None]
        end = jnp.where(may, logits[..., eos], -jnp.inf)
        logits = logits.at[..., suppress].set(-jnp.inf).at[..., eos].set(end) / temperature
        if top_k is not None:
            logits = keep_top_k(logits, top_k)
        if top_p is not None:
            logits = keep_top_p(logits, top_p)
        here = jax.vmap(jax.vmap(partial(fold, data=position)))(keys)
        drawn = jax.vmap(jax.vmap(jax.random.categorical))(here, logits).astype(jnp.int32)
        drawn = jnp.where(rules.is_forced[:, None], rules.forced[:, None], drawn)
        return jnp.where(must, eos, drawn)

    def going(state):
        return (state[0] < max_length) & state[4].any()

    def advance(state):
        position, last, tokens, log_probs, alive, cache = state
        logits, cache = step(cache, last, position)
        drawn = jnp.where(alive, draw(logits, limits.at(position), position), pad)
        log_probs = log_probs + token_log_probs(logits, drawn, alive)
        alive = alive & (drawn != eos)
        return position + 1, drawn, tokens.at[:, :, position].set(drawn), log_probs, alive, cache

    state = (
        jnp.int32(0),
        jnp.full(shape, bos, jnp.int32),
        jnp.full((*shape, max_length), pad, jnp.int32),
        jnp.zeros(shape),
        jnp.broadcast_to(limits.max_lengths[:, None] > 0, shape),
        cache,
    )
    _, _, tokens, log_probs, _, _ = lax.while_loop(going, advance, state)
    return Hypotheses(tokens, log_probs, log_probs, (tokens != pad).sum(-1, dtype=jnp.int32))
