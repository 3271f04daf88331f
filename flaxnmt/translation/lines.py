"""Sentences with what is around them: which open a paragraph or a document, and the line each came from."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flaxnmt.data.documents import Document
from flaxnmt.data.shards import DOCUMENT, PARAGRAPH
from flaxnmt.errors import ConfigError
from flaxnmt.typing import Bool, Int


class Text(NamedTuple):
    """Sentences in their order.

    Attributes:
      sentences: none of them blank, unless a score of it is asked for.
      starts: flags `DOCUMENT` and `PARAGRAPH` of those that open one, as in a tokenised corpus.
      numbers: of their lines, for messages and as a name of each.
      wanted: those whose translation is asked for, the others are context; None for all.
    """

    sentences: tuple[str, ...]
    starts: Int[np.ndarray, "P"]
    numbers: Int[np.ndarray, "P"]
    wanted: Bool[np.ndarray, "P"] | None = None

    @classmethod
    def of_lines(cls, lines: Sequence[str], paragraphs: bool = False, first_line: int = 1) -> "Text":
        """Lines in which a blank one ends a document; with `paragraphs` a paragraph, and two a document."""
        refuse_one(lines)
        filled, starts, blanks = [], [], 2
        for index, line in enumerate(lines):
            if not line.strip():
                blanks += 1
                continue
            filled.append(index)
            ends_document = blanks > 1 if paragraphs else blanks > 0
            starts.append((DOCUMENT * ends_document) | (PARAGRAPH * (blanks > 0)))
            blanks = 0
        numbers = np.asarray(filled, np.int64) + first_line
        return cls(tuple(lines[i] for i in filled), np.asarray(starts, np.uint8), numbers)

    @classmethod
    def of_documents(
        cls, documents: Sequence[Document], wanted: Sequence[Sequence[int]] | None = None
    ) -> "Text":
        """The source sentences of documents, numbered from 1; `wanted` has indices of sentences of each document."""
        starts = [
            0 if place else PARAGRAPH | (0 if number else DOCUMENT)
            for document in documents
            for number, paragraph in enumerate(filter(None, document.paragraphs))
            for place in range(len(paragraph))
        ]
        sentences = tuple(sentence.source for document in documents for sentence in document)
        text = cls(sentences, np.asarray(starts, np.uint8), np.arange(1, len(sentences) + 1))
        if wanted is None:
            return text
        pairs = zip(documents, map(set, wanted), strict=True)
        return text._replace(
            wanted=np.asarray(
                [i in indices for document, indices in pairs for i in range(len(document))], bool
            )
        )

    @classmethod
    def unbroken(cls, lines: Sequence[str]) -> "Text":
        """All lines, blank ones too, as one document."""
        refuse_one(lines)
        starts = np.zeros(len(lines), np.uint8)
        starts[:1] = DOCUMENT | PARAGRAPH
        return cls(tuple(lines), starts, np.arange(1, len(lines) + 1))


def refuse_one(lines: Sequence[str]) -> None:
    """Refuses a text where a list of them is expected: it is a sequence of texts, too, of one character each."""
    if isinstance(lines, str):
        raise ConfigError(f"{lines!r} is one text: give a list of texts")
