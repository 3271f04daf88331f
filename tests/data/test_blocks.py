"""Blocks of lines that end where documents do."""

import pytest

from flaxnmt.data.blocks import document_blocks, read_blocks, whole_documents
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import DataError

LINES = ["a", "b", "", "c", "", "", "d", " ", "\t", "", "e", "f"]


def pieces(size: int) -> list[list[str]]:
    return [LINES[i : i + size] for i in range(0, len(LINES), size)]


@pytest.mark.parametrize("paragraphs", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_no_document_is_in_two_blocks(size, paragraphs):
    blocks = list(whole_documents(pieces(size), paragraphs))
    assert sum(blocks, []) == LINES
    for block in blocks[:-1]:
        assert not "".join(block[-2:] if paragraphs and len(block) > 1 else block[-1:]).strip()


def test_blocks_are_as_small_as_what_arrives():
    assert list(whole_documents(pieces(1))) == [
        ["a", "b", ""], ["c", ""], [""], ["d", " "], ["\t"], [""], ["e", "f"]
    ]  # fmt: skip
    # Of three blank lines the third may be the first of two again: it is no more than a line.
    assert list(whole_documents(pieces(1), paragraphs=True)) == [
        ["a", "b", "", "c", "", ""], ["d", " ", "\t"], ["", "e", "f"]
    ]  # fmt: skip
    assert list(whole_documents([LINES])) == [LINES[:-2], LINES[-2:]]


def test_a_document_is_handed_on_as_soon_as_it_has_ended():
    def arriving():
        yield from (["a"], ["b", ""])
        raise AssertionError("asked for more than the first document")

    assert next(whole_documents(arriving())) == ["a", "b", ""]


def test_lines_before_a_bad_one_are_handed_on(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n\nc\n\xff\nd\n")
    found = []
    with path.open("rb") as stream, pytest.raises(DataError, match="lines:5: invalid UTF-8"):
        for block in whole_documents(read_blocks(stream, 2)):
            found.append(block)
    assert found == [["a", "b", ""], ["c"]]


def test_documents_come_in_blocks_of_so_many_sentences():
    documents = [Document((tuple(Sentence(str(i)) for i in range(n)),)) for n in (1, 1, 5, 2, 1, 1)]
    blocks = list(document_blocks(documents, 3))
    assert [[len(document) for document in block] for block in blocks] == [[1, 1, 5], [2, 1], [1]]
    assert sum(blocks, []) == documents


def test_nothing_is_no_document():
    assert list(whole_documents([])) == [] and list(whole_documents([[]])) == []
    assert list(whole_documents([["", ""]])) == [["", ""]]
