"""Dropout: rate, scale, and bits that are a function of key and index alone.

Thresholds of the random tests are five standard deviations, or the chi-square value of probability 1e-6.
"""

from math import erf, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from flaxnmt.layers.dropout import Dropout, dropout, hash_bits, hash_normal
from flaxnmt.sharding import make_mesh

KEY = jax.random.key(7)


def words(key):
    return jax.random.key_data(key)


def mask_of(key, shape=(512, 512), rate=0.5):
    return np.asarray(dropout(jnp.ones(shape), rate, key)) != 0


def chi_square(table):
    """Pearson's statistic of independence of rows and columns, in standard deviations from its mean."""
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    degrees = (table.shape[0] - 1) * (table.shape[1] - 1)
    return (((table - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


def joint_counts(first, second, bins=16):
    """How often the leading bits of one array meet those of the other."""
    shift = 32 - int(np.log2(bins))
    return np.bincount(
        (first >> shift).ravel() * bins + (second >> shift).ravel(), minlength=bins**2
    ).reshape(bins, bins)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_share_of_zeros_is_the_rate_and_the_rest_is_scaled(rate):
    x = jnp.full((500, 1000), 3.0)
    y = np.asarray(dropout(x, rate, KEY))
    zeros = np.mean(y == 0)
    assert abs(zeros - rate) < 5 * np.sqrt(rate * (1 - rate) / y.size)
    np.testing.assert_allclose(y[y != 0], 3 / (1 - rate), rtol=1e-6)


def test_shares_are_the_rate_in_every_row_and_column():
    kept = mask_of(KEY, rate=0.1)
    for axis in (0, 1):
        deviation = (kept.mean(axis) - 0.9) / np.sqrt(0.09 / kept.shape[axis])
        assert abs(np.mean(deviation**2) - 1) < 5 * np.sqrt(2 / deviation.size)


def test_bits_are_uniform():
    bits = np.asarray(hash_bits(words(KEY), (1 << 20,)))
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits >> shift) & 255, minlength=256)
        expected = bits.size / 256
        assert (((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255) < 5


@pytest.mark.parametrize("lag", [1, 2, 512, 1 << 16])
def test_neighbouring_indices_are_independent(lag):
    bits = np.asarray(hash_bits(words(KEY), (1 << 20,)))
    assert chi_square(joint_counts(bits[:-lag], bits[lag:])) < 5


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (0, 1 << 16), (3, 1003)])
def test_neighbouring_seeds_are_independent(pair):
    first, second = (np.asarray(hash_bits(words(jax.random.key(seed)), (1 << 20,))) for seed in pair)
    for lag in (0, 1, 1024):
        assert chi_square(joint_counts(first[lag:], second[: second.size - lag])) < 5


def test_either_word_of_a_key_changes_half_of_the_bits():
    key = np.array([123, 456], np.uint32)
    bits = np.asarray(hash_bits(jnp.asarray(key), (4096,)))
    for word in (0, 1):
        for bit in (0, 13, 31):
            other = key.copy()
            other[word] ^= np.uint32(1 << bit)
            changed = np.unpackbits(
                (bits ^ np.asarray(hash_bits(jnp.asarray(other), (4096,)))).view(np.uint8)
            )
            assert abs(changed.mean() - 0.5) < 5 * 0.5 / np.sqrt(changed.size)


def test_an_index_counts_and_not_the_shape():
    np.testing.assert_array_equal(hash_bits(words(KEY), (6, 20)).ravel(), hash_bits(words(KEY), (120,)))
    np.testing.assert_array_equal(hash_bits(words(KEY), (3, 4, 10)).ravel(), hash_bits(words(KEY), (120,)))
    np.testing.assert_array_equal(hash_bits(words(KEY), (3, 20)), hash_bits(words(KEY), (6, 20))[:3])


def test_beyond_four_billion_elements_bits_do_not_come_again():
    size = 1 << 16
    rows = [np.asarray(hash_bits(words(KEY), (1, size), row)) for row in (0, size - 1, size, 2 * size)]
    np.testing.assert_array_equal(rows[0][0], hash_bits(words(KEY), (size,)))
    for i, one in enumerate(rows):
        for other in rows[:i]:
            changed = np.unpackbits((one ^ other).view(np.uint8))
            assert abs(changed.mean() - 0.5) < 5 * 0.5 / np.sqrt(changed.size)


@pytest.mark.parametrize(
    "sizes", [*(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((8, 1, 1), (1, 8, 1))), (2, 2, 2)]
)
def test_same_bits_on_every_mesh(sizes):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 8, 4)), jnp.float32)
    sharded = jax.device_put(x, NamedSharding(make_mesh(*sizes), PartitionSpec(("data", "fsdp"), "model")))
    value = jax.jit(lambda x: dropout(x, 0.4, KEY))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(dropout(x, 0.4, KEY) ** 2)))
    assert len(sharded.addressable_shards) == 8 and value(sharded).sharding == sharded.sharding
    np.testing.assert_array_equal(value(sharded), dropout(x, 0.4, KEY))
    np.testing.assert_array_equal(gradient(sharded), gradient(x))


