"""A corpus on disk holds the tokens put in, is reused while nothing changes and is never half there."""

import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flaxnmt.data import shards
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.shards import TokenArray, TokenCorpus, file_stamp, tokenize_corpus
from flaxnmt.data.tokenizers import train
from flaxnmt.errors import DataError, RunError
from flaxnmt.symbols import EOS


def letters(texts):
    """One id per character."""
    return [[ord(c) for c in text] for text in texts]


def words(texts):
    """One id per word."""
    return [[10 + len(word) for word in text.split()] for text in texts]


def make(documents, directory, name="a", **options):
    options = {"vocab_size": 1000, "progress": False} | options
    return tokenize_corpus(documents, letters, words, directory, fingerprint={"name": name}, **options)


def numbered(count, seed=0):
    rng = np.random.default_rng(seed)
    for i in range(count):
        source = "".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(0, 9)))
        yield Document(((Sentence(source, " ".join("xyz"[: i % 4]), i + 1),),))


def contents(corpus):
    return [(corpus.source[i].tolist(), corpus.target[i].tolist()) for i in range(len(corpus))]


@pytest.mark.parametrize("workers", [1, 3])
def test_tokens_and_lines_come_back(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(shards, "BLOCK", 7)
    documents = list(numbered(100))
    corpus = make(documents, tmp_path / "data", workers=workers)
    sentences = [sentence for document in documents for sentence in document]
    expected = [
        ([ord(c) for c in s.source] + [EOS], [10 + len(w) for w in s.target.split()] + [EOS])
        for s in sentences
    ]
    assert contents(corpus) == expected == contents(TokenCorpus.open(tmp_path / "data"))
    assert corpus.lines.tolist() == list(range(1, 101))
    assert corpus.source.lengths.tolist() == [len(source) for source, _ in expected]
    assert corpus.target.lengths.tolist() == [len(target) for _, target in expected]


def test_structure_survives_block_boundaries(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK", 2)
    s = Sentence("a", "b")
    documents = [Document(((s, s, s), (s,))), Document(((), (s, s))), Document(()), Document(((s,),))]
    corpus = make(documents, tmp_path / "data")
    assert corpus.document_offsets.tolist() == [0, 4, 6, 7]
    assert np.flatnonzero(corpus.starts & shards.PARAGRAPH).tolist() == [0, 3, 4, 6]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_token_type_follows_vocabulary(tmp_path, vocab_size, dtype):
    corpus = make(
        [Document(((Sentence(chr(vocab_size - 1), "x"),),))], tmp_path / "data", vocab_size=vocab_size
    )
    assert corpus.source.tokens.dtype == dtype
    assert corpus.source[0].tolist() == [vocab_size - 1, EOS]


def test_sentencepiece_in_threads_gives_its_own_ids(tmp_path):
    texts = [f"the {a} sees a {b}" for a in ("cat", "dog", "bird") for b in ("house", "tree", "boat")] * 30
    tokenizer = train("bpe", texts, 60)
    encode = partial(tokenizer.encode, threads=1)
    documents = [Document(((Sentence(text, text[::-1], i),),)) for i, text in enumerate(texts)]
    corpus = tokenize_corpus(
        documents, encode, encode, tmp_path / "d", vocab_size=60, fingerprint={}, workers=2, progress=False
    )
    for i, ids in enumerate(tokenizer.encode(texts)):
        assert corpus.source[i].tolist() == [*ids, EOS]
    assert tokenizer.decode([corpus.target[4].tolist()]) == [texts[4][::-1]]


def test_reused_until_something_changes(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flaxnmt.data.shards")
    first = make(numbered(20), tmp_path / "data")

    def never():
        raise AssertionError("the documents were read again")
        yield

    assert contents(make(never(), tmp_path / "data")) == contents(first)
    assert "20 tokenised pairs are reused" in caplog.text
    changed = make(numbered(30, seed=1), tmp_path / "data", name="b")
    assert "name changed" in caplog.text
    assert len(changed) == 30
    assert len(make(numbered(30), tmp_path / "data", name="b", vocab_size=2000)) == 30
    assert "vocab_size changed" in caplog.text


def test_file_stamp_sees_a_change(tmp_path):
    path = tmp_path / "text"
    path.write_text("a\n")
    before = file_stamp(path)
    assert file_stamp(path) == before
    path.write_text("ab\n")
    assert file_stamp(path) != before


def test_a_failure_leaves_what_was_there(tmp_path):
    old = contents(make(numbered(20), tmp_path / "data"))

    def broken():
        yield from numbered(50)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(broken(), tmp_path / "data", name="b")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert contents(TokenCorpus.open(tmp_path / "data")) == old


def test_leftovers_of_a_killed_run_are_not_used(tmp_path):
    partial_directory = tmp_path / "data.partial"
    partial_directory.mkdir()
    (partial_directory / "source.tokens").write_bytes(b"garbage")
    assert len(make(numbered(5), tmp_path / "data")) == 5
    assert not partial_directory.exists()


def test_user_errors(tmp_path):
    with pytest.raises(RunError, match=r"nowhere: no tokenised corpus"):
        TokenCorpus.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no sentence pairs"):
        make([Document(())], tmp_path / "empty")
    with pytest.raises(DataError, match="line 7: .* no target"):
        make([Document(((Sentence("a", None, 7),),))], tmp_path / "half")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot make the tokenised corpus"):
        make(numbered(3), tmp_path / "file" / "data")
    make(numbered(9), tmp_path / "data")
    with open(tmp_path / "data" / "target.tokens", "r+b") as file:
        file.truncate(10)
    with pytest.raises(RunError, match=r"target.tokens: 10 bytes, not \d+"):
        TokenCorpus.open(tmp_path / "data")


def test_padded_rows():
    array = TokenArray.from_lists([[5, 6], [], [7, 8, 9, 10]])
    rows = array.padded(np.array([2, -1, 0, 1]), 4)
    assert rows.dtype == np.int32
    assert rows.tolist() == [[7, 8, 9, EOS], [0, 0, 0, 0], [5, 6, EOS, 0], [EOS, 0, 0, 0]]
    with pytest.raises(IndexError, match="sentence 3 of 3"):
        array[3]


@pytest.mark.slow
def test_data_throughput_prints_its_table(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(
            "".join(f"{word} the {i} birds fly\n" for i, word in enumerate("abcdefgh"))
        )
    command = [sys.executable, "-m", "experiments.benchmarks.data_throughput", "a", "b", "--pairs", "1000"]
    paths = [str(tmp_path / part) if part in ("a", "b") else part for part in command]
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [*paths, *"--vocab-size 40 --batches 9 --results".split(), str(tmp_path / "results")],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "results" / "data_throughput.md").read_text().rstrip().endswith(result.stdout.rstrip())
    rows = [line.split("|") for line in result.stdout.splitlines() if line.startswith("| ")]
    assert rows[0][2].strip() == "1,000 pairs, measured"
    measured = {row[1].strip(): float(row[2].replace(",", "")) for row in rows[1:]}
    assert measured["loading, batches/s"] > 0
    assert 30 < measured["tokenised, bytes per pair"] < 150
