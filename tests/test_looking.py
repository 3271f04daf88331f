"""What is shown of a model's attention: shapes, sums and meaning for every kind, and a picture that is not empty."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but

from flaxnmt import looking
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.models.config import BudgetConfig, DocumentConfig
from flaxnmt.run import make_model, make_translator
from flaxnmt.sharding import unbox
from flaxnmt.symbols import EOS

PARAGRAPHS = (("one two three", "four"), ("five six", "seven eight nine ten", "one"))
DOCUMENT = Document(tuple(tuple(Sentence(text) for text in part) for part in PARAGRAPHS))
LENGTHS = np.asarray([4, 2, 3, 5, 2])
N, M, H, T, LEVELS = 5, 5, 4, 2, 4
NO_GATES = BudgetConfig()


@pytest.fixture(scope="module")
def translator(opened):
    """Of a model of documents with random parameters, for the kinds of its layers."""

    def translator(*kinds, scan=False, budget=NO_GATES, boundaries="true", **changes):
        document = DocumentConfig(layers=kinds, t=T, **changes)
        encoder = dataclasses.replace(opened.config.model.encoder, layers=2)
        changes = {"document": document, "encoder": encoder, "scan": scan, "budget": budget}
        data = dataclasses.replace(opened.config.data, boundaries=boundaries)
        config = opened.config.replace(model=dataclasses.replace(opened.config.model, **changes), data=data)
        module = make_model(config, opened.vocabularies)
        ids = jnp.ones((1, 2, 4), jnp.int32)
        shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"])
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 4, jnp.float32), shapes)
        return make_translator(config, module, params, opened.vocabularies)

    return translator


@pytest.fixture(scope="module")
def look(translator):
    """Attention of such a model to the document."""
    return lambda *kinds, **options: looking.of_document(translator(*kinds, **options), DOCUMENT)


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


GATED = BudgetConfig(encoder=(1.0, 0.5), decoder=(1.0, 0.5), blocks=2)
PAIRS = [DOCUMENT, Document((tuple(Sentence(text) for text in ("two", "ten nine eight")),))]
OUTPUTS = [["one", "two three", "four five six", "seven", "eight nine"], ["ten one", "two"]]
OPTIONS = [
    {"decoder_context": True},
    {"cross": "document"},
    {"sentence_ends": False},
    {"boundaries": "jittered"},
]


@pytest.mark.parametrize("options", slow_but(OPTIONS[:1], OPTIONS))
def test_gates_of_documents_are_counted_over_all_their_sentences(translator, options):
    """As those of each document by itself, without padding between its sentences."""
    made = translator("context", "conditional", budget=GATED, **options)
    sums = {}
    for document, outputs in zip(PAIRS, OUTPUTS, strict=True):
        for place, on, count, mixed in gates_of_one(made, document, outputs):
            old = sums.get(place, (0, 0, []))
            sums[place] = (old[0] + on, old[1] + count, old[2] + mixed)
    found = looking.of_gates(made, PAIRS, OUTPUTS, 0.5)
    assert len(found) == len(sums) >= 15 and len({row["on"] for row in found}) > 8
    for row in found:
        on, count, mixed = sums[tuple(row[name] for name in ("stack", "layer", "block", "gate", "part"))]
        assert row["on"] == pytest.approx(on / count) and row["mixed"] == pytest.approx(np.mean(mixed)), row


def gates_of_one(made, document, outputs):
    """(place, gates that are open, tokens, for each sentence whether it has both) of each gate."""
    vocabularies, model = made.vocabularies, made.model
    sides = [sentence.source for sentence in document], outputs
    rows = [[[*line, EOS] for line in vocabularies.source.encode(list(lines))] for lines in sides]
    width = max(len(row) for side in rows for row in side)
    source, target = (
        np.asarray([[row + [0] * (width - len(row)) for row in side]], np.int32) for side in rows
    )
    paragraph = np.repeat(np.arange(len(document.paragraphs)), [len(part) for part in document.paragraphs])
    batch = made.boundaries({"source": source, "paragraph": paragraph[None].astype(np.int32)})
    target, batch = jnp.asarray(target), jax.tree.map(jnp.asarray, batch)

    def capture(model):
        around = {"paragraphs": batch["paragraph"], "places": batch.get("places")}
        encoded, encoder = model.encode(batch["source"], capture=True, budget=jnp.asarray([3]), **around)
        return encoder.gates | model.decode(encoded, target, capture=True)[1].gates

    gates = jax.jit(lambda params: model.apply({"params": params}, method=capture))(made.params)
    ends = model.config.document.sentence_ends
    tokens = {
        name: np.asarray((ids != 0) & (ends | (ids != EOS)))
        for name, ids in (("read", batch["source"]), ("true", source))
    } | {"target": np.asarray(target != 0)}
    for stack, layers in gates.items():
        for number, layer in enumerate(layers):
            for block, kinds in layer.items():
                for kind, values in kinds.items():
                    of_target = stack == "decoder" and (kind == "rows" or block == "attention")
                    real = tokens["target" if of_target else "read" if stack == "encoder" else "true"]
                    for part in range(values.shape[-1]):
                        on = np.asarray(values[..., part], bool)
                        assert not (on & ~real).any()
                        # Boundaries at other places may leave a unit without words.
                        lines = [set(row[there]) for row, there in zip(on[0], real[0]) if there.any()]
                        place = (stack, number, block, kind, part)
                        yield place, on.sum(), real.sum(), [len(values) == 2 for values in lines]


def test_gates_are_counted_over_documents_and_their_translations(translator):
    made = translator("context", budget=GATED)
    with pytest.raises(DataError, match="2 documents and 1 translations"):
        looking.of_gates(made, PAIRS, OUTPUTS[:1])
    with pytest.raises(DataError, match="document 2: 2 sentences and 1 translations"):
        looking.of_gates(made, PAIRS, [OUTPUTS[0], OUTPUTS[1][:1]])
    with pytest.raises(ConfigError, match="this is a model of documents: give Documents and"):
        looking.of_gates(made, ["one two"], ["one"])