def test_the_gradient_has_the_mask_of_the_value():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(40, 50)), jnp.float32)
    y, backward = jax.vjp(lambda x: dropout(x, 0.3, KEY), x)
    (gradient,) = backward(jnp.ones_like(y))
    np.testing.assert_allclose(gradient, np.where(y == 0, 0, 1 / 0.7), rtol=1e-6)
    np.testing.assert_allclose(gradient * x, y, rtol=1e-6)


def test_type_is_kept():
    assert dropout(jnp.ones((4, 4), jnp.bfloat16), 0.5, KEY).dtype == jnp.bfloat16


@pytest.mark.slow
def test_vmap_over_keys_equals_single_calls():
    x, keys = jnp.ones((3, 30)), jax.random.split(KEY, 3)
    mapped = jax.vmap(lambda x, key: dropout(x, 0.5, key))(x, keys)
    np.testing.assert_array_equal(mapped, jnp.stack([dropout(*pair) for pair in zip(x, (0.5,) * 3, keys)]))


class TwoSites(nn.Module):
    rate: float

    def setup(self):
        self.first, self.second = Dropout(self.rate), Dropout(self.rate)

    def __call__(self, x, deterministic):
        return self.first(x, deterministic), self.second(x, deterministic)


def test_modules_draw_other_bits_than_each_other_and_the_same_again():
    x = jnp.ones((300, 300))
    first, second = TwoSites(0.5).apply({}, x, False, rngs={"dropout": KEY})
    table = np.histogram2d(np.ravel(first), np.ravel(second), bins=2)[0]
    assert chi_square(table) < 5
    again, _ = TwoSites(0.5).apply({}, x, False, rngs={"dropout": KEY})
    np.testing.assert_array_equal(again, first)
    other, _ = TwoSites(0.5).apply({}, x, False, rngs={"dropout": jax.random.fold_in(KEY, 1)})
    assert np.any(other != first)


@pytest.mark.parametrize("rate, deterministic", [(0.0, False), (0.5, True)])
def test_without_rate_or_randomness_it_is_the_identity_and_asks_for_no_key(rate, deterministic):
    x = jnp.arange(6.0)
    first, _ = TwoSites(rate).apply({}, x, deterministic)
    np.testing.assert_array_equal(first, x)


def test_normal_noise_has_the_distribution_of_its_name():
    draws = np.sort(np.asarray(jax.jit(hash_normal, static_argnums=1)(jax.random.key(7), (40, 1000))).ravel())
    assert np.isfinite(draws).all()
    # Kolmogorov-Smirnov: 1.63 / sqrt(n) is exceeded by chance once in a hundred keys.
    expected = np.asarray([0.5 * (1 + erf(x / sqrt(2))) for x in draws])
    assert np.abs(expected - (np.arange(draws.size) + 0.5) / draws.size).max() < 1.63 / sqrt(draws.size)
    other = hash_normal(jax.random.key(8), (40, 1000)).ravel()
    assert abs(np.corrcoef(hash_normal(jax.random.key(7), (40, 1000)).ravel(), other)[0, 1]) < 0.02
