import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from flaxnmt.data import files
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.readers import read, read_source, read_texts
from flaxnmt.errors import DataError

SHARED_DATA = Path(__file__).parents[2] / "../shared/data"


@pytest.fixture
def write(tmp_path):
    def _write(name, content):
        path = tmp_path / name
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return _write


def texts(documents):
    """Documents as nested lists "source|target", a list per paragraph."""
    return [[[f"{s.source}|{s.target}" for s in p] for p in document.paragraphs] for document in documents]


def refused(*paths, **options):
    with pytest.raises(DataError) as error:
        list(read(*paths, **options))
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_sentence_corpus(write, suffix):
    source, target = write(f"a.en{suffix}", "one\ntwo\nthree\n"), write(f"a.de{suffix}", "eins\nzwei\ndrei")
    documents = list(read(source, target))
    assert documents == [
        Document(((Sentence("one", "eins", 1),),)),
        Document(((Sentence("two", "zwei", 2),),)),
        Document(((Sentence("three", "drei", 3),),)),
    ]
    assert list(read(source, target, limit=2)) == documents[:2]


def test_a_part_of_a_corpus(write):
    source, target = write("a.en", "one\ntwo\nthree\n"), write("a.de", "eins\nzwei\ndrei")
    whole = list(read(source, target))
    for part, expected in (("[:2]", whole[:2]), ("[1:]", whole[1:]), ("[1:2]", whole[1:2]), ("[:]", whole)):
        assert list(read(f"{source}{part}", f"{target}{part}")) == expected
    documents = write("d.en", "a\nb\n\nc"), write("d.de", "A\nB\n\nC")
    assert texts(read(*(f"{name}[:1]" for name in documents))) == [[["a|A", "b|B"]]]
    assert "the same part of each file" in refused(f"{source}[:2]", target)
    assert "no sentence pair in it" in refused(f"{source}[7:]", f"{target}[7:]")
    assert "a.en[-1:] does not exist; the nearest name" in refused(f"{source}[-1:]", f"{target}[-1:]")


def test_reading_is_lazy(write):
    documents = read(write("a.en", "one\ntwo\nthree"), write("a.de", "eins\n"))
    assert next(documents).sentences[0].target == "eins"
    with pytest.raises(DataError, match="a.en: 3 lines, but .*a.de has 1"):
        next(documents)


@pytest.mark.parametrize(
    ("paragraphs", "expected"),
    [
        (False, [[["a|A", "b|B"]], [["c|C"]], [["d|D"]]]),
        (True, [[["a|A", "b|B"], ["c|C"]], [["d|D"]]]),
    ],
)
def test_blank_lines_end_documents_or_paragraphs(write, paragraphs, expected):
    source = write("a.en", "\na\nb\n\nc\n \n\t\nd\n\n\n")
    target = write("a.de", "\nA\nB\n \nC\n\n\nD\n\n\n")
    documents = list(read(source, target, paragraphs=paragraphs))
    assert texts(documents) == expected
    assert [s.line for document in documents for s in document] == [2, 3, 5, 8]


def test_a_blank_line_late_in_a_long_corpus(write):
    lines = [str(number) for number in range(10_000)]
    lines[9_000] = ""
    path = write("a.en", "\n".join(lines))
    first, second = read(path, path)
    assert (len(first), len(second)) == (9_000, 999)
    assert all(pair.source == pair.target == str(pair.line - 1) for pair in (*first, *second))
    lines[9_001] = ""
    assert "a.de:9002: blank on the target" in refused(path, write("a.de", "\n".join(lines)))


def test_blank_lines_at_the_end_do_not_make_a_document_of_a_sentence_corpus(write):
    assert texts(read(write("a.en", "a\nb\n\n\n"), write("a.de", "A\nB\n\n\n"))) == [[["a|A"]], [["b|B"]]]


def test_with_paragraphs_a_file_without_double_blank_lines_is_one_document(write):
    assert texts(read(write("a.en", "a\nb"), write("a.de", "A\nB"), paragraphs=True)) == [[["a|A", "b|B"]]]


@pytest.mark.parametrize("at", range(40, 60))
def test_a_blank_line_at_the_border_of_two_blocks(write, monkeypatch, at):
    monkeypatch.setattr(files, "BLOCK", 50)
    text = "x" * at + "\n\n" + "y" * 70 + "\nz"
    path = write("a.en", text)
    assert files.has_blank_line_inside(path)
    assert list(files.read_lines(path)) == text.split("\n")
    assert not files.has_blank_line_inside(write("b.en", text.replace("\n\n", "\n") + "\n" * at))


