"""Sources that are cut elsewhere: the same words in the same order, and a way back."""

import dataclasses

import numpy as np
import pytest

from experiments import configs
from flaxnmt.checks.model import check_model
from flaxnmt.data.boundaries import Boundaries
from flaxnmt.errors import ConfigError

EOS = 3
LENGTHS = [[5, 2, 9, 3], [1, 1], [7], [], [4, 4, 4, 2, 6]]
PARAGRAPHS = [[0, 0, 1, 1], [0, 1], [0], [], [0, 1, 1, 2, 2]]


def grids(sentences: int = 6, words: int = 10) -> dict[str, np.ndarray]:
    """Documents whose words have numbers of their own."""
    source, paragraph = np.zeros((5, sentences, words), np.int32), np.zeros((5, sentences), np.int32)
    for row, lengths in enumerate(LENGTHS):
        for n, length in enumerate(lengths):
            source[row, n, :length] = 100 * row + 10 * n + 4 + np.arange(length)
            source[row, n, length - 1] = EOS
        paragraph[row, : len(lengths)] = PARAGRAPHS[row]
    return {"source": source, "paragraph": paragraph, "target": source + 1}


@pytest.fixture(params=["jittered", "fixed"])
def boundaries(request):
    return Boundaries(request.param, seed=3)


def test_words_keep_their_order_and_find_their_sentence(boundaries):
    true = grids()
    cut = boundaries(true)
    assert cut["target"] is true["target"] and not np.array_equal(cut["source"], true["source"])
    for row in range(len(LENGTHS)):
        words = cut["source"][row]
        assert np.array_equal(words[words > 0], true["source"][row][true["source"][row] > 0])
        filled = (words > 0).sum(-1)
        # Padding is at the end of a unit and of a document, and no unit is longer than the longest sentence.
        assert np.array_equal(words > 0, np.arange(words.shape[-1]) < filled[:, None])
        assert filled.max() <= max(LENGTHS[row], default=0)
        assert (filled[: len(LENGTHS[row])] > 0).all() and not filled[len(LENGTHS[row]) :].any()
        places = cut["places"][row]
        back = np.where(places >= 0, words.ravel()[places], 0)
        assert np.array_equal(back, true["source"][row])


def test_units_of_one_length_differ_by_a_word():
    cut = Boundaries("fixed")(grids())["source"]
    for row, lengths in enumerate(LENGTHS):
        filled = (cut[row] > 0).sum(-1)[: len(lengths)]
        assert not lengths or filled.max() - filled.min() <= 1


def test_jitter_stays_within_the_halves_of_neighbours():
    true, moved = grids(), 0
    for seed in range(30):
        cut = Boundaries("jittered", seed)(true)["source"]
        for row, lengths in enumerate(LENGTHS):
            ends, new = np.cumsum(lengths), np.cumsum((cut[row] > 0).sum(-1)[: len(lengths)])
            for n in range(len(lengths) - 1):
                assert -lengths[n] // 2 <= new[n] - ends[n] <= lengths[n + 1] // 2
                moved += new[n] != ends[n]
    assert moved > 100


def test_a_document_is_cut_alike_in_any_company_and_padding(boundaries):
    small, wide = boundaries(grids()), boundaries(grids(8, 16))
    assert np.array_equal(wide["source"][:, :6, :10], small["source"])
    alone = boundaries({name: values[4:] for name, values in grids().items()})
    assert all(np.array_equal(alone[name][0], small[name][4]) for name in small)
    other = Boundaries(boundaries.kind, seed=4)(grids())["source"]
    assert np.array_equal(other, small["source"]) == (boundaries.kind == "fixed")


def test_a_unit_is_in_the_paragraph_of_its_first_word():
    cut = Boundaries("fixed")(grids())
    # 20 words in units of four; the sentences begin at words 0, 4, 8, 12 and 14.
    assert cut["paragraph"][4].tolist() == [0, 1, 1, 2, 2, 0]
    # 19 words in units that begin at 0, 4, 9 and 14; the second paragraph begins with word 7.
    assert cut["paragraph"][0].tolist() == [0, 0, 1, 1, 0, 0]


def test_true_boundaries_change_nothing():
    batch = grids()
    assert Boundaries()(batch) is batch


@pytest.mark.parametrize("name", ["discourse_demo", "discourse_document"])
def test_a_model_of_sentences_has_none_to_cut(name):
    config = configs.load(name)
    config = config.replace(data=dataclasses.replace(config.data, boundaries="fixed"))
    if config.model.is_document:
        check_model(config)
    else:
        with pytest.raises(
            ConfigError, match="--data.boundaries fixed cuts documents, and this is a model of sent"
        ):
            check_model(config)
