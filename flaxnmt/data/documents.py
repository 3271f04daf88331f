"""The one data type: a document of paragraphs of sentence pairs.

A sentence corpus is documents of one paragraph of one sentence, so every reader, tokenizer and batcher
sees the same thing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Sentence(NamedTuple):
    """One source sentence with its target (None where only the source is known).

    `line` is the 1-based line of the file that it came from, for messages; 0 where there is none.
    """

    source: str
    target: str | None = None
    line: int = 0


# A value that nobody changes; not `frozen`, because that alone halves the speed of reading a corpus.
@dataclass(slots=True, unsafe_hash=True)
class Document:
    """Paragraphs in order, each a tuple of sentences in order."""

    paragraphs: tuple[tuple[Sentence, ...], ...]
    id: str = ""
    section: str = ""

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        return tuple(sentence for paragraph in self.paragraphs for sentence in paragraph)

    def __len__(self) -> int:
        return sum(map(len, self.paragraphs))

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)
