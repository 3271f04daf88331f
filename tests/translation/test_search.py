"""Options of a search, lengths that are those of the line, and forced beginnings in few widths."""

import numpy as np
import pytest

from flaxnmt.config import DecodingConfig
from flaxnmt.errors import ConfigError
from flaxnmt.translation.search import Prefixes, Sampling, Search

DEFAULTS = DecodingConfig(
    beam_size=3, length_penalty=0.7, max_length_factor=1.5, max_length_extra=4, min_length=1
)


def test_what_is_not_given_is_the_default():
    search = Search.of(DEFAULTS)
    assert (search.beam_size, search.length_penalty, search.min_length) == (3, 0.7, 1)
    search = Search.of(DEFAULTS, beam_size=1, length_penalty=0.0, min_length=0, max_length=5)
    assert (search.beam_size, search.length_penalty, search.min_length, search.max_length) == (1, 0, 0, 5)
    with pytest.raises(ConfigError, match="4 best of a beam of 3: make --beam-size at least as large"):
        Search.of(DEFAULTS, n_best=4)
    assert Search.of(DEFAULTS, n_best=4, sampling=Sampling()).n_best == 4


def test_the_limit_of_a_line_does_not_depend_on_its_batch():
    lengths, given = np.asarray([[2, 7], [9, 0]]), np.asarray([[0, 3], [1, 0]])
    search = Search.of(DEFAULTS)
    longest = search.longest(16, 8)
    assert longest == 36
    assert search.limits(lengths, given, longest).tolist() == [[7, 17], [18, 4]]
    assert Search.of(DEFAULTS, max_length=6).limits(lengths, given, 6).tolist() == [[6, 6], [6, 6]]


def test_prefixes_have_few_widths_and_their_own_lengths():
    members = np.asarray([[1, -1], [0, 2]])
    assert Prefixes(None, None).of(members)[0].shape == (2, 2, 0)
    prefixes = Prefixes([[5, 6], [7, 8, 9], []], None)
    ids, given = prefixes.of(members)
    assert ids.shape == (2, 2, 8) and given.tolist() == [[3, 0], [2, 0]]
    assert ids[0, 0].tolist() == [7, 8, 9, 0, 0, 0, 0, 0] and ids[1, 0].tolist() == [5, 6] + 6 * [0]
    assert not ids[0, 1].any() and not ids[1, 1].any()
    assert {Prefixes([[5] * n], None).width for n in range(9)} == {8}
    assert {Prefixes([[5] * n], None).width for n in range(17, 33)} == {32}
    assert Prefixes([[5, 6, 7]], 4).of(np.asarray([0]))[1].tolist() == [3]
    with pytest.raises(ConfigError, match="--max-length 3 has no room behind the 3 tokens .* at least 4"):
        Prefixes([[5], [5, 6, 7]], 3)


def test_limits_count_what_comes_after_context():
    lengths, given = np.asarray([4, 4, 4]), np.asarray([0, 3, 8])
    search = Search.of(DEFAULTS, max_length=6, min_length=2, beyond=True)
    longest = search.longest(8, 8)
    assert longest == 14
    assert search.limits(lengths, given, longest).tolist() == [6, 9, 14]
    assert search.least(given).tolist() == [2, 5, 10]
    assert Search.of(DEFAULTS, max_length=6, min_length=2).least(given).tolist() == [2, 2, 2]


@pytest.mark.parametrize("option", ["beam_size", "n_best", "max_length"])
@pytest.mark.parametrize("number", [0, -1])
def test_numbers_below_one_are_refused(option, number):
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} {number}: it must be at least 1"):
        Search.of(DEFAULTS, **{option: number})


@pytest.mark.parametrize("seed", [-1, 1 << 31])
def test_seeds_have_31_bits(seed):
    Sampling(seed=(1 << 31) - 1)
    with pytest.raises(ConfigError, match=f"--seed {seed}: give one from 0 to 2147483647"):
        Sampling(seed=seed)
