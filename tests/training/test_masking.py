"""Which tokens are masked, and by what: BERT's shares, in numbers that a fair draw keeps to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.training.masking import choose, corrupt

MASK, WORDS = 4, (7, 1000)


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    tokens = rng.integers(*WORDS, (400, 128)).astype(np.int32)
    tokens[:, 0] = 5
    tokens[200:, 80:] = 0
    keys = jax.random.split(jax.random.key(1))
    chosen, counts = jax.jit(choose)(keys[0], tokens >= WORDS[0])
    shown = jax.jit(corrupt, static_argnums=(4, 5))(keys[1], tokens, chosen, counts, MASK, WORDS)
    return tokens, np.asarray(chosen), np.asarray(counts), np.asarray(shown)


def test_fifteen_per_cent_of_the_words_of_each_sequence_are_chosen(drawn):
    tokens, chosen, counts, _ = drawn
    assert chosen.shape == (400, 20)
    np.testing.assert_array_equal(counts.sum(-1), np.round(0.15 * (tokens >= WORDS[0]).sum(-1)))
    places = [row[count] for row, count in zip(chosen, counts)]
    assert all(len(set(row.tolist())) == len(row) for row in places)
    assert all((tokens[i, row] >= WORDS[0]).all() for i, row in enumerate(places))


def test_all_places_are_chosen_alike(drawn):
    _, chosen, counts, _ = drawn
    often = np.bincount(chosen[:200][counts[:200]], minlength=128)[1:]
    # 200 x 19 draws over 127 places: 30 each, give or take 5.4.
    assert often.min() > 8 and often.max() < 60


def test_of_the_chosen_80_per_cent_are_masked_10_random_10_left(drawn):
    tokens, chosen, counts, shown = drawn
    own, seen = (np.take_along_axis(x, chosen, 1)[counts] for x in (tokens, shown))
    total = len(own)
    masked, left = (seen == MASK).sum(), (seen == own).sum()
    others = total - masked - left
    for count, share in ((masked, 0.8), (left, 0.1), (others, 0.1)):
        assert abs(count - share * total) < 5 * np.sqrt(total * share * (1 - share))
    drawn_words = seen[(seen != MASK) & (seen != own)]
    assert drawn_words.min() >= WORDS[0] and drawn_words.max() < WORDS[1]
    assert len(set(drawn_words.tolist())) > 0.7 * others


def test_what_is_not_chosen_is_left(drawn):
    tokens, chosen, counts, shown = drawn
    kept = np.ones_like(tokens, bool)
    for row, places, count in zip(kept, chosen, counts):
        row[places[count]] = False
    np.testing.assert_array_equal(shown[kept], tokens[kept])


def test_an_empty_row_chooses_nothing_and_a_short_one_a_word():
    words = jnp.asarray([[False] * 8, [True] * 2 + [False] * 6])
    _, counts = choose(jax.random.key(0), words)
    assert counts.sum(-1).tolist() == [0, 1]
