"""A cache in several arrays holds what one array holds, and shows no more of it than is in use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.layers.context import KeyValues
from flaxnmt.layers.segments import Segments, divided, slots_of

B, H, K, SOURCE = 2, 3, 4, 5
rng = np.random.default_rng(0)


def keys(slots):
    return KeyValues(*(jnp.asarray(rng.normal(size=(B, H, slots, K)), jnp.float32) for _ in range(2)))


def joined(parts):
    return np.concatenate([part.value for part in parts], axis=-2)


@pytest.mark.parametrize(
    "positions, segments, lengths",
    [(20, 4, [5, 5, 5, 5]), (7, 4, [2, 2, 2, 1]), (3, 8, [1, 1, 1]), (9, 1, [9])],
)
def test_room_is_divided_as_evenly_as_can_be(positions, segments, lengths):
    assert divided(positions, segments) == lengths


def test_a_cache_has_at_least_one_segment():
    with pytest.raises(ValueError, match="0 segments: give at least 1"):
        divided(4, 0)


@pytest.mark.parametrize("segments", [1, 2, 3, 7])
@pytest.mark.parametrize("front, scanned", [(SOURCE, False), (0, False), (0, True)])
def test_slots_are_written_in_turn_and_stay_where_they_are(segments, front, scanned):
    beams, positions = 2, 7
    before = keys(front)
    cache = Segments.behind(before, [beams * length for length in divided(positions, segments)], scanned)
    assert cache.length == front + beams * positions
    line = np.concatenate([before.value, np.zeros((B, H, beams * positions, K), np.float32)], axis=-2)
    write = jax.jit(Segments.written)
    for position in range(positions):
        at, new = front + beams * position, keys(beams)
        cache = write(cache, new, at)
        line[:, :, at : at + beams] = new.value
        np.testing.assert_array_equal(joined(cache.parts), line)
        if len(cache.parts) > 1:
            ends = [some.stop for some in cache.slots]
            assert ends[int(cache.used) - 1] >= at + beams and (
                cache.used == 1 or ends[int(cache.used) - 2] <= at
            )


def test_a_source_with_less_room_than_a_step_writes_is_left_alone():
    before = keys(1)
    cache = Segments.behind(before, [4, 4])
    cache = cache.written(keys(2), jnp.int32(1))
    np.testing.assert_array_equal(cache.parts[0].key, before.key)


def test_only_parts_in_use_are_looked_at_and_none_if_no_row_is_active():
    cache = Segments.behind(keys(0), [2, 2, 2])
    unread = jax.tree.map(lambda y: jnp.full_like(y, jnp.nan), cache.parts[2])
    cache = cache.replace(parts=(*cache.parts[:2], unread)).written(keys(2), jnp.int32(2))
    assert cache.used == 2

    @jax.jit
    def sums(cache, active):
        return cache.over_used(lambda parts: sum(part.key.sum((-1, -2)) for part in parts), active)

    expected = joined([KeyValues(part.key, part.key) for part in cache.parts[:2]]).sum((-1, -2))
    np.testing.assert_allclose(sums(cache, None), expected, rtol=1e-5)
    np.testing.assert_allclose(sums(cache, jnp.array([True, False])), expected, rtol=1e-5)
    assert not sums(cache, jnp.zeros(2, bool)).any()


def test_slots_are_those_of_one_line():
    assert slots_of([jnp.zeros((2, length, K)) for length in (3, 1, 2)]) == [
        slice(0, 3),
        slice(3, 4),
        slice(4, 6),
    ]
