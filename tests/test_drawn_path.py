"""The picture of a search in the tree shows what each level keeps, one node at a time."""

import numpy as np
import pytest
from small_models import float32, random_params, small_model

from flaxnmt import looking
from flaxnmt.config import TokenizerConfig
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.vocabularies import build_tokenizers
from flaxnmt.models.config import DocumentConfig
from flaxnmt.translation.documents import DocumentTranslator

TEXTS = ("one two three", "four", "five six", "six three one", "two")
SIZES = (1, 2, 3, 5)
"""Nodes of each level from the root; the last of five, and of three, is an only child."""
T, H = 2, 2


@pytest.fixture(scope="module")
def attention():
    document = Document((tuple(map(Sentence, TEXTS)),))
    words = Document(((Sentence(" ".join(TEXTS), " ".join(TEXTS)),),))
    vocabularies = build_tokenizers(TokenizerConfig(kind="word", vocab_size=40), [words])
    size = vocabularies.source.vocab_size
    model = small_model(size, size, document=DocumentConfig(layers=("hierarchical",), t=T))
    params = float32(random_params(model, seed=1))
    translator = DocumentTranslator(model, params, vocabularies, max_sentences=8, overlap=0)
    return looking.of_document(translator, document)


def levels(values):
    return np.split(values, np.cumsum(SIZES)[:-1])


def searched(score):
    """The (level, place) of what TraverseTree keeps of the scores of nodes by level, best T a level."""
    kept, level = [(0, 0)], [0]
    for number, size in enumerate(SIZES[1:], 1):
        children = [child for node in level for child in (2 * node, 2 * node + 1) if child < size]
        level = sorted(children, key=lambda child: -score[number][child])[:T]
        kept += [(number, node) for node in level]
    return set(kept)


def place(level, node):
    if level == len(SIZES) - 1:
        return node + 1.0
    children = [child for child in (2 * node, 2 * node + 1) if child < SIZES[level + 1]]
    return sum(place(level + 1, child) for child in children) / len(children)


def test_nodes_that_are_kept_are_those_of_a_slow_search(attention):
    found = attention["layers"][0]["attention"]
    dead_ends = 0
    for head, sentence in np.ndindex(H, len(TEXTS)):
        for word in range(len(attention["sentences"][sentence])):
            at = head, sentence, word
            expected = searched(levels(found["tree_score"][at]))
            kept = {(k, i) for k, on in enumerate(levels(found["tree_kept"][at])) for i in np.flatnonzero(on)}
            assert kept == expected
            path = {(k, i) for k, nodes in enumerate(found["path_node"][at].T) for i in nodes.tolist()}
            assert path <= kept
            dead_ends += len(kept - path)
            for nodes, scores in zip(found["path_node"][at], found["path_score"][at]):
                own = [levels(found["tree_score"][at])[k][i] for k, i in enumerate(nodes)]
                np.testing.assert_allclose(own, scores, atol=1e-5)
    # Some node that a level keeps has no descendant that the next one does.
    assert dead_ends


@pytest.mark.parametrize("head", [None, 1])
def test_the_picture_shows_what_is_kept(attention, head):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    sentence, word = 3, 1
    figure = looking.draw_path(attention, sentence, word, head=head)
    heads = range(H) if head is None else [head]
    axes = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in axes] == [f"head {number + 1}" for number in heads]
    assert figure.get_suptitle() == "What 'three' of sentence 4 keeps of the tree"
    copies = {(3, 4), (2, 2)}
    for number, axis in zip(heads, axes, strict=True):
        score = levels(attention["layers"][0]["attention"]["tree_score"][number, sentence, word])
        kept, drawn = searched(score), {}
        dots = {dot.get_label(): dot for dot in axis.collections}
        for label in ("kept", "kept copies"):
            points = dots[label].get_offsets().tolist()
            values = dots[label].get_array().tolist()
            drawn[label] = {(x, level, round(value, 4)) for (x, level), value in zip(points, values)}
        expected = {node: (place(*node), node[0], round(float(score[node[0]][node[1]]), 4)) for node in kept}
        assert drawn["kept copies"] == {expected[node] for node in kept & copies}
        assert drawn["kept"] == {expected[node] for node in kept - copies}
        assert len(dots["not kept"].get_offsets()) == sum(SIZES) - len(kept)
        texts = [text.get_text() for text in axis.texts]
        assert sorted(texts) == sorted(f"{score[k][i]:+.1f}" for k, i in kept)
        # A line to every node but the root, and the strong ones lead to what is kept.
        ends = [line.get_xydata()[1].tolist() for line in axis.lines if line.get_linewidth() > 1]
        assert sorted(ends) == sorted([place(*node), node[0]] for node in kept if node[0])
        assert len(axis.lines) == sum(SIZES) - 1
    pyplot.close(figure)


@pytest.mark.parametrize("layer", [{"attention": {"weights": np.zeros((1, 1, 1, 1))}}, {}])
def test_a_layer_without_a_tree_has_no_path(attention, layer):
    """One that attends otherwise, and one that does not attend at all."""
    plain = {**attention, "layers": [layer]}
    with pytest.raises(ValueError, match="layer -1 searches no tree"):
        looking.draw_path(plain, 0, 0)
    with pytest.raises(ValueError, match="layer -1 selects no sentences"):
        looking.draw_selection(plain, 0)
