import gzip
import json
from collections import Counter

import numpy as np
import pytest

from flaxnmt.data.check import check, percentiles
from flaxnmt.errors import DataError


@pytest.fixture
def write(tmp_path):
    def _write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


def test_counts(write):
    report = check(
        write("a.en", "a dog\ntwo big cats\n\nx\n"), write("a.de", "ein Hund\nzwei Katzen\n\ny y y y\n")
    )
    assert report.ok
    assert (report.documents, report.paragraphs, report.sentences) == (2, 2, 3)
    assert (report.source.words, report.target.words) == (6, 8)
    assert (report.source.characters, report.target.characters) == (18, 26)
    assert report.source.lengths == {
        "min": 1,
        "1%": 1,
        "5%": 1,
        "25%": 1,
        "50%": 2,
        "75%": 3,
        "95%": 3,
        "99%": 3,
        "max": 3,
    }
    assert report.sentences_per_document["max"] == 2
    assert not report.errors
    assert not report.notes


def test_bad_lines_are_listed_and_reading_goes_on(write):
    source = write("a.en", b"one\n\xfftwo\n\nfour\nfi\0ve\nsix\nseven\n")
    target = write("a.de", "eins\nzwei\ndrei\n \nfünf\nsechs\n")
    report = check(source, target)
    assert not report.ok
    assert report.errors["utf-8"].examples == [
        f"{source}:2: invalid UTF-8 (byte 0xff at offset 4, byte 1 of the line)"
    ]
    assert report.errors["nul"].examples == [
        f"{source}:5: NUL byte (at offset 17): not a text file, or damaged"
    ]
    assert [example.split(": ")[0] for example in report.errors["one side"].examples] == [
        f"{source}:3",
        f"{target}:4",
    ]
    assert f"7 lines, but {target} has 6" in report.errors["lengths"].examples[0]
    # Lines 1, 2, 5 and 6 have two sides; the undecodable ones count with replacement characters.
    assert report.sentences == 4


@pytest.mark.parametrize(
    ("name", "content", "kind", "line"),
    [
        ("a.tsv", "a\tA\nb\nc\tC\n", "columns", 2),
        ("a.jsonl", '{"paragraphs": [{"src": ["a"], "tgt": ["A"]}]}\n{"\n', "json", 2),
        ("a.tsv", "a\tA\tx\nb\tB\ty\nc\tC\tx\n", "order", 3),
    ],
)
def test_bad_lines_of_other_formats(write, name, content, kind, line):
    path = write(name, content)
    report = check(path)
    assert list(report.errors) == [kind]
    assert report.errors[kind].examples[0].startswith(f"{path}:{line}: ")
    assert report.sentences >= 1


def test_corrupt_gzip_and_empty_corpora_are_errors(write):
    cut = gzip.compress(b"a\tA\n" * 99)[:-9]
    assert "gzip" in check(write("a.tsv.gz", cut)).errors
    assert "empty" in check(write("a.tsv", "\n")).errors
    with pytest.raises(DataError, match="does not exist"):
        check("missing.tsv")


def test_notes(write):
    rows = [
        ("same", "same"),
        ("a dog", "ein Hund"),
        ("a dog", "ein Hund"),
        ("x", "ein sehr langer Satz"),
        ("cafe\u0301", "das Café"),
        ("w " * 30, "v " * 30),
        ("a dog", "ein Hund"),
    ]
    path = write("a.tsv", "".join(f"{source}\t{target}\n" for source, target in rows))
    report = check(path, max_words=20, examples=1)
    assert report.ok
    assert {kind: issue.count for kind, issue in report.notes.items()} == {
        "source = target": 1,
        "duplicate": 2,
        "length ratio": 1,
        "not NFC": 1,
        "too long": 1,
    }
    assert [example.split(": ")[0] for example in report.notes["duplicate"].examples] == [f"{path}:3"]


def test_text_and_json(write):
    path = write("a.tsv", "a dog\tein Hund\nb\n")
    report = check(path)
    text = str(report)
    assert f"{path}:2: 1 tab-separated columns" in text
    assert text.splitlines()[-1].startswith("errors")
    value = json.loads(json.dumps(report.as_dict()))
    assert value["ok"] is False
    assert value["errors"]["columns"]["count"] == 1
    assert value["source"]["lengths"]["50%"] == 2
    assert str(check(write("b.tsv", "a\tA\n"))).endswith("no errors")


def test_percentiles_are_those_of_numpy():
    values = np.random.default_rng(1).integers(1, 60, 997)
    expected = np.percentile(values, [1, 25, 50, 99], method="inverted_cdf")
    found = percentiles(Counter(values.tolist()), (1, 25, 50, 99))
    assert list(found.values()) == [values.min(), *expected, values.max()]
    assert percentiles(Counter()) == {}
