"""What runs of models of one stack say when they are opened: completions, perplexity, embeddings, attention."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_runs import SENTENCES, log_softmax, make_run
from small_models import small_decoder, small_encoder, small_model

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import CLS, MASK, SEP
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.models.config import BudgetConfig, DecoderConfig, MultiHead
from flaxnmt.symbols import BOS, EOS
from flaxnmt.translation.lines import Text
from flaxnmt.translation.search import Sampling

TEXTS = ["The dog sees the cat.", "", "Perhaps the old dog."]
CLOSE = dict(rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of random parameters of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    models = {
        "texts": small_decoder(task="language", window=5),
        "prefix": small_decoder(prefix="bidirectional"),
        "encoder": small_encoder(),
        "both": small_model(),
    }
    return {name: make_run(folder / name, model.config) for name, model in models.items()}


@pytest.fixture(scope="module")
def texts(made):
    return made["texts"]


@pytest.fixture(scope="module")
def language(texts):
    """Hidden states [L, D] and logits [L, V] of ids; all have one shape, since no symbol sees what follows it."""

    @jax.jit
    def run(params, tokens):
        hidden, _ = texts.model.apply({"params": params}, tokens, method="language")
        return hidden[0], texts.model.apply({"params": params}, hidden, method="logits")[0]

    def of(ids):
        tokens = jnp.zeros((1, 24), jnp.int32).at[0, : len(ids)].set(jnp.asarray(ids))
        return (np.asarray(found)[: len(ids)] for found in run(texts.reader.params, tokens))

    return of


def read(run, text):
    """As a model of texts reads it."""
    return [BOS, *run.vocabularies.source.encode([text])[0], EOS]


def test_perplexity_is_that_of_the_softmax_over_the_logits_of_the_language_model(texts, language):
    losses = []
    for text in TEXTS:
        ids = read(texts, text)
        _, logits = language(ids)
        losses += [-row[token] for row, token in zip(log_softmax(logits), ids[1:])]
    assert texts.perplexity(TEXTS) == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert texts.perplexity(TEXTS[::-1]) == pytest.approx(texts.perplexity(TEXTS), rel=1e-6)
    with pytest.raises(DataError, match="no texts"):
        texts.perplexity([])


@pytest.mark.slow
def test_perplexity_and_embeddings_keep_to_a_budget(tmp_path):
    budget = BudgetConfig(decoder=(1.0, 0.5), blocks=2)
    decoder = DecoderConfig(layers=1, attention=MultiHead(2), feed_forward=24)
    run = make_run(tmp_path / "run", small_decoder(task="language", budget=budget, decoder=decoder).config)
    ids = read(run, TEXTS[0])
    tokens = jnp.asarray([ids], jnp.int32)
    apply = partial(run.model.apply, {"params": run.reader.params})
    hidden, _ = apply(tokens, budget=jnp.asarray([1]), method="language")
    log_p = log_softmax(apply(hidden, method="logits")[0])
    expected = math.exp(-np.mean([row[token] for row, token in zip(log_p, ids[1:])]))
    assert run.perplexity(TEXTS[:1], budget=0.5) == pytest.approx(expected, rel=1e-4)
    assert abs(run.perplexity(TEXTS[:1]) - expected) > 1e-3
    (found,) = run.contextual(TEXTS[:1], budget=0.5)
    layers = apply(tokens, budget=jnp.asarray([1]), method="layers")
    # What ends a text is said, and never read.
    np.testing.assert_allclose(found.layers, layers[:, 0, :-1], **CLOSE)
    assert len(found.pieces) == len(found.spans) == len(ids) - 1
    with pytest.raises(ConfigError, match="not trained for the budget 0.3"):
        run.perplexity(TEXTS, budget=0.3)


def test_a_greedy_completion_takes_the_likeliest_symbol_each_time(texts, language):
    (found,) = texts.complete(["The dog"], max_length=7, beam_size=1)
    ids = texts.vocabularies.source.encode(["The dog"])[0]
    # Neither padding nor bos is ever written, and the last of the seven is the end.
    while len(ids) < 6:
        _, logits = language([BOS, *ids])
        logits = logits[-1].copy()
        logits[[0, BOS]] = -np.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == EOS:
            break
    assert found == texts.vocabularies.source.decode([ids])[0] and found.startswith("The dog")


def test_a_completion_leaves_what_it_is_given_as_it_is(texts):
    given = ["Ж  The dog ", "the “old”"]
    # What is unknown is read as such, and comes back as it was written.
    found = texts.complete(given, max_length=14, beam_size=1)
    assert all(text.startswith(start.rstrip()) for text, start in zip(found, given, strict=True))
    assert any(len(text) > len(start) for text, start in zip(found, given))
    with pytest.raises(ConfigError, match="completed once: leave n_best out"):
        texts.complete(given, n_best=2)


@pytest.mark.slow
def test_nothing_is_written_beyond_the_learned_positions(tmp_path):
    """Parameters of zeros, with which every output is as long as it may be."""

    def params(made):
        return jax.tree.map(np.zeros_like, made)

    config = dict(positions="learned", max_positions=16)
    texts = make_run(tmp_path / "texts", small_decoder(task="language", **config).config, params)
    outputs = texts._writer.outputs(
        Text.unbroken([""]), ["The dog"], max_length=64, min_length=64, beam_size=1
    )
    # With the end symbol sixteen.
    assert len(outputs[0][0].tokens) == 15
    source = "The dog"
    for name, model, taken in (("one", small_decoder, 2), ("two", small_model, 0)):
        run = make_run(tmp_path / name, model(**config).config, params)
        found = run.hypotheses([source], max_length=64, min_length=64, beam_size=1)[0][0]
        assert len(run.vocabularies.source.encode([source])[0]) == 2
        assert len(found.tokens) + 1 == 16 - taken


@pytest.mark.slow
def test_completions_begin_as_given_in_any_order(texts):
    begun = ["The dog", "Perhaps", "A cat never", ""]
    options = dict(max_length=12, sampling=Sampling(seed=3))
    found = texts.complete(begun, **options)
    assert all(text.startswith(start) for text, start in zip(found, begun, strict=True))
    assert texts.complete(begun, **options) == found
    greedy = texts.complete(begun, max_length=12, beam_size=1)
    assert texts.complete(begun[::-1], max_length=12, beam_size=1)[::-1] == greedy
    assert texts.complete([], max_length=12) == []


def test_layers_of_a_text_end_with_what_the_logits_are_made_of(texts, language):
    found = texts.contextual(TEXTS)
    for text, (pieces, spans, layers) in zip(TEXTS, found, strict=True):
        # What ends a text is said, and never read.
        ids = read(texts, text)[:-1]
        hidden, _ = language(ids)
        assert pieces == tuple(texts.vocabularies.source.pieces[i] for i in ids)
        assert layers.shape == (3, len(pieces), 16) and len(spans) == len(pieces)
        assert "".join(text[start:end] for start, end in spans) == text.replace(" ", "")
        norm = texts.params["decoder"]["norm"]
        last = np.float64(layers[-1])
        last = (last - last.mean(-1, keepdims=True)) / np.sqrt(last.var(-1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(last * norm["scale"] + norm["bias"], hidden, rtol=1e-4, atol=1e-4)


def test_an_embedding_depends_on_what_stands_before_it_alone(texts):
    first, second = texts.contextual(["The dog sees the cat.", "The dog sees the old."])
    same = next(i for i, (a, b) in enumerate(zip(first.pieces, second.pieces)) if a != b)
    np.testing.assert_allclose(first.layers[:, :same], second.layers[:, :same], **CLOSE)
    assert np.abs(first.layers[:, same] - second.layers[:, same]).max() > 1e-2


@pytest.mark.slow
def test_a_translating_decoder_reads_a_text_as_a_source_and_the_delimiter(made):
    run = made["prefix"]
    found = run.contextual(TEXTS)
    for text, (pieces, _, layers) in zip(TEXTS, found, strict=True):
        ids = run.vocabularies.source.encode([text])[0]
        assert pieces == (*(run.vocabularies.source.pieces[i] for i in ids), "<s>")
        source = jnp.asarray([[*ids, EOS]], jnp.int32)
        both = run.model.apply(
            {"params": run.reader.params}, jnp.full((1, 1), EOS, jnp.int32), source, method="layers"
        )
        # The eos of the source is no input.
        np.testing.assert_allclose(layers, np.delete(both[:, 0], len(ids), axis=1), **CLOSE)


def assert_distributions(weights):
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_maps_of_an_encoder_and_of_a_decoder_of_texts(made):
    text = "The dog sees the cat."
    found = made["encoder"].attention(text)
    length = len(found["pieces"])
    assert found["pieces"][0] == CLS and found["attention"].shape == (2, 2, length, length)
    assert_distributions(found["attention"])
    assert found["attention"].min() > 0
    found = made["texts"].attention(text)
    length = len(found["pieces"])
    assert found["pieces"][0] == "<s>" and found["attention"].shape == (2, 2, length, length)
    assert_distributions(found["attention"])
    rows, columns = np.indices((length, length))
    # Itself and four before it: its window is five.
    seen = (columns <= rows) & (rows - columns < 5)
    assert (found["attention"][:, :, seen] > 0).all() and (found["attention"][:, :, ~seen] == 0).all()
    masked = made["encoder"].attention(f"The {MASK}.")["pieces"]
    assert masked == [CLS, "▁The", MASK, ".", SEP]


@pytest.mark.slow
def test_the_map_of_a_translating_decoder_is_over_source_delimiter_and_target(made):
    run = made["prefix"]
    found = run.attention("The dog sees", "the cat.")
    pieces, place = found["pieces"], found["delimiter"]
    assert pieces[place] == "<s>" and pieces[:place] == ["▁The", "▁dog", "▁sees"]
    assert "".join(pieces[place + 1 :]).replace("▁", " ").strip() == "the cat."
    weights = found["attention"]
    assert weights.shape == (2, 2, len(pieces), len(pieces))
    assert_distributions(weights)
    rows, columns = np.indices(weights.shape[-2:])
    seen = (columns <= rows) | ((rows < place) & (columns < place))
    assert (weights[:, :, seen] > 0).all() and (weights[:, :, ~seen] == 0).all()
    own = run.translate(["The dog"])[0]
    np.testing.assert_array_equal(
        run.attention("The dog")["attention"], run.attention("The dog", own)["attention"]
    )


@pytest.mark.slow
def test_gates_of_a_decoder_alone_are_counted_over_source_delimiter_and_target(tmp_path):
    budget = BudgetConfig(decoder=(1.0, 0.5), blocks=2)
    run = make_run(tmp_path / "run", small_decoder(budget=budget).config)
    ids = [
        jnp.asarray([[*run.vocabularies.source.encode([text])[0], EOS]], jnp.int32)
        for text in ("The dog sees", "the")
    ]

    def capture(model, source, target):
        return model.decode(model.encode(source)[0], target, capture=True)[1].gates["decoder"]

    layers = jax.jit(lambda params: run.model.apply({"params": params}, *ids, method=capture))(run.params)
    rows = run.gates(["The dog sees"], ["the"])
    # Every symbol but the eos of the source, and the delimiter.
    count = ids[0].size - 1 + ids[1].size
    for row in rows:
        found = layers[row["layer"]][row["block"]][row["gate"]][0, :, row["part"]]
        assert row["on"] == pytest.approx(float(found.sum()) / count) and 0 <= row["on"] <= 1


@pytest.mark.parametrize("kind", ["encoder", pytest.param("texts", marks=pytest.mark.slow)])
def test_gates_and_maps_of_texts_are_those_of_a_budget(tmp_path, kind):
    levels = (1.0, 0.5)
    if kind == "encoder":
        model = small_encoder(budget=BudgetConfig(encoder=levels, blocks=2), norm="pre")
    else:
        model = small_decoder(budget=BudgetConfig(decoder=levels, blocks=2), task="language")
    run = make_run(tmp_path / "run", model.config)
    stack, method = ("encoder", "encode") if kind == "encoder" else ("decoder", "language")
    look = jax.jit(partial(run.model.apply, capture=True, method=method))
    texts, tokens, found = ["The dog sees", "the cat."], 0, {}
    for text in texts:
        # A decoder alone says what ends a text, and never reads it.
        end = [run.reader.last] if kind == "encoder" else []
        ids = jnp.asarray([[*run.reader.read(text).ids, *end]], jnp.int32)
        aux = look({"params": run.params}, ids, budget=jnp.ones(1, jnp.int32))[1]
        tokens += ids.size
        for number, layer in enumerate(aux.gates[stack]):
            for block, gates in layer.items():
                for name, values in gates.items():
                    for part, on in enumerate(np.asarray(values)[0].T):
                        found.setdefault((number, block, name, part), []).append(on)
    rows = run.gates(texts, budget=0.5)
    assert len(rows) == len(found) and {row["stack"] for row in rows} == {stack}
    for row in rows:
        on = found[tuple(row[key] for key in ("layer", "block", "gate", "part"))]
        assert row["on"] == pytest.approx(sum(line.sum() for line in on) / tokens)
        assert row["mixed"] == np.mean([len(set(line)) == 2 for line in on])
    # More texts than a batch holds, of which the last is not whole.
    for row, many in zip(rows, run.gates(texts * 40, budget=0.5), strict=True):
        assert many == pytest.approx(row)
    maps = [np.asarray(layer["attention"])[0] for layer in aux.maps[stack]]
    np.testing.assert_allclose(run.attention(texts[-1], budget=0.5)["attention"], maps, **CLOSE)
    assert np.abs(run.attention(texts[-1])["attention"] - maps).max() > 1e-3
    for ask, error, message in (
        (partial(run.gates, []), DataError, "no texts"),
        (partial(run.gates, "a b"), ConfigError, "give a list of texts"),
        (partial(run.gates, texts, budget=0.3), ConfigError, "not trained for the budget 0.3"),
        (partial(run.attention, texts[0], budget=0.3), ConfigError, "not trained for the budget 0.3"),
    ):
        with pytest.raises(error, match=message):
            ask()


def test_one_text_is_no_list_of_texts(made):
    for kind, ask in (
        ("encoder", lambda run: run.embed("a b")),
        ("encoder", lambda run: run.fill_mask(f"a {MASK}")),
        ("encoder", lambda run: run.contextual("a b")),
        ("texts", lambda run: run.contextual("a b")),
        ("texts", lambda run: run.complete("a b")),
        ("texts", lambda run: run.perplexity("a b")),
    ):
        with pytest.raises(ConfigError, match="is one text: give a list of texts"):
            ask(made[kind])


def test_what_a_kind_does_not_have_is_one_line(made):
    document = Document(((Sentence(SENTENCES[0]),),))
    refusals = {
        "encoder": [
            (lambda run: run.translate(["a"]), "an encoder alone: it writes and scores no text"),
            (lambda run: run.complete(["a"]), "no model of texts"),
            (lambda run: run.perplexity(["a"]), "no model of texts"),
            (lambda run: run.attention("a", "b"), "does not translate: ask for the attention of one text"),
            (lambda run: run.attention(document), "a model of one stack: ask for the attention of a text"),
            (lambda run: run.gates(["a"]), "this model has no budgets"),
            (lambda run: run.gates(["a"], ["b"]), "does not translate: ask for the gates of texts alone"),
        ],
        "texts": [
            (lambda run: run.translate(["a"]), "a model of texts, which translates nothing"),
            (lambda run: run.score(["a"], ["b"]), "a model of texts, which translates nothing"),
            (lambda run: run.complete(["a b c d e"], max_length=2), "--max-length 2 has no room behind"),
            (lambda run: run.fill_mask(["a"]), "no encoder alone: it fills no masks"),
            (lambda run: run.embed(["a"]), "no encoder alone"),
            (lambda run: run.classify(["a"]), "no encoder alone"),
            (lambda run: run.attention("a", "b"), "does not translate"),
            (lambda run: run.attention(document), "a model of one stack"),
        ],
        "prefix": [
            (lambda run: run.complete(["a"]), "no model of texts"),
            (lambda run: run.gates(["a"]), "translates: give the translations of the lines, too"),
        ],
        "both": [
            (lambda run: run.contextual(["a"]), "an encoder with a decoder: texts are read by"),
            (lambda run: run.fill_mask(["a"]), "no encoder alone"),
            (lambda run: run.perplexity(["a"]), "no model of texts"),
        ],
    }
    for kind, cases in refusals.items():
        for ask, message in cases:
            with pytest.raises(ConfigError, match=message):
                ask(made[kind])
