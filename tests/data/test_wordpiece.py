import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tokenizers import BertWordPieceTokenizer, Tokenizer, models

from flaxnmt.config import TokenizerConfig
from flaxnmt.data import discourse
from flaxnmt.data.concatenation import Breaks, join
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import CLS, MASK, SEP, language_tag, load, train
from flaxnmt.data.vocabularies import Vocabularies, build_tokenizers
from flaxnmt.data.wordpiece import WordPiece
from flaxnmt.errors import DataError
from flaxnmt.symbols import BOS, EOS, PAD, UNK

ROOT = Path(__file__).parents[2]
ODD = [
    "Grüße aus Köln: Straße, Ärger, Öl und Übermut!",
    "Tôi yêu tiếng Việt, và đường phố Hà Nội rất đẹp.",
    "我今天很高兴，因为天气非常好。「全角」ＡＢＣ",
    "Emoji work too 😀👩‍👩‍👧 🇩🇪 ☕️, don't they?",
    "non-breaking\u00a0space, line\u2028separator, combining e\u0301 and é",
    "## a##b #1 ### (x)y [MASK] <s> <unk> </s> a▁b $5",
    "The dog sees the cat and the cat sees the dog.",
]
SYMBOLS = (MASK, CLS, SEP, "<delimiter>", language_tag("de"))
PIECES = ("this", "sentence", "can", "be", "token", "##ized", ".", "##s", "dog", "é", "e")
BERT = ("[PAD]", "[unused0]", "[UNK]", CLS, SEP, MASK, *PIECES)


@pytest.fixture(scope="module")
def lines():
    """English and German of the generated corpus."""
    documents = (item.document for item in discourse.generate("train", 60))
    return [text for document in documents for pair in document for text in (pair.source, pair.target)]


@pytest.fixture(scope="module")
def trained(lines):
    return train("wordpiece", lines, 600, symbols=SYMBOLS)


def write(path, pieces):
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def test_nothing_is_lost(lines, trained):
    assert trained.vocab_size == len(set(trained.pieces)) == 600
    assert trained.decode(trained.encode(lines)) == lines
    odd = train("wordpiece", ODD, 250)
    assert odd.decode(odd.encode(ODD)) == [line.replace("▁", " ") for line in ODD]
    assert odd.decode(odd.encode(["  the   dog ", "", " "])) == ["the dog", "", ""]


def test_special_ids_and_symbols_come_first_and_are_never_made_from_text(trained):
    assert trained.pieces[:9] == ("<pad>", "<unk>", "<s>", "</s>", *SYMBOLS)
    assert [trained.id(symbol) for symbol in SYMBOLS] == [4, 5, 6, 7, 8]
    text = " ".join(trained.pieces[:9])
    for written in (text, text.replace(" ", ""), f"the {text} dog"):
        assert not set(trained.encode([written])[0]) & {PAD, BOS, EOS, 4, 5, 6, 7, 8}
    with pytest.raises(DataError, match="no symbol '<2en>'"):
        trained.id("<2en>")
    with pytest.raises(DataError, match="'BREAK' would be made from text"):
        train("wordpiece", ODD, 200, symbols=("BREAK",))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_symbols_of_other_kinds(kind, lines):
    tokenizer = train(kind, lines, 400, symbols=SYMBOLS)
    assert tokenizer.pieces[4:9] == SYMBOLS
    assert not set(tokenizer.encode([" ".join(SYMBOLS)])[0]) & {4, 5, 6, 7, 8}
    assert tokenizer.decode([[tokenizer.id(symbol) for symbol in SYMBOLS]]) == [""]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "wordpiece"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_a_text_may_begin_with_a_language_tag(kind, lowercase, lines, tmp_path):
    tags = ("<2de>", "<2zh-Hans>")
    size = 90 if kind == "char" else 400
    plain = train(kind, lines, size, lowercase, symbols=tags)
    tokenizer = train(kind, [f"{tags[0]} {line}" for line in lines], size, lowercase, symbols=tags)
    assert tokenizer == plain, "a tag is no text"
    (dog,) = tokenizer.encode(["the old dog"])
    texts = ["<2de> the old dog", "<2zh-Hans>  the old dog", "<2zh-Hans>", "the old dog"]
    assert tokenizer.encode(texts) == [[4, *dog], [5, *dog], [5], dog]
    # Elsewhere, glued to a word, or of no symbol, it is text.
    others = tokenizer.encode(["the <2de> dog", "<2de>the dog", "<2fr> the dog", " <2de> the dog"])
    assert not any({4, 5} & set(ids) for ids in others)
    assert tokenizer.decode([[4, *dog]]) == ["the old dog"] and tokenizer.encode([]) == []
    for text in texts:
        ids, spans = tokenizer.encode_with_offsets(text)
        assert [ids] == tokenizer.encode([text]) and len(ids) == len(spans)
        tagged = ids[0] < 6
        assert not tagged or text[slice(*spans[0])] == text.split()[0]
        covered = "".join(text[start:end] for start, end in spans[tagged:])
        assert covered == text[tagged and len(text.split()[0]) :].replace(" ", "")
    assert tokenizer.controls == {PAD, UNK, BOS, EOS, 4, 5}
    tokenizer.save(tmp_path / f"m{tokenizer.suffix}")
    assert load(tmp_path / f"m{tokenizer.suffix}").encode(texts) == tokenizer.encode(texts)


