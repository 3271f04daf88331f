"""An encoder alone asked for masked words, classes and embeddings, with parameters made by hand or at random."""

import json
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from made_runs import SENTENCES, make_run, vocabulary
from small_models import small_encoder

from flaxnmt.data.tokenizers import CLS, MASK, SEP
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.gates.block import GatedBlock
from flaxnmt.language.reader import Reader
from flaxnmt.models.config import BudgetConfig, EncoderConfig, MultiHead

TEXTS = ["The dog sees the cat.", "", "Perhaps the old dog.", f"The {MASK} sees the cat."]
CLOSE = dict(rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "masked", small_encoder().config)


WANTED = {2: ("▁cat", "▁dog"), 6: ("▁garden", "▁old")}
"""For some places the pieces that the run `told` says there, best first."""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run whose output at a place depends on the place alone: layers of zeros, and pieces along the axes."""
    tokenizer = vocabulary()

    def params(made):
        for path, leaf in _named(made):
            leaf[...] = path.endswith("scale")
        for matrix in (made["table"]["table"], made["head"]["transform"]["kernel"]):
            matrix[...] = np.eye(*matrix.shape)
        positions = next(leaf for path, leaf in _named(made) if "positions" in path)
        for place, (first, second) in WANTED.items():
            positions[place, tokenizer.pieces.index(first)] = 10
            positions[place, tokenizer.pieces.index(second)] = 8
        return made

    config = small_encoder(d_model=tokenizer.vocab_size).config
    return make_run(tmp_path_factory.mktemp("runs") / "told", config, params)


def _named(tree, path=""):
    for name, branch in tree.items():
        if isinstance(branch, dict):
            yield from _named(branch, f"{path}/{name}")
        else:
            yield f"{path}/{name}", branch


def rows(*ids):
    return jnp.asarray(ids, jnp.int32)


def test_masks_are_filled_with_what_the_parameters_say(told):
    # [CLS] and one piece stand before the first mask, [CLS] and five before the second.
    text = f"The {MASK} sees the old {MASK}."
    assert told.reader.read(text).ids.index(told.vocabularies.source.id(MASK)) == 2
    first, second = told.fill_mask([text], top=3)[0]
    assert [guess.piece for guess in first[:2]] == list(WANTED[2])
    assert [guess.piece for guess in second[:2]] == list(WANTED[6])
    assert (
        first[0].text == f"The cat sees the old {MASK}." and second[1].text == f"The {MASK} sees the old old."
    )
    assert first[0].probability > first[1].probability > first[2].probability > 0


def test_a_guess_changes_nothing_else_of_the_text(told):
    """Spaces, and characters that the vocabulary does not know, stay as they are written."""
    ((first, _),) = told.fill_mask([f"Ж  {MASK}, “the”  dog: {MASK}"], top=1)
    assert first[0].text == f"Ж  {first[0].piece.lstrip('▁')}, “the”  dog: {MASK}"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_piece_within_a_word_goes_on_with_it(masked, kind):
    reader = make_reader(masked, vocabulary(kind))
    pieces = reader.tokenizer.pieces
    inside = next(
        piece
        for piece in pieces[8:]
        if len(piece) > 1 and (piece.startswith("##") if kind == "wordpiece" else piece.isalpha())
    )
    word = next(piece for piece in pieces if piece.startswith("▁") and len(piece) > 2)
    for piece, expected in ((inside, f"The cat{inside.lstrip('#')}"), (word, f"The cat {word[1:]}")):
        for text in (f"The cat {MASK} .", f"The cat{MASK} ."):
            ids = reader.read(text).ids
            place = ids.index(reader.tokenizer.id(MASK))
            assert reader._text(text, ids, place, pieces.index(piece)) == f"{expected} ."


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_letters_right_behind_a_mask_are_within_its_word(masked, kind):
    reader = make_reader(masked, vocabulary(kind))
    pieces, mask = reader.tokenizer.pieces, reader.tokenizer.id(MASK)

    def behind(text):
        found = reader.read(text)
        place = found.ids.index(mask) + 1
        # It stands for the first of the letters.
        assert text[slice(*found.spans[place])].strip()[:1] in text.split(MASK)[1].strip()[0]
        return pieces[found.ids[place]]

    for rest in ("n", "ese", "en"):
        within, apart = behind(f"The {MASK}{rest} sees"), behind(f"The {MASK} {rest} sees")
        if kind == "wordpiece":
            assert within.startswith("##") and not apart.startswith("##")
        else:
            assert not within.startswith("▁") and apart.startswith("▁")


def test_guesses_are_pieces_of_text_and_their_probabilities_sum_to_one(masked):
    pieces = masked.vocabularies.source.pieces
    ((guesses,),) = masked.fill_mask([TEXTS[-1]], top=len(pieces))
    own = guesses
    assert sum(guess.probability for guess in own) == pytest.approx(1)
    assert {guess.piece for guess in own} == set(pieces[7:])
    tokens = rows([*masked.reader.read(TEXTS[-1]).ids, masked.reader.last])
    logits = np.float64(masked.model.apply({"params": masked.reader.params}, tokens))[0, 2, 7:]
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose([guess.probability for guess in own], np.sort(expected)[::-1], rtol=1e-4)


def test_a_mask_takes_the_place_of_a_word_and_of_nothing_beside_it(masked):
    for kind in ("bpe", "unigram", "wordpiece"):
        reader = make_reader(masked, vocabulary(kind))
        text = "The cat, the dog and the cat."
        whole = reader.read(text)
        for word in ("cat", "dog"):
            at = text.rindex(word)
            found = reader.read(text[:at] + MASK + text[at + len(word) :])
            inside = [i for i, (_, end) in enumerate(whole.spans) if at < end <= at + len(word)]
            # Of some words a piece is the space alone, which has no characters of its own.
            first = inside[0] - (whole.spans[inside[0] - 1] in ((at, at), (at - 1, at - 1)))
            expected = [*whole.ids[:first], reader.tokenizer.id(MASK), *whole.ids[inside[-1] + 1 :]]
            assert found.ids == expected
    # A vocabulary of words has no piece for a mark behind one.
    reader = make_reader(masked, vocabulary("word"))
    assert len(reader.read(f"The {MASK}.").ids) == 4


def make_reader(run, tokenizer):
    return type(run.reader)(run.model, run.params, tokenizer)


def test_spans_are_the_characters_of_each_piece(masked):
    text = f"  The {MASK}, and  the{MASK} old house."
    ids, spans = masked.reader.read(text)
    pieces = masked.vocabularies.source.pieces
    assert spans[0] == (0, 0) and ids[0] == masked.vocabularies.source.id(CLS)
    for index, (start, end) in zip(ids[1:], spans[1:]):
        assert text[start:end] == pieces[index].lstrip("▁")


def test_a_text_without_a_mask_and_another_head_are_one_line(masked, classes):
    with pytest.raises(DataError, match=r"no \[MASK\] in 'The cat.': write it"):
        masked.fill_mask([f"The {MASK}", "The cat."])
    with pytest.raises(DataError, match=r"a \[MASK\] behind token 32 of 'The cat"):
        masked.fill_mask(["The cat. " * 600 + MASK])
    with pytest.raises(ConfigError, match="'classes': masked tokens are said by a run with"):
        classes.fill_mask([f"The {MASK}"])
    with pytest.raises(ConfigError, match="'masked': texts are classified by a run with"):
        masked.classify(["The cat."])
    with pytest.raises(ConfigError, match="pool 'last': mean or first"):
        masked.embed(["The cat."], pool="last")
    assert masked.fill_mask([]) == []


def test_a_first_token_that_knows_no_text_is_no_embedding_of_one(tmp_path):
    encoder = EncoderConfig(attention=MultiHead(2), feed_forward=24, branches=("lstm:1", "convs2s:1"))
    run = make_run(tmp_path / "run", small_encoder(encoder=encoder, norm="pre").config)
    with pytest.raises(ConfigError, match="pool 'first': no layer of this model looks at the whole text"):
        run.embed(["The cat."], pool="first")


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_an_embedding_is_that_of_the_text_alone(masked, pool):
    found = masked.embed(TEXTS, pool)
    assert found.shape == (len(TEXTS), 16) and masked.embed([]).shape == (0, 16)
    tokens = rows([*masked.reader.read(TEXTS[2]).ids, masked.reader.last])
    hidden = masked.model.apply({"params": masked.reader.params}, tokens, method="encode")[0][0]
    np.testing.assert_allclose(found[2], hidden.mean(0) if pool == "mean" else hidden[0], **CLOSE)


@pytest.mark.slow
def test_neither_batch_nor_order_changes_an_answer(masked, monkeypatch):
    embedded = masked.embed(TEXTS)
    np.testing.assert_allclose(masked.embed(TEXTS[::-1])[::-1], embedded, **CLOSE)
    layers = masked.contextual(TEXTS)
    # Two texts a batch in place of all.
    monkeypatch.setattr("flaxnmt.language.contextual.BATCH", 2)
    np.testing.assert_allclose(masked.embed(TEXTS), embedded, **CLOSE)
    for text, one, other in zip(TEXTS, layers, masked.contextual(TEXTS), strict=True):
        assert one.pieces == other.pieces and len(one.pieces) == one.layers.shape[1] == len(one.spans), text
        np.testing.assert_allclose(one.layers, other.layers, **CLOSE)


def test_contextual_embeddings_are_the_layers_of_the_model(masked):
    (found,) = masked.contextual([SENTENCES[0]])
    tokens = rows([*masked.reader.read(SENTENCES[0]).ids, masked.reader.last])
    layers = masked.model.apply({"params": masked.reader.params}, tokens, method="layers")
    assert found.layers.shape == (3, len(found.pieces), 16)
    np.testing.assert_allclose(found.layers, layers[:, 0], **CLOSE)
    assert found.pieces[0] == CLS and found.pieces[-1] == SEP
    text = "".join(found.pieces[1:-1]).replace("▁", " ").strip()
    assert text == SENTENCES[0]


@pytest.mark.slow
def test_long_texts_are_cut_with_a_warning(masked, tmp_path, caplog):
    # Learned positions are as many as the model has; of sinusoids there is no end.
    endless = make_run(tmp_path / "run", small_encoder(positions="sinusoidal").config)
    for run, longest in ((masked, 32), (endless, 1024)):
        caplog.clear()
        (found,) = run.contextual(["The cat. " * 600])
        assert len(found.pieces) == len(found.spans) == found.layers.shape[1] == longest
        assert f"1 of 1 lines exceed {longest}" in caplog.text and found.pieces[-1] == SEP


def test_no_text_is_read_beyond_the_learned_positions(masked, caplog):
    text = "The cat sees the old garden. " * 9
    for ask, what in (
        (masked.embed, "lines"),
        (lambda texts: masked.fill_mask([f"{MASK} {texts[0]}"]), "lines"),
        (lambda texts: masked.attention(texts[0]), "texts"),
    ):
        caplog.clear()
        found = ask([text])
        assert f"1 of 1 {what} exceed 32 " in caplog.text
    assert len(found["pieces"]) == 32 and found["attention"].shape[-2:] == (32, 32)
    # What stands behind the cut is not read.
    np.testing.assert_array_equal(masked.embed([text]), masked.embed([text + "Dogs."]))


@pytest.mark.slow
def test_a_budget_is_kept_to_and_what_gates_decide_against_is_left_out(tmp_path, monkeypatch):
    encoder = EncoderConfig(layers=1, attention=MultiHead(2), feed_forward=24)
    budget = BudgetConfig(encoder=(1.0, 0.5), blocks=2)
    run = make_run(tmp_path / "run", small_encoder(encoder=encoder, budget=budget, norm="pre").config)
    text = TEXTS[-1]
    tokens = rows([*run.reader.read(text).ids, run.reader.last])
    apply = partial(run.model.apply, {"params": run.reader.params}, tokens, budget=jnp.asarray([1]))
    hidden, layers, logits = apply(method="encode")[0][0], apply(method="layers")[:, 0], apply()[0, 2, 7:]
    skips, plain = [], GatedBlock._skips

    def spy(block, sublayer, context):
        skips.append(context.skip)
        return plain(block, sublayer, context)

    monkeypatch.setattr(GatedBlock, "_skips", spy)
    np.testing.assert_allclose(run.embed([text], budget=0.5)[0], hidden.mean(0), **CLOSE)
    assert np.abs(run.embed([text])[0] - hidden.mean(0)).max() > 1e-3
    np.testing.assert_allclose(run.contextual([text], budget=0.5)[0].layers, layers, **CLOSE)
    ((guesses,),) = run.fill_mask([text], top=1, budget=0.5)
    assert guesses[0].piece == run.vocabularies.source.pieces[7 + int(logits.argmax())]
    assert guesses[0].probability == pytest.approx(
        float(np.exp(logits.max()) / np.exp(logits).sum()), rel=1e-4
    )
    assert skips and all(skips)
    skips.clear()
    masking = Reader(run.model, run.reader.params, run.vocabularies.source, skip=False)
    np.testing.assert_allclose(masking.embed([text], budget=0.5)[0], hidden.mean(0), **CLOSE)
    assert skips and not any(skips)


def test_a_budget_that_there_is_not_is_one_line(masked):
    for ask in (
        masked.embed,
        masked.contextual,
        lambda texts, budget: masked.fill_mask([MASK], budget=budget),
    ):
        with pytest.raises(ConfigError, match="this model has no budgets"):
            ask(["The cat."], budget=0.5)


def test_encoders_side_by_side_have_no_order_of_layers(tmp_path):
    encoder = EncoderConfig(attention=MultiHead(2), feed_forward=24, branches=("attention:1", "fnet:1"))
    run = make_run(tmp_path / "run", small_encoder(encoder=encoder, norm="pre").config)
    with pytest.raises(ConfigError, match="encoders side by side"):
        run.contextual(["The cat."])
    assert run.attention("The cat.")["attention"].shape[0] == 1


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "classes"
    run = make_run(folder, small_encoder(head="classes", classes=3).config)
    (folder / "labels.json").write_text(json.dumps(["no", "maybe", "yes"]))
    return run
