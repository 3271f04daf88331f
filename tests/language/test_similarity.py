"""Self-similarity and its baseline against plain loops over pairs in float64."""

import itertools
import re

import numpy as np
import pytest

from flaxnmt.errors import DataError
from flaxnmt.language.contextual import Contextual
from flaxnmt.language.similarity import anisotropy, self_similarity, similarities, unit, word_vectors

LAYERS, D = 3, 5
TEXTS = ["the dog sees the dog", "the dog's bone, the cat", "a cat", "?!", "a cat", "the dog-house"]


def cosine(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


class Pieces:
    """Pieces of up to three letters, with embeddings that are a function of the piece, its place and its text."""

    def contextual(self, texts):
        return list(map(self.read, texts))

    def read(self, text):
        found = list(re.finditer(r"\w{1,3}|[^\w\s]", text))
        draw = np.random.default_rng(list(text.encode()))
        layers = draw.normal(size=(LAYERS, len(found) + 2, D)).astype(np.float32) + 0.5
        spans = [(0, 0), *(match.span() for match in found), (0, 0)]
        return Contextual(("<s>", *(match[0] for match in found), "</s>"), tuple(spans), layers)


def occurrences(text):
    """(word, its embeddings [layers, D]) by hand."""
    found = Pieces().read(text)
    for match in re.finditer(r"\w+(?:['-]\w+)*", text):
        inside = [
            i for i, (start, end) in enumerate(found.spans) if start < match.end() and end > match.start()
        ]
        yield match[0], np.mean([np.float64(found.layers[:, i]) for i in inside], axis=0)


def test_self_similarity_is_the_mean_cosine_over_all_pairs():
    vectors = np.random.default_rng(0).normal(size=(LAYERS, 7, D)) + 1
    expected = [
        sum(cosine(layer[j], layer[k]) for j in range(7) for k in range(7) if j != k) / (7**2 - 7)
        for layer in vectors
    ]
    np.testing.assert_allclose(self_similarity(vectors), expected, rtol=1e-12)
    np.testing.assert_allclose(self_similarity(vectors * np.arange(1, 8)[:, None]), expected, rtol=1e-12)


def test_the_same_embedding_in_every_context_has_one_and_opposite_ones_have_minus_one():
    same = np.tile(np.random.default_rng(1).normal(size=D), (4, 1))
    np.testing.assert_allclose(self_similarity(same), 1, rtol=1e-12)
    np.testing.assert_allclose(self_similarity(np.stack([same[0], -2 * same[0]])), -1, rtol=1e-12)


def test_the_baseline_is_the_mean_over_words_of_every_two_texts():
    draw = np.random.default_rng(2)
    texts = [draw.normal(size=(count, D)) + 0.3 for count in (3, 1, 4)]
    pairs = [
        np.mean([cosine(a, b) for a in first for b in second])
        for first, second in itertools.combinations(texts, 2)
    ]
    means = np.stack([unit(text).mean(0) for text in texts])
    np.testing.assert_allclose(anisotropy(means), np.mean(pairs), rtol=1e-12)


def test_a_word_of_several_pieces_is_their_mean_and_symbols_belong_to_none():
    text = TEXTS[1]
    words, vectors = word_vectors(text, Pieces().read(text))
    expected = dict(occurrences(text))
    assert words == ["the", "dog's", "bone", "the", "cat"]
    np.testing.assert_allclose(vectors[:, 1], expected["dog's"], rtol=1e-12)
    layers = np.float64(Pieces().read(text).layers)
    np.testing.assert_allclose(vectors[:, 2], layers[:, 5:7].mean(1), rtol=1e-12)
    assert word_vectors("?!", Pieces().read("?!"))[1].shape == (LAYERS, 0, D)


def test_similarities_of_a_corpus_equal_a_double_loop_over_its_occurrences():
    found = similarities(Pieces(), TEXTS, ["dog", "the", "cat"])
    # The text that comes twice is one context, and the one without a word is none.
    texts = [list(occurrences(text)) for text in ("the dog sees the dog", TEXTS[1], "a cat", TEXTS[5])]
    assert found.words == ("dog", "the", "cat") and found.counts == (2, 5, 2)
    for word, own in zip(found.words, found.own):
        there = [vector for text in texts for name, vector in text if name == word]
        for layer in range(LAYERS):
            cosines = [cosine(a[layer], b[layer]) for a, b in itertools.permutations(there, 2)]
            np.testing.assert_allclose(own[layer], np.mean(cosines), rtol=1e-10)
    for layer in range(LAYERS):
        means = [
            np.mean([cosine(a[layer], b[layer]) for _, a in first for _, b in second])
            for first, second in itertools.combinations(texts, 2)
        ]
        np.testing.assert_allclose(found.baseline[layer], np.mean(means), rtol=1e-10)
    np.testing.assert_array_equal(found.adjusted, found.own - found.baseline)


def test_no_chunk_of_texts_changes_anything(monkeypatch):
    whole = similarities(Pieces(), TEXTS, ["cat"])
    monkeypatch.setattr("flaxnmt.language.similarity.TEXTS", 2)
    parts = similarities(Pieces(), TEXTS, ["cat"])
    np.testing.assert_array_equal(parts.own, whole.own)
    np.testing.assert_array_equal(parts.baseline, whole.baseline)


def test_a_word_that_is_not_there_twice_is_one_line():
    for word, count in (("Dog", 0), ("bone", 1)):
        with pytest.raises(DataError, match=f"'{word}' is {count} times in 5 different texts"):
            similarities(Pieces(), TEXTS, ["the", word])
    with pytest.raises(DataError, match="1 texts with words"):
        similarities(Pieces(), ["the the", "?!"], ["the"])
