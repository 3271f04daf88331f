"""Sentences and where documents and paragraphs begin, from lines and from documents."""

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.shards import DOCUMENT, PARAGRAPH
from flaxnmt.translation.lines import Text

BOTH = DOCUMENT | PARAGRAPH


def test_a_blank_line_ends_a_document():
    text = Text.of_lines(["", "a", "b", " ", "c", "", "", "d", ""], first_line=11)
    assert text.sentences == ("a", "b", "c", "d")
    assert text.starts.tolist() == [BOTH, 0, BOTH, BOTH]
    assert text.numbers.tolist() == [12, 13, 15, 18]


def test_with_paragraphs_two_blank_lines_end_a_document():
    text = Text.of_lines(["a", "", "b", "c", "", "", "d", "", "", "", "e"], paragraphs=True)
    assert text.starts.tolist() == [BOTH, PARAGRAPH, 0, BOTH, BOTH]
    # The first line opens a document, whatever stands before it.
    assert Text.of_lines(["", "a"], paragraphs=True).starts.tolist() == [BOTH]


def test_documents_and_their_lines_are_one_text():
    parts = (("a", "b"), ("c",)), (("d",),)
    documents = [Document(tuple(tuple(map(Sentence, part)) for part in document)) for document in parts]
    found = Text.of_documents(documents)
    same = Text.of_lines(["a", "b", "", "c", "", "", "d"], paragraphs=True)
    assert found.sentences == same.sentences and found.starts.tolist() == same.starts.tolist()
    assert found.numbers.tolist() == [1, 2, 3, 4]
    # A paragraph without a sentence is none.
    documents[1] = Document(((), *documents[1].paragraphs, ()))
    assert Text.of_documents(documents).starts.tolist() == found.starts.tolist()


def test_an_unbroken_text_keeps_blank_lines():
    text = Text.unbroken(["a", "", "b"])
    assert text.sentences == ("a", "", "b") and text.starts.tolist() == [BOTH, 0, 0]
    for empty in (Text.unbroken([]), Text.of_lines([]), Text.of_lines(["", " "]), Text.of_documents([])):
        assert empty.sentences == () and len(empty.starts) == len(empty.numbers) == 0
