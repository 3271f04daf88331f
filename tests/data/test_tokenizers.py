import gzip
import io
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from flaxnmt.config import TokenizerConfig
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.sentencepiece import SentencePiece
from flaxnmt.data.tokenizers import sample, train
from flaxnmt.data.vocabularies import Vocabularies, build_tokenizers
from flaxnmt.errors import ConfigError, DataError, RunError
from flaxnmt.symbols import BOS, EOS, PAD, UNK

ROOT = Path(__file__).parents[2]
SHARED_DATA = ROOT / "../shared/data"
TEXTS = [
    "Grüße aus Köln: Straße, Ärger, Öl und Übermut!",
    "Tôi yêu tiếng Việt, và đường phố Hà Nội rất đẹp.",
    "我今天很高兴，因为天气非常好。「全角」ＡＢＣ",
    "Emoji work too 😀👩‍👩‍👧 🇩🇪 ☕️, don't they?",
    "non-breaking\u00a0space, line\u2028separator, combining e\u0301 and é",
    "The dog sees the cat and the cat sees the dog.",
] * 20
WORDS = [
    f"{a} {b} {c}" for a in ("a", "the") for b in ("red", "blue") for c in ("dog", "cat", "bird", "fish")
] * 5


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_round_trip(kind):
    tokenizer = train(kind, TEXTS, {"bpe": 200, "unigram": 113}.get(kind, 5000))
    assert tokenizer.decode(tokenizer.encode(TEXTS)) == TEXTS


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("corpus", ["multi30k_en_de/dev.de.gz", "en_vi_news/dev.vi.gz"])
def test_round_trip_of_a_real_corpus(kind, corpus):
    path = SHARED_DATA / corpus
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [" ".join(line.split()) for line in file][:500]
    tokenizer = train(kind, lines, 600)
    assert tokenizer.vocab_size == 600 or kind == "char"
    assert tokenizer.decode(tokenizer.encode(lines)) == lines


def test_spaces_at_the_ends_and_runs_of_spaces_go():
    tokenizer = train("bpe", WORDS, 30)
    assert tokenizer.decode(tokenizer.encode(["  the red   dog ", "the\u2581red dog", "", "  "])) == [
        "the red dog",
        "the red dog",
        "",
        "",
    ]


def test_special_ids_and_symbols_come_first():
    tokenizer = train("unigram", WORDS, 24, symbols=("<break>", "<budget 1>"))
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.pieces[:6] == ("<pad>", "<unk>", "<s>", "</s>", "<break>", "<budget 1>")
    assert tokenizer.id("<break>") == 4
    with pytest.raises(DataError, match="no symbol '<other>'"):
        tokenizer.id("<other>")


def test_symbols_are_not_made_from_text():
    tokenizer = train("bpe", [*WORDS, "a < b > c ake r"], 40, symbols=("<break>",))
    (ids,) = tokenizer.encode(["a <break> </s> <pad>"])
    assert not {PAD, BOS, EOS, 4} & set(ids)


def test_encoding_adds_no_ends_and_decoding_stops_at_eos():
    tokenizer = train("word", WORDS, 100, symbols=("<break>",))
    red, dog = tokenizer.encode(["red dog"])[0]
    assert tokenizer.decode([[BOS, red, EOS, dog, PAD], [PAD, 4, dog], [EOS], []]) == ["red", "dog", "", ""]
    assert tokenizer.decode(np.array([[red, dog, EOS, PAD], [dog, EOS, PAD, PAD]], np.int32)) == [
        "red dog",
        "dog",
    ]


def test_unknown_words():
    tokenizer = train("word", WORDS, 100)
    assert tokenizer.encode(["red zebra"])[0][1] == UNK


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_too_large_a_vocabulary_names_the_largest(kind):
    with pytest.raises(DataError, match="largest possible is ([0-9]+)") as error:
        train(kind, WORDS, 5000)
    assert "\n" not in str(error.value)
    largest = int(str(error.value).split()[-1])
    assert train(kind, WORDS, largest).vocab_size == largest


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_too_small_a_vocabulary_for_the_characters(kind):
    with pytest.raises(DataError, match="needs more than [0-9]+"):
        train(kind, TEXTS, 20)


def test_vocabulary_size_is_an_upper_bound_for_words_and_characters():
    assert train("word", WORDS, 5000).vocab_size == 4 + 8
    assert train("word", WORDS, 8).vocab_size == 8
    assert train("char", WORDS, 5000).vocab_size == 4 + len({*"".join(WORDS)})


def test_nothing_to_train_on():
    with pytest.raises(DataError, match="no text"):
        train("bpe", ["", "  "], 100)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_is_deterministic(kind):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 8))) for _ in range(400)]
    texts = [" ".join(draw.choices(words, k=8)) for _ in range(2000)]
    models = {train(kind, texts, 300).hash for _ in range(3)}
    assert len(models) == 1
    assert train(kind, texts, 301).hash not in models