def test_only_a_line_feed_ends_a_line(write):
    lines = ["a\u2028b", "c\x85d", "e\x0bf\x0cg", "h\x1ci", "j\rk", "e\u0301"]
    source, target = write("a.en", "\ufeff" + "\r\n".join(lines) + "\r\n"), write("a.de", "\n".join(lines))
    documents = list(read(source, target))
    assert [document.sentences[0][:2] for document in documents] == [(line, line) for line in lines]
    assert list(read_source(source)) == lines


def test_line_numbers_of_documents(write):
    source, target = write("a.en", "a\nb\nc\nd\ne\n"), write("a.de", "A\nB\nC\nD\nE\n")
    starts = write("a.doc", "0\n2\n2\n4\n")
    documents = list(read(source, target, starts))
    assert texts(documents) == [[["a|A", "b|B"]], [["c|C", "d|D"]], [["e|E"]]]
    assert [s.line for document in documents for s in document] == [1, 2, 3, 4, 5]


def test_line_numbers_count_blank_lines(write):
    source, target, starts = write("a.en", "a\n\nb\nc"), write("a.de", "A\n\nB\nC"), write("a.doc", "0\n3\n")
    assert texts(read(source, target, starts)) == [[["a|A", "b|B"]], [["c|C"]]]
    assert texts(read(source, target, starts, paragraphs=True)) == [[["a|A"], ["b|B"]], [["c|C"]]]


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ("1\n2\n", "a.doc:1: the first document starts at line 0, not 1"),
        ("0\ntwo\n", "a.doc:2: 'two' is not a line number"),
        ("0\n2\n1\n", "a.doc:3: 1 comes after 2"),
        ("0\n3\n", "a.doc: a document starts at line 3, but .*a.en has 3 lines"),
    ],
)
def test_bad_line_numbers(write, starts, message):
    source, target = write("a.en", "a\nb\nc\n"), write("a.de", "A\nB\nC\n")
    with pytest.raises(DataError, match=message):
        list(read(source, target, write("a.doc", starts)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tsv(write, suffix):
    path = write(f"a.tsv{suffix}", "a\tA\tone\nb\tB\tone\n\nc\tC\tone\nd\tD\ttwo\n")
    documents = list(read(path))
    assert texts(documents) == [[["a|A", "b|B", "c|C"]], [["d|D"]]]
    assert [document.id for document in documents] == ["one", "two"]
    assert texts(read(path, paragraphs=True)) == [[["a|A", "b|B"], ["c|C"]], [["d|D"]]]


def test_tsv_without_document_ids(write):
    assert texts(read(write("a.tsv", "a\tA\nb\tB\n"))) == [[["a|A"]], [["b|B"]]]
    assert texts(read(write("b.tsv", "a\tA\nb\tB\n\nc\tC\n"))) == [[["a|A", "b|B"]], [["c|C"]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tA\nb\n", ":2: 1 tab-separated columns, not 2 as in the rows before"),
        ("a\tA\tx\nb\tB\n", ":2: 2 tab-separated columns, not 3 as in the rows before"),
        ("a\tA\tx\ty\n", ":1: 4 tab-separated columns, not 2 or 3"),
        ("a\tA\n\tB\n", ":2: blank on the source side"),
        ("a\tA\tx\nb\tB\ty\nc\tC\tx\n", ":3: document 'x' goes on here"),
    ],
)
def test_bad_tsv(write, content, message):
    assert f"a.tsv{message}" in refused(write("a.tsv", content))


DOCUMENT = {
    "doc_id": "d1",
    "section": "news",
    "paragraphs": [{"src": ["a", "b\nc"], "tgt": ["A", "B C"]}, {"src": ["d"], "tgt": ["D"]}],
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines(write, suffix):
    lines = [json.dumps(DOCUMENT), "", json.dumps({"paragraphs": [{"src": ["x"]}]})]
    first, second = read(write(f"a.jsonl{suffix}", "\n".join(lines)))
    assert texts([first]) == [[["a|A", "b c|B C"], ["d|D"]]]
    assert (first.id, first.section, first.sentences[0].line) == ("d1", "news", 1)
    assert second == Document(((Sentence("x", None, 3),),))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"paragraphs": [', "not JSON"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"paragraphs": [], "section": ' + "1" * 5000 + "}", "not a document"),
        ("[1, 2]", "not a document"),
        ('{"paragraphs": [{"source": []}]}', "not a document"),
        ('{"paragraphs": [{"src": "text", "tgt": "text"}]}', "not a document"),
        ('{"paragraphs": [{"src": ["a", 3], "tgt": ["b", "c"]}]}', "not a document"),
        (
            '{"paragraphs": [{"src": ["a"], "tgt": ["b", "c"]}]}',
            "a paragraph with 1 source and 2 target sentences",
        ),
        ('{"paragraphs": [{"src": ["a"], "tgt": [" "]}]}', "blank on the target side"),
        ('{"paragraphs": [{"src": ["a\\u0000"], "tgt": ["b"]}]}', "NUL"),
        ('{"paragraphs": [{"src": ["a\\ud83d"], "tgt": ["b"]}]}', "half of a surrogate pair"),
    ],
)
def test_bad_json_lines(write, line, message):
    assert f"a.jsonl:2: {message}" in refused(write("a.jsonl", json.dumps(DOCUMENT) + "\n" + line + "\n"))


@pytest.mark.parametrize(
    "paragraphs",
    [[], [{"src": [" "]}], [{"src": ["a", ""]}, {"src": ["b"]}], [{"src": ["a", " "], "tgt": ["A", ""]}]],
)
def test_blank_sentences_are_left_out_unless_that_is_refused(write, paragraphs):
    path = write("a.jsonl", "\n".join(map(json.dumps, (DOCUMENT, {"paragraphs": paragraphs}, DOCUMENT))))
    kept = [text for part in paragraphs for text in part["src"] if text.strip()]
    assert [pair.source for document in list(read(path))[1:-1] for pair in document] == kept
    with pytest.raises(DataError, match="a.jsonl:2: a blank sentence, or none in this document"):
        list(read(path, blank=files.refuse))
    assert len(list(read(write("b.jsonl", json.dumps(DOCUMENT)), blank=files.refuse))) == 1


def test_parallel_text_without_blank_lines_is_one_document_where_that_is_meant(write):
    paths = write("a.en", "a\nb\nc\n"), write("a.de", "A\nB\nC\n")
    assert len(list(read(*paths))) == 3
    (one,) = read(*paths, documents=True)
    assert [pair.source for pair in one] == ["a", "b", "c"]


def test_a_corpus_is_no_pipe(write):
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(
            DataError, match=f"/dev/fd/{read_end} is a pipe, and a corpus is read more than once"
        ):
            read(write("a.en", "a\n"), f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize(("first", "second"), [(3, 5), (5, 3), (4096, 4097), (9000, 4096)])
def test_files_of_different_length(write, first, second):
    source, target = write("a.en", "x\n" * first), write("a.de", "y\n" * second)
    message = refused(source, target)
    assert f"a.en: {first} lines, but" in message
    assert f"a.de has {second}:" in message


def test_invalid_utf8_names_line_and_offset(write):
    source = write("a.en", b"fine\n" * 1000 + b"Stra\xdfe\nfine\n")
    message = refused(source, write("a.de", "gut\n" * 1002))
    assert "a.en:1001: invalid UTF-8 (byte 0xdf at offset 5004, byte 5 of the line)" in message


def test_invalid_utf8_far_into_a_file(write, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 64)
    source = write("a.en", b"\xef\xbb\xbf" + b"fine\n" * 100 + b"\xff\n")
    assert "a.en:101: invalid UTF-8 (byte 0xff at offset 503, byte 1" in refused(
        source, write("a.de", "x\n" * 101)
    )


def test_nul_bytes(write):
    message = refused(write("a.en", "a\nb\0c\n"), write("a.de", "A\nB\n"))
    assert "a.en:2: NUL byte (at offset 3)" in message


@pytest.mark.parametrize(
    ("source", "side"), [("a\n\nb\n", "a.en:2: blank on the source side"), ("a\nx\nb\n", "")]
)
def test_a_blank_line_on_one_side(write, source, side):
    target = "A\nB\nC\n" if side else "A\n \nC\n"
    message = refused(write("a.en", source), write("a.de", target))
    assert (side or "a.de:2: blank on the target side") in message


def test_missing_files_and_the_nearest_name(write, tmp_path):
    write("train.en", "a\n")
    assert f"train.e does not exist; the nearest name there is {tmp_path / 'train.en'}" in refused(
        tmp_path / "train.e", tmp_path / "train.en"
    )
    assert "there is no folder" in refused(tmp_path / "nowhere" / "train.en", tmp_path / "train.en")
    assert "is a folder" in refused(tmp_path, tmp_path / "train.en")


def test_missing_files_are_refused_before_anything_is_read(write, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read(write("a.en", "a\n"), tmp_path / "a.de")


def test_empty_files(write):
    assert "a.en is empty" in refused(write("a.en", ""), write("a.de", "A\n"))
    assert "no sentence pair" in refused(write("b.en", "\n\n"), write("b.de", "\n\n"))
    assert "no sentence pair" in refused(write("a.tsv.gz", ""))


def test_corrupt_gzip(write, tmp_path):
    whole = gzip.compress(b"".join(b"line %d\n" % number for number in range(50000)))
    target = write("a.de", "x\n" * 50000)
    for name, content in (("cut.gz", whole[: len(whole) // 2]), ("plain.gz", b"not gzip\n" * 9)):
        (tmp_path / name).write_bytes(content)
        assert f"{name}:" in refused(tmp_path / name, target)
        assert "corrupt gzip" in refused(tmp_path / name, target)


def test_gzip_is_known_by_its_content_too(write, tmp_path):
    (tmp_path / "a.en").write_bytes(gzip.compress(b"one\n"))
    assert texts(read(tmp_path / "a.en", write("a.de", "eins\n"))) == [[["one|eins"]]]


@pytest.mark.parametrize("count", [3, 2000])
def test_a_pipe_is_read_from_its_beginning(count):
    text = "".join(f"line {n}\n" for n in range(count))
    read_end, write_end = os.pipe()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=write_end, text=True) as cat:
        os.close(write_end)
        cat.stdin.write(text)
        cat.stdin.close()
        assert list(read_source(f"/dev/fd/{read_end}")) == text.splitlines()
    os.close(read_end)


def test_a_single_text_file_is_no_corpus(write):
    assert "two parallel text files" in refused(write("a.txt", "a\n"))
    assert "two parallel text files" in refused()


def test_a_text_may_be_called_discourse(write):
    (document,) = read_texts(write("discourse_on_method.txt", "one\ntwo\n"))
    assert [sentence.source for sentence in document] == ["one", "two"]


def test_source_lines_from_a_file(write):
    path = write("a.en.gz", "one\n\n two \r\n")
    assert list(read_source(path)) == ["one", "", " two "]
    assert list(read_source(write("empty", ""))) == []
    with pytest.raises(DataError, match="nearest name"):
        read_source(path.with_name("a.en"))


def test_source_lines_from_a_stream():
    assert list(read_source(io.BytesIO("\ufeffé\r\n\nlast\u2028x".encode()))) == ["é", "", "last\u2028x"]
    lines = read_source(io.TextIOWrapper(io.BytesIO(b"ok\nb\xffd\n")))
    assert next(lines) == "ok"
    with pytest.raises(DataError, match="input:2: invalid UTF-8 .*offset 4, byte 2"):
        next(lines)


def test_source_lines_come_as_they_are_typed():
    code = (
        "import sys\n"
        "from flaxnmt.data.readers import read_source\n"
        "for line in read_source(sys.stdin): print(line.upper(), flush=True)\n"
    )
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for word in (b"one", b"", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == word.upper() + b"\n"
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(write):
    source, target = write("a.en", "some words here\n" * 400_000), write("a.de", "hier einige\n" * 400_000)
    tracemalloc.start()
    assert sum(1 for _ in read(source, target)) == 400_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two decoded megabyte blocks as lists of lines; the whole corpus would be about 90 MB.
    assert peak < 30e6


def test_the_generated_corpus():
    documents = list(read("discourse:train:3"))
    assert len(documents) == 3
    assert all(pair.source and pair.target for document in documents for pair in document)
    assert "expected discourse" in refused("discourse:train:many")


def test_documents_of_talks():
    path = SHARED_DATA / "ted_en_de/dev.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    documents = list(read(path))
    assert (len(documents), sum(map(len, documents))) == (12, 855)
    assert documents[0].id == "ted.dev.0000"
