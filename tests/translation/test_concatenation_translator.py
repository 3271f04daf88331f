"""Sentences after the sentence before them: what the model reads, forces and gives back, with random parameters."""

import numpy as np
import pytest
from small_models import float32, random_params, small_model

from flaxnmt.config import DecodingConfig, TokenizerConfig
from flaxnmt.data.concatenation import BREAK, SEPARATOR, Breaks, last_sentence, wave
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.vocabularies import Vocabularies, build_tokenizers
from flaxnmt.errors import ConfigError
from flaxnmt.translation.concatenation import ConcatenationTranslator
from flaxnmt.translation.translator import Translator

WORDS = "one two three four five six".split()
TEXTS = [["one two", "three", "four five six"], ["six"], ["two two", "five"]]
LINES = [*TEXTS[0], "", *TEXTS[1], "", "", *TEXTS[2]]


@pytest.fixture(scope="module")
def parts():
    sentence = Sentence(" ".join(WORDS), " ".join(WORDS))
    made = build_tokenizers(TokenizerConfig(kind="word", vocab_size=40), [Document(((sentence,),))], (BREAK,))
    size = made.source.vocab_size
    model = small_model(size, size)
    # Scores that differ by more than rounding.
    params = float32(random_params(model, seed=3))
    vocabularies = Vocabularies(Breaks(made.source), Breaks(made.target))
    return model, params, vocabularies, DecodingConfig(beam_size=2, batch_size=8)


@pytest.fixture(scope="module")
def plain(parts):
    """A translator of lines, which may be lines of several sentences."""
    return Translator(*parts)


@pytest.fixture(
    scope="module", params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["2-to-1", "2-to-2"]
)
def translator(request, parts):
    return ConcatenationTranslator(*parts, previous=1, target_context=request.param)


def documents(texts):
    return [Document((tuple(Sentence(text, text) for text in part),)) for part in texts]


def test_each_line_is_read_after_the_line_before(translator, plain):
    if translator.target_context:
        # A sentence of each document in turn.
        expected = [[] for _ in TEXTS]
        for index in range(max(map(len, TEXTS))):
            members, lines, prefixes = wave(TEXTS, expected, index, 1)
            for number, output in zip(members, plain.translate(lines, prefixes=prefixes), strict=True):
                expected[number].append(last_sentence(output))
    else:
        lines = [
            [f"{SEPARATOR}".join(part[max(i - 1, 0) : i + 1]) for i in range(len(part))] for part in TEXTS
        ]
        expected = [
            [text.rpartition(SEPARATOR)[2].strip() for text in plain.translate(part)] for part in lines
        ]
    assert translator.translate_documents(documents(TEXTS)) == expected
    first, second, third = expected
    assert translator.translate(LINES) == [*first, "", *second, "", "", *third]


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted", [((1,), (), (0, 1)), pytest.param(((0, 2), (0,), ()), marks=pytest.mark.slow)], ids=str
)
def test_sentences_that_are_wanted_are_translated_as_all_are(translator, wanted):
    whole = translator.translate_documents(documents(TEXTS))
    found = translator.translate_documents(documents(TEXTS), wanted=wanted)
    assert found == [[texts[i] for i in indices] for texts, indices in zip(whole, wanted, strict=True)]


@pytest.mark.slow
def test_a_model_of_lines_translates_the_wanted_lines(plain):
    whole = plain.translate_documents(documents(TEXTS))
    assert plain.translate_documents(documents(TEXTS), wanted=((2,), (0,), ())) == [
        whole[0][2:],
        whole[1],
        [],
    ]


@pytest.mark.slow
def test_outputs_hold_no_break_even_where_the_model_writes_them(translator, plain):
    lines = [f"{text}{SEPARATOR}{text}" for text in WORDS]
    assert any(SEPARATOR in output.text for found in plain.hypotheses(lines, n_best=2) for output in found)
    for found in translator.hypotheses(LINES, n_best=2):
        for output in found:
            assert SEPARATOR not in output.text and BREAK not in output.text and BREAK not in output.tokens


def test_scores_are_those_of_the_last_sentence(translator, plain):
    found = translator.score(LINES, LINES)
    source = "three" + SEPARATOR + "four five six"
    (whole,) = plain.score([source], [source if translator.target_context else "four five six"])
    assert found[2].tokens == ("\u2581four", "\u2581five", "\u2581six", "</s>")
    np.testing.assert_allclose(found[2].token_log_probs, whole.token_log_probs[-4:], atol=1e-4)
    assert found[2].log_prob == pytest.approx(sum(whole.token_log_probs[-4:]), abs=1e-4)
    assert found[3].log_prob == 0 and found[3].tokens == ()


def test_a_judged_sentence_scores_as_in_its_whole_document(translator):
    whole = documents(TEXTS)
    expected = [score.log_prob for found in translator.score_documents(whole) for score in found]
    judged = [(document, index) for document in whole for index in range(len(document))]
    assert translator.log_probs(judged) == pytest.approx(expected, abs=1e-4)


def test_forced_beginnings_are_the_models_own(translator):
    with pytest.raises(ConfigError, match="forces its own prefixes: leave --prefix out"):
        translator.hypotheses(["one"], prefixes=["two"])


def test_what_is_too_long_is_cut_from_its_context(translator):
    """A junk line of any length before a sentence leaves that sentence to be read and scored."""
    junk = "one " * 1100
    ((_, cut),) = translator.score_documents(documents([[junk, "three"]]))
    ((after,),) = translator.score_documents(documents([["three"]]))
    assert cut.tokens == after.tokens == ("\u2581three", "</s>")
    assert cut.token_log_probs == pytest.approx(after.token_log_probs, abs=1e-4)


def test_the_longest_output_is_counted_behind_its_context(translator):
    """Were it not, a sentence after a long one would have no room, and be the one before it again."""
    found = translator.translate_documents(documents(TEXTS), max_length=2)
    assert all(len(text.split()) < 2 for texts in found for text in texts)


@pytest.mark.slow
def test_the_shortest_output_is_counted_behind_its_context(translator):
    least = translator.hypotheses(LINES, min_length=4, max_length=6)
    assert all(len(outputs[0].tokens) >= 3 for line, outputs in zip(LINES, least, strict=True) if line)