@pytest.mark.slow
def test_training_prints_nothing():
    code = (
        "from flaxnmt.data.tokenizers import train; train('unigram', ['some text here', 'and there'] * 9, 16)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout + run.stderr == ""


def test_lowercase_is_kept_in_the_file(tmp_path):
    tokenizer = train("word", ["Der Hund GROSS"] * 3, 50, lowercase=True)
    tokenizer.save(tmp_path / "m.model")
    loaded = SentencePiece.load(tmp_path / "m.model")
    assert loaded == tokenizer
    assert loaded.hash == tokenizer.hash
    assert loaded.lowercase
    assert loaded.decode(loaded.encode(["DER hund Gross"])) == ["der hund gross"]


def foreign(vocab_size=40, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS), model_writer=model, vocab_size=vocab_size, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe"},
        {"model_type": "unigram", "vocab_size": 20},
        {"model_type": "bpe", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"model_type": "bpe", "bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3, "control_symbols": ["<x>"]},
    ],
)
def test_models_of_other_tools_get_our_special_ids(tmp_path, options):
    (tmp_path / "other.model").write_bytes(foreign(**options))
    tokenizer = SentencePiece.load(tmp_path / "other.model", symbols=("<x>", "<y>"))
    other = sentencepiece.SentencePieceProcessor(model_proto=foreign(**options))
    assert tokenizer.pieces[:6] == ("<pad>", "<unk>", "<s>", "</s>", "<x>", "<y>")
    assert sorted({*tokenizer.pieces} - {"<pad>", "<s>", "<x>", "<y>"}) == sorted(
        {other.id_to_piece(i) for i in range(other.get_piece_size())} - {"<pad>", "<s>", "<x>"}
    )
    texts = ["the blue bird", "a fish zz"]
    pieces = [[tokenizer.pieces[index] for index in ids] for ids in tokenizer.encode(texts)]
    expected = [[other.id_to_piece(index) for index in other.encode(text)] for text in texts]
    assert pieces == expected
    assert tokenizer.decode(tokenizer.encode(texts))[0] == texts[0]


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "vocab.model").write_text("the\nred\n")
    with pytest.raises(DataError, match="vocab.model is not a sentencepiece model") as error:
        SentencePiece.load(tmp_path / "vocab.model")
    assert "\n" not in str(error.value)


def documents():
    return (Document(((Sentence(text, text.upper()),),)) for text in WORDS)


@pytest.mark.parametrize("shared", [True, False])
def test_vocabularies_of_a_run(tmp_path, shared):
    config = TokenizerConfig(kind="word", vocab_size=50, shared=shared)
    built = build_tokenizers(config, documents(), symbols=("<break>",))
    assert built.shared == shared
    assert ("▁RED" in built.source.pieces) == shared
    assert "▁RED" in built.target.pieces
    assert built.target.id("<break>") == 4
    built.save(tmp_path / "tokenizer")
    loaded = Vocabularies.load(tmp_path / "tokenizer")
    assert loaded == built
    assert loaded.hash == built.hash != build_tokenizers(replace(config, kind="char"), documents()).hash


def test_loaded_models_are_taken_without_reading_documents(tmp_path):
    train("word", WORDS, 50).save(tmp_path / "a.model")
    train("char", WORDS, 50).save(tmp_path / "b.model")
    a, b = str(tmp_path / "a.model"), str(tmp_path / "b.model")

    def unread():
        raise AssertionError("documents were read")
        yield

    config = TokenizerConfig(source_model=a)
    assert build_tokenizers(config, unread()).shared
    both = build_tokenizers(replace(config, target_model=b, shared=False), unread())
    assert (both.source, both.target) == (SentencePiece.load(a), SentencePiece.load(b))
    with pytest.raises(ConfigError, match="differ"):
        build_tokenizers(replace(config, target_model=b), unread())
    one_trained = build_tokenizers(replace(config, shared=False, kind="char", vocab_size=60), documents())
    assert one_trained.source == SentencePiece.load(a)
    assert "T" in one_trained.target.pieces


def test_errors_name_the_side_and_the_directory(tmp_path):
    config = TokenizerConfig(kind="bpe", vocab_size=9000, shared=False)
    with pytest.raises(DataError, match=r"vocab_size \(source\).*largest possible"):
        build_tokenizers(config, documents())
    with pytest.raises(RunError, match="holds no tokenizer"):
        Vocabularies.load(tmp_path)


def test_sample_is_uniform_and_repeatable():
    assert sample(range(10), 20) == list(range(10))
    assert (
        sample(range(1000), 100, seed=3)
        == sample(range(1000), 100, seed=3)
        != sample(range(1000), 100, seed=4)
    )
    means = [np.mean(sample(range(1000), 100, seed=seed)) for seed in range(200)]
    # The mean of 100 out of 1000 has a standard deviation of 27; that of 200 such means 1.9.
    assert abs(np.mean(means) - 499.5) < 8
