"""What is shown of a model's attention: shapes, sums and meaning for every kind, and a picture that is not empty."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt import looking
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import DocumentConfig
from flaxnmt.run import make_model, make_translator
from flaxnmt.sharding import unbox

PARAGRAPHS = (("one two three", "four"), ("five six", "seven eight nine ten", "one"))
DOCUMENT = Document(tuple(tuple(Sentence(text) for text in part) for part in PARAGRAPHS))
LENGTHS = np.asarray([4, 2, 3, 5, 2])
N, M, H, T, LEVELS = 5, 5, 4, 2, 4


@pytest.fixture(scope="module")
def look(opened):
    """Attention of a model with random parameters to the document, for the kinds of its layers."""

    def look(*kinds, scan=False, **changes):
        document = DocumentConfig(layers=kinds, t=T, **changes)
        encoder = dataclasses.replace(opened.config.model.encoder, layers=2)
        model = dataclasses.replace(opened.config.model, document=document, encoder=encoder, scan=scan)
        config = opened.config.replace(model=model)
        module = make_model(config, opened.vocabularies)
        ids = jnp.ones((1, 2, 4), jnp.int32)
        shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"])
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 4, jnp.float32), shapes)
        return looking.of_document(make_translator(config, module, params, opened.vocabularies), DOCUMENT)

    return look


@pytest.fixture(scope="module")
def selected(look):
    return look("sentence", "hierarchical")


def assert_distributions(weights, visible):
    """Rows of words sum to one over what they see, and to nothing over padding."""
    visible = np.broadcast_to(visible, weights.shape)
    assert np.abs(weights[~visible]).max(initial=0) < 1e-6
    np.testing.assert_allclose(weights.sum(-1)[visible.any(-1)], 1, atol=1e-5)


WORDS = np.arange(M) < LENGTHS[:, None]


def test_words_and_layers_are_named(selected):
    assert selected["sentences"][0] == ["\u2581one", "\u2581two", "\u2581three", "</s>"]
    assert [len(words) for words in selected["sentences"]] == LENGTHS.tolist()
    assert [list(layer) for layer in selected["layers"]] == [["attention"], ["attention"]]


def test_weights_of_each_kind_sum_to_one(look):
    first, second = look("sentence", "document")["layers"]
    assert first["attention"]["weights"].shape == (N, H, M, M)
    assert_distributions(first["attention"]["weights"], WORDS[:, None, None])
    assert second["attention"]["weights"].shape == (H, N * M, N * M)
    assert_distributions(second["attention"]["weights"], WORDS.ravel())
    first, second = look("context", "heads")["layers"]
    assert first["attention"]["weights"].shape == (N, H, M, M)
    assert first["context"]["weights"].shape == (H, N * M, N)
    assert_distributions(first["context"]["weights"], np.ones(N, bool))
    assert second["attention"]["weights"].shape == (N, H, M, M)
    assert second["attention"]["context_weights"].shape == (2, N * M, N)
    assert_distributions(second["attention"]["weights"], WORDS[:, None, None])
    assert_distributions(second["attention"]["context_weights"], np.ones(N, bool))


def assert_selections(found, t):
    index, relevance, valid = (found[name] for name in ("index", "relevance", "valid"))
    assert index.shape == relevance.shape == valid.shape == (H, N, M, t) and valid[:, WORDS].all()
    index, relevance = index[:, WORDS], relevance[:, WORDS]
    assert index.min() >= 0 and index.max() < N
    assert all(len(set(row)) == t for row in index.reshape(-1, t).tolist())
    assert len(np.unique(index)) > 2
    return index, relevance


def test_selected_sentences_come_best_first(look):
    _, layer = look("sentence", "conditional")["layers"]
    _, relevance = assert_selections(layer["attention"], T)
    assert (np.diff(relevance) <= 0).all() and np.ptp(relevance) > 0.01


def test_scores_on_the_path_sum_to_the_relevance(selected):
    found = selected["layers"][1]["attention"]
    index, relevance = assert_selections(found, T)
    node, score = (found[name][:, WORDS] for name in ("path_node", "path_score"))
    assert node.shape == score.shape == (*index.shape, LEVELS)
    np.testing.assert_allclose(score.sum(-1), relevance, atol=1e-5)
    assert (node[..., 0] == 0).all() and (node[..., -1] == index).all()
    # Every node is the parent of the next.
    assert (node[..., 1:] // 2 == node[..., :-1]).all()


def test_own_sentence_is_kept_beside_the_others(look):
    (layer, _) = look("conditional", always_keep_own=True)["layers"]
    index, _ = assert_selections(layer["attention"], T + 1)
    own = np.repeat(np.arange(N), LENGTHS)
    assert (index == own[:, None]).any(-1).all()


@pytest.mark.slow
def test_scanned_layers_look_alike(look):
    found = look("hierarchical", scan=True)["layers"]
    assert len(found) == 2 and found[0]["attention"]["path_node"].shape == (H, N, M, T, LEVELS)
    first, second = (layer["attention"]["relevance"] for layer in found)
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.slow
def test_the_wrong_input_is_one_line(opened, opened_documents):
    with pytest.raises(ConfigError, match="a model of sentences: ask for the attention of a line"):
        opened.attention(DOCUMENT)
    with pytest.raises(ConfigError, match="a model of documents: ask for the attention of a Document"):
        opened_documents.attention("one two", "one two")
    found = opened_documents.attention(DOCUMENT)
    assert found["sentences"][3][0] == "\u2581seven" and len(found["layers"]) == 1


@pytest.mark.parametrize(("head", "panels"), [(None, H), (2, 1)])
def test_the_picture_shows_the_selected_sentences(selected, head, panels):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    figure = looking.draw_selection(selected, sentence=3, layer=1, head=head)
    axes = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in axes] == [
        f"head {n}" for n in ((1, 2, 3, 4) if head is None else (3,))
    ]
    for number, axis in zip(range(H) if head is None else [head], axes, strict=True):
        values = axis.collections[-1].get_array()
        shown = [set(np.flatnonzero(~row.mask)) for row in values]
        found = selected["layers"][1]["attention"]["index"][number, 3]
        assert shown == [set(row) for row in found[:5].tolist()]
    assert [label.get_text() for label in axes[0].get_yticklabels()] == [
        *"seven eight nine ten".split(),
        "</s>",
    ]
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    assert (np.ptp(pixels, axis=-1) > 40).mean() > 0.02
    pyplot.close(figure)
    with pytest.raises(ValueError, match="layer 0 selects no sentences"):
        looking.draw_selection(selected, sentence=0, layer=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "branches, layers",
    [pytest.param(("lstm:1",), 0, marks=pytest.mark.slow), (("attention:2", "fnet:1+attention:1"), 3)],
)
def test_encoders_have_weights_of_the_layers_that_attend(opened, branches, layers):
    encoder = dataclasses.replace(opened.config.model.encoder, branches=branches)
    config = opened.config.replace(model=dataclasses.replace(opened.config.model, encoder=encoder))
    module = make_model(config, opened.vocabularies)
    ids = jnp.ones((1, 4), jnp.int32)
    params = unbox(jax.jit(module.init)(jax.random.key(0), ids, ids)["params"])
    translator = make_translator(config, module, params, opened.vocabularies)
    found = looking.of_sentence(translator, "one two three", "four")
    words = len(found["source"])
    assert found["encoder"].shape == (layers, H, words, words)
    assert_distributions(found["encoder"], True)