def test_decoding_stops_at_eos_and_leaves_symbols_out(trained):
    dog, house = (trained.encode([text])[0] for text in ("dog", "house"))
    rows = [[BOS, 8, *dog, 4, EOS, *house, PAD], [EOS], [], [*dog, UNK, *house]]
    assert trained.decode(rows) == ["dog", "", "", "dog ⁇ house"]
    assert trained.decode(np.array([[*dog, EOS, PAD]], np.int32)) == ["dog"]


def test_a_word_that_cannot_be_cut_is_unknown_as_a_whole(trained):
    assert trained.encode(["☃ x☃x"])[0] == [UNK, UNK]


@pytest.mark.slow
def test_training_depends_on_nothing_but_its_text():
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 8))) for _ in range(400)]
    texts = [" ".join(draw.choices(words, k=8)) for _ in range(500)]
    code = (
        "import json, sys; from flaxnmt.data.tokenizers import train;"
        "print(train('wordpiece', json.load(sys.stdin), 300).hash)"
    )
    hashes = {train("wordpiece", order, 300).hash for order in (texts, texts[::-1])}
    for threads in ("1", "4"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        hashes.add(run.stdout.strip())
        assert run.stderr == ""
    assert len(hashes) == 1
    assert train("wordpiece", texts, 301).hash not in hashes


def test_vocabularies_that_the_text_does_not_allow(lines):
    with pytest.raises(DataError, match="largest possible is ([0-9]+)") as error:
        train("wordpiece", ODD, 5000)
    largest = int(str(error.value).split()[-1])
    assert train("wordpiece", ODD, largest).vocab_size == largest
    with pytest.raises(DataError, match="needs more than ([0-9]+)") as error:
        train("wordpiece", ODD, 50)
    least = int(str(error.value).partition("more than ")[2].partition(",")[0])
    assert train("wordpiece", ODD, least + 1).vocab_size == least + 1
    with pytest.raises(DataError, match="needs more than"):
        train("wordpiece", ODD, least)
    assert "##☃" in train("wordpiece", [*lines, "☃"], 300).pieces
    assert "☃" not in "".join(train("wordpiece", [*lines, "☃"], 300, character_coverage=0.999).pieces)


def test_lowercase_is_kept_in_the_file(tmp_path):
    tokenizer = train("wordpiece", ["Der Hund GROSS"] * 3, 32, lowercase=True)
    tokenizer.save(tmp_path / "m.json")
    loaded = load(tmp_path / "m.json")
    assert loaded == tokenizer and loaded.hash == tokenizer.hash and loaded.lowercase
    assert loaded.decode(loaded.encode(["DER hund Gross"])) == ["der hund gross"]
    assert not train("wordpiece", ["Der Hund GROSS"] * 3, 32).lowercase


def test_what_is_saved_is_read_by_the_library_with_the_same_ids(trained, lines, tmp_path):
    trained.save(tmp_path / "m.json")
    other = Tokenizer.from_file(str(tmp_path / "m.json"))
    assert [other.encode(line).ids for line in lines[:50]] == trained.encode(lines[:50])
    assert load(tmp_path / "m.json", symbols=(*SYMBOLS, "<more>")).pieces[4:10] == (*SYMBOLS, "<more>")


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_vocabulary_of_a_bert_cuts_as_the_library_does(lines, tmp_path, lowercase):
    other = BertWordPieceTokenizer(lowercase=lowercase)
    other.train_from_iterator([*lines, *ODD[:4]], vocab_size=700, show_progress=False)
    other.save_model(str(tmp_path))
    ours = load(tmp_path / "vocab.txt", lowercase=lowercase, symbols=(CLS, SEP, MASK))
    for text in (*lines, *ODD, "control\x07 tab\t x \ufffd"):
        if not any(name in text for name in other.get_vocab() if name.startswith("[")):
            expected = other.encode(text, add_special_tokens=False)
            assert [ours.pieces[index] for index in ours.encode([text])[0]] == expected.tokens
            assert ours.decode(ours.encode([text])) == [other.decode(expected.ids, skip_special_tokens=False)]
    assert ours.lowercase == lowercase


def test_ids_of_a_bert_become_ours_and_the_others_keep_their_order(tmp_path):
    tokenizer = load(write(tmp_path / "vocab.txt", BERT), symbols=(MASK, "<2de>"))
    assert tokenizer.pieces == (
        *("[PAD]", "[UNK]", "<s>", "</s>", MASK, "<2de>", "[unused0]", CLS, SEP),
        *PIECES,
    )
    assert isinstance(tokenizer, WordPiece) and tokenizer.id(CLS) == 7
    ids = tokenizer.encode(["this dogs [MASK] [CLS] <2de>"])[0]
    assert not set(ids) & {0, 2, 3, 4, 5, 6, 7, 8}
    assert tokenizer.decode([[7, *tokenizer.encode(["this dogs"])[0], 8, EOS]]) == ["this dogs"]
    assert tokenizer.decode(tokenizer.encode(["é"])) == ["é"]
    uncased = load(tmp_path / "vocab.txt", lowercase=True)
    assert uncased.lowercase and uncased.decode(uncased.encode(["THIS É"])) == ["this e"]


def test_the_slides_count_of_pieces(tmp_path):
    """Five words, 31 characters, and six pieces before the full stop."""
    text = "This sentence can be tokenized."
    words, characters = (train(kind, [text], 100) for kind in ("word", "char"))
    assert len(words.encode([text])[0]) == 5
    # The space before the first word is one more.
    assert len(text) == 31 == len(characters.encode([text])[0]) - 1
    pieces = load(write(tmp_path / "vocab.txt", BERT), lowercase=True)
    cut = [pieces.pieces[index] for index in pieces.encode([text])[0]]
    assert cut == ["this", "sentence", "can", "be", "token", "##ized", "."]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "char", "word"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_offsets_are_the_characters_of_each_token(kind, lowercase):
    texts = [*ODD[:5], ODD[6], "  The   dog İİ Straße ", ""]
    tokenizer = train(kind, texts, 170 if kind != "bpe" else 110, lowercase=lowercase)
    for text in texts:
        ids, spans = tokenizer.encode_with_offsets(text)
        assert [ids] == tokenizer.encode([text])
        assert len(spans) == len(ids)
        covered = {place for start, end in spans for place in range(start, end)}
        inside = {place for place, character in enumerate(text) if character != " "}
        assert {place for place in inside if not text[place].isspace()} <= covered <= inside
        assert all(a <= b for a, b in spans) and spans == sorted(spans)
        assert all(text[a:b] == text[a:b].strip() for a, b in spans)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "[UNK]\na\na\n", "vocab.txt:3: the piece 'a' again"),
        ("vocab.txt", "[UNK]\n\na\n", "vocab.txt:2: no piece"),
        ("vocab.txt", "a\nb\n", r"vocab.txt: no \[UNK\] in it"),
        ("t.json", "{}", "t.json is not the file of a tokenizer"),
        ("t.json", "the\nred\n", "t.json is not the file of a tokenizer"),
        ("t.json", Tokenizer(models.BPE()).to_str(), "t.json holds a BPE model"),
    ],
)
def test_files_that_are_no_vocabulary(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as error:
        load(tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shared", [True, False])
def test_vocabularies_of_a_run(tmp_path, lines, shared):
    config = TokenizerConfig("wordpiece", 250, shared=shared, symbols=SYMBOLS)
    documents = [Document(((Sentence(a, b),),)) for a, b in zip(lines[::2], lines[1::2])]
    built = build_tokenizers(config, iter(documents), symbols=("<brk>", MASK))
    assert built.shared == shared and built.target.id("<brk>") == 4 and built.source.id("<2de>") == 9
    built.save(tmp_path / "tokenizer")
    names = ["shared.json"] if shared else ["source.json", "target.json"]
    assert sorted(path.name for path in (tmp_path / "tokenizer").iterdir()) == names
    loaded = Vocabularies.load(tmp_path / "tokenizer")
    assert loaded == built and loaded.hash == built.hash
    model = str(tmp_path / "tokenizer" / names[0])
    again = build_tokenizers(TokenizerConfig(source_model=model, symbols=SYMBOLS), iter(()))
    assert sorted(again.source.pieces) == sorted(built.source.pieces) and again.source.id(MASK) == 4


def test_breaks_between_sentences(lines):
    breaks = Breaks(train("wordpiece", lines, 300, symbols=("<brk>",)))
    line = join(lines[:3])
    assert breaks.encode([line])[0].count(4) == 2 and breaks.decode(breaks.encode([line])) == [line]
