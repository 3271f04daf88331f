"""Sentences with those before them: as lines, as ids, and decoded in order with the model's own outputs."""

import pytest

from flaxnmt.data.concatenation import (
    BREAK,
    SEPARATOR,
    Breaks,
    concatenate,
    last_sentence,
    wave,
)
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import train
from flaxnmt.errors import DataError
from flaxnmt.symbols import EOS

WORDS = ("one two three four", "eins zwei drei vier")


@pytest.fixture(scope="module")
def tokenizer():
    return Breaks(train("word", WORDS, 20, symbols=(BREAK,)))


def lines(text):
    return text.replace("|", SEPARATOR)


def document():
    pairs = [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")]
    sentences = [Sentence(*pair, line) for line, pair in enumerate(pairs, 7)]
    return Document((tuple(sentences[:1]), tuple(sentences[1:])), "id", "section")


@pytest.mark.parametrize(
    ("previous", "target_context", "sources", "targets"),
    [
        (0, True, "a b c d", "A B C D"),
        (1, False, "a a|b b|c c|d", "A B C D"),
        (1, True, "a a|b b|c c|d", "A A|B B|C C|D"),
        (2, True, "a a|b a|b|c b|c|d", "A A|B A|B|C B|C|D"),
        (9, False, "a a|b a|b|c a|b|c|d", "A B C D"),
    ],
)
def test_sentences_with_those_before_them(previous, target_context, sources, targets):
    found = concatenate(document(), previous, target_context)
    assert [len(paragraph) for paragraph in found.paragraphs] == [1, 3]
    assert (found.id, found.section) == ("id", "section")
    assert [sentence.source for sentence in found] == lines(sources).split(" ")
    assert [sentence.target for sentence in found] == lines(targets).split(" ")
    assert [sentence.line for sentence in found] == [7, 8, 9, 10]
    assert [last_sentence(sentence.source) for sentence in found] == ["a", "b", "c", "d"]


def test_a_source_alone_has_no_target():
    found = concatenate(Document(((Sentence("a"), Sentence("b")),)), 1, target_context=True)
    assert found.sentences == (Sentence("a"), Sentence(lines("a|b")))


def test_a_separator_in_the_text_is_no_break():
    found = concatenate(Document(((Sentence(lines("a|b"), "A"), Sentence("c", "C")),)), 1)
    assert [sentence.source for sentence in found] == ["a b", lines("a b|c")]


def test_ids_and_back(tokenizer):
    texts = [lines(text) for text in ("one two|three", "one", "|four", "one||two", "", "one|")]
    ids = tokenizer.encode(texts)
    symbol = tokenizer.tokenizer.id(BREAK)
    plain = tokenizer.tokenizer.encode(["one two", "three"])
    assert ids[0] == [*plain[0], symbol, *plain[1]]
    assert [row.count(symbol) for row in ids] == [text.count(SEPARATOR) for text in texts]
    assert ids[-1] == [*tokenizer.tokenizer.encode(["one"])[0], symbol]
    assert tokenizer.decode(ids) == texts
    assert tokenizer.decode([[*row, EOS, symbol, 5, 5] for row in ids]) == texts
    assert tokenizer.pieces[symbol] == BREAK and tokenizer.vocab_size == len(tokenizer.pieces)
    assert symbol not in tokenizer.encode([BREAK])[0]


def test_a_vocabulary_without_the_symbol_is_refused():
    with pytest.raises(DataError, match="no symbol '<brk>'"):
        Breaks(train("word", WORDS, 20)).encode(["one"])


def test_a_wave():
    documents, outputs = [["a", "b", "c"], ["d"], ["e", "f", "g", "h"]], [["A", "B"], ["D"], ["E", "F"]]
    assert wave(documents, outputs, 0, 1) == ([0, 1, 2], ["a", "d", "e"], ["", "", ""])
    found = wave(documents, outputs, 2, 1)
    assert found == ([0, 2], [lines("b|c"), lines("f|g")], [lines("B|"), lines("F|")])
    assert wave(documents, outputs, 2, 2).prefixes == [lines("A|B|"), lines("E|F|")]
