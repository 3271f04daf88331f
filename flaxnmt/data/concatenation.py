"""Concatenation: a sentence model that reads the sentences before its own, and may write them too.

The extended contexts of Tiedemann and Scherrer 2017 ("Neural Machine Translation with Extended Context"): k
sentences and a break before the current one in the source alone (2-to-1 for k = 1) or in both languages
(2-to-2). In text, sentences are separated by `SEPARATOR`; `Breaks` makes the symbol `BREAK` of it, since no
tokenizer makes a symbol from text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import Tokenizer
from flaxnmt.symbols import EOS

BREAK = "<brk>"
"""The symbol to train a vocabulary with."""

SEPARATOR = "\x1e"
"""Between the sentences of a line: ASCII's record separator, which text has no use for."""


def join(sentences: Iterable[str]) -> str:
    """Sentences as one line."""
    return SEPARATOR.join(sentence.replace(SEPARATOR, " ") for sentence in sentences)


def last_sentence(line: str) -> str:
    """The current sentence of a line, without its context."""
    return line.rpartition(SEPARATOR)[2].strip()


def concatenate(document: Document, previous: int, target_context: bool = False) -> Document:
    """The document with up to `previous` sentences before each sentence of it, over paragraphs too.

    The first sentences of a document have less context. With `target_context` the target has the same
    context as the source, otherwise none. There are as many sentences as before, with their lines.
    """
    sentences = document.sentences

    def with_context(index: int) -> Sentence:
        current, context = sentences[index], sentences[max(index - previous, 0) : index + 1]
        target = current.target
        if target_context and target is not None:
            target = join(sentence.target or "" for sentence in context)
        return Sentence(join(sentence.source for sentence in context), target, current.line)

    joined = map(with_context, range(len(sentences)))
    paragraphs = tuple(tuple(islice(joined, len(paragraph))) for paragraph in document.paragraphs)
    return Document(paragraphs, document.id, document.section)


class Wave(NamedTuple):
    """One sentence of each document that has so many.

    Attributes:
      documents: which documents these are.
      sources: the sentence of each, with its context.
      prefixes: what its translation must begin with: the translations of the context, each with a break.
    """

    documents: list[int]
    sources: list[str]
    prefixes: list[str]


def wave(
    documents: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]], index: int, previous: int
) -> Wave:
    """Sentence `index` of all documents, given the translations of the sentences before it.

    Args:
      documents: source sentences of each document.
      outputs: translations of the first `index` sentences of each document, or of all where it has fewer.
    """
    members = [number for number, document in enumerate(documents) if index < len(document)]
    first = max(index - previous, 0)
    return Wave(
        members,
        [join(documents[number][first : index + 1]) for number in members],
        [join([*outputs[number][first:index], ""]) for number in members],
    )


@dataclass(frozen=True)
class Breaks:
    """A tokenizer of lines of several sentences: `SEPARATOR` in text is `BREAK` among the ids.

    Raises:
      DataError: from `encode` and `decode`, if the vocabulary was made without the symbol `BREAK`.
    """

    tokenizer: Tokenizer

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def pieces(self) -> tuple[str, ...]:
        return self.tokenizer.pieces

    @property
    def hash(self) -> str:
        return self.tokenizer.hash

    @property
    def lowercase(self) -> bool:
        return self.tokenizer.lowercase

    def id(self, symbol: str) -> int:
        """The id of a symbol."""
        return self.tokenizer.id(symbol)

    def encode(self, texts: Sequence[str], threads: int = -1) -> list[list[int]]:
        """Ids of each line, without bos and eos; `threads` -1 is one per core."""
        symbol = self.tokenizer.id(BREAK)
        lines = [text.split(SEPARATOR) for text in texts]
        encoded = iter(self.tokenizer.encode([sentence for line in lines for sentence in line], threads))
        return [_between(list(islice(encoded, len(line))), symbol) for line in lines]

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Lines of the ids before the first eos."""
        symbol = self.tokenizer.id(BREAK)
        lines = [_split(row, symbol) for row in ids]
        decoded = iter(self.tokenizer.decode(sentence for line in lines for sentence in line))
        return [SEPARATOR.join(islice(decoded, len(line))) for line in lines]


def _between(sentences: list[list[int]], symbol: int) -> list[int]:
    joined = list(sentences[0])
    for sentence in sentences[1:]:
        joined += [symbol, *sentence]
    return joined


def _split(row: Sequence[int], symbol: int) -> list[list[int]]:
    sentences: list[list[int]] = [[]]
    for index in map(int, row):
        if index == EOS:
            break
        if index == symbol:
            sentences.append([])
        else:
            sentences[-1].append(index)
    return sentences
