"""Attention over slots that never move equals attention over a cache that is reordered."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flaxnmt.decoding.beam import beam_search
from flaxnmt.decoding.cache import DecodeCache, extend_ancestors, init_ancestors, reorder, visible_slots

B, K, T, H, D, V = 5, 4, 9, 2, 3, 11
rng = np.random.default_rng(0)
EMBED = jnp.asarray(rng.normal(size=(V, H, D)) * 2, jnp.float32)
OUT = jnp.asarray(rng.normal(size=(H, D, V)) * 2, jnp.float32)
ROWS = jnp.asarray(rng.normal(size=(B, H, D)), jnp.float32)


def moving(cache, tokens, position):
    """Keys [B, K, T, H, D] are reordered with the hypotheses."""
    x = EMBED[tokens] + cache.shared[:, None]
    keys = lax.dynamic_update_slice_in_dim(cache.per_beam, x[:, :, None], position, axis=2)
    weights = jnp.einsum("bkhd,bkthd->bkht", x, keys)
    weights = jax.nn.softmax(jnp.where(jnp.arange(T) <= position, weights, -jnp.inf))
    return jnp.einsum("bkht,bkthd,hdv->bkv", weights, keys, OUT), cache._replace(per_beam=keys)


def resting(cache, tokens, position):
    """Keys [B, H, T * K, D] stay where they were written; only the ancestors are reordered."""
    rows, keys = cache.shared
    ancestors = extend_ancestors(cache.per_beam, position)
    x = EMBED[tokens] + rows[:, None]
    keys = lax.dynamic_update_slice_in_dim(keys, x.transpose(0, 2, 1, 3), position * K, axis=2)
    weights = jnp.einsum("bkhd,bhsd->bhks", x, keys)
    visible = visible_slots(ancestors, position)[:, None]
    weights = jax.nn.softmax(jnp.where(visible, weights, -jnp.inf))
    logits = jnp.einsum("bhks,bhsd,hdv->bkv", weights, keys, OUT)
    return logits, DecodeCache(ancestors, (rows, keys))


def test_resting_slots_equal_a_reordered_cache():
    run = partial(beam_search, max_lengths=jnp.full(B, T), max_length=T, beam_size=K, n_best=K)
    moved = run(moving, DecodeCache(jnp.zeros((B, K, T, H, D)), ROWS))
    rested = run(resting, DecodeCache(init_ancestors(B, K, T), (ROWS, jnp.zeros((B, H, T * K, D)))))
    np.testing.assert_array_equal(moved.tokens, rested.tokens)
    np.testing.assert_allclose(moved.scores, rested.scores, atol=1e-5)
    assert moved.lengths.max() > 4


def test_reorder_moves_per_beam_leaves_only():
    cache = DecodeCache(
        {"a": jnp.arange(6).reshape(2, 3), "b": jnp.arange(24).reshape(2, 3, 4)}, jnp.arange(2)
    )
    moved = reorder(cache, jnp.array([[2, 2, 0], [1, 0, 1]]))
    np.testing.assert_array_equal(moved.per_beam["a"], [[2, 2, 0], [4, 3, 4]])
    np.testing.assert_array_equal(moved.per_beam["b"][0, 1], [8, 9, 10, 11])
    np.testing.assert_array_equal(moved.shared, cache.shared)


def test_each_hypothesis_sees_one_slot_for_each_position_so_far():
    ancestors = init_ancestors(1, 3, 4)
    for position, parents in enumerate([[0, 0, 0], [2, 0, 1], [1, 1, 2]]):
        ancestors = extend_ancestors(ancestors, jnp.int32(position))
        seen = visible_slots(ancestors, jnp.int32(position))
        assert (seen.sum(-1) == position + 1).all()
        ancestors = reorder(DecodeCache(ancestors, ()), jnp.array([parents])).per_beam
    # Hypothesis 0 at position 2 became 1's continuation, which continued 0, which continued 0.
    assert ancestors[0, 0, :3].tolist() == [0, 0, 1]
    assert ancestors[0, 2, :3].tolist() == [0, 1, 2]
