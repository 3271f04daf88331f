"""Labelled examples as rows of token ids, in the layout of BERT (Devlin et al. 2019, section 3.1).

`[CLS] text [SEP]` or `[CLS] text [SEP] second [SEP]`; segment 0 up to the first [SEP], 1 after it. A vocabulary has
[CLS] and [SEP] where they were asked for as symbols. Rows are padded with 0, ids and segments alike.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flaxnmt.data.labelled.examples import TaggedExample, TextExample
from flaxnmt.data.tokenizers import CLS, SEP, Tokenizer
from flaxnmt.errors import ConfigError
from flaxnmt.symbols import PAD
from flaxnmt.typing import Int

log = logging.getLogger(__name__)

NO_LABEL = -1
"""The label of a token that is none: a symbol, padding, or a piece of a word after its first."""

NO_PLACE = -1
"""The place of a word that is not in its row."""


class Inputs(NamedTuple):
    """A row of tokens and their segments, of the same length."""

    ids: list[int]
    segments: list[int]


class TaggedInputs(NamedTuple):
    """A row of tokens with a label for the first piece of each word and `NO_LABEL` elsewhere.

    Attributes:
      places: of the first piece of each word; `NO_PLACE` of one that was cut off or has no piece.
    """

    ids: list[int]
    segments: list[int]
    labels: list[int]
    places: list[int]


def cuts(what: str, sizes: Sequence[int], limit: int, lines: Sequence[int] | None = None) -> str:
    """Says how many of these are longer than a limit, in tokens, and which is the first; empty where none is.

    Args:
      what: they are, such as "dev texts".
      sizes: of each, symbols included.
      limit: at which they are cut.
      lines: of each in its file; None where there are none.
    """
    over = [place for place, size in enumerate(sizes) if size > limit]
    if not over:
        return ""
    first = f"number {over[0] + 1}" if lines is None else f"line {lines[over[0]]}"
    return f"{len(over)} of {len(sizes)} {what} exceed {limit} tokens and are cut there; the first is {first}"


def truncate(first: Sequence[int], second: Sequence[int], room: int) -> tuple[list[int], list[int]]:
    """Two texts cut at their ends to `room` tokens together: the longer one first, until they are of one length.

    Of an odd room the first text has the token more.
    """
    longest = (room + 1) // 2, room // 2
    sizes = (
        min(len(first), max(longest[0], room - len(second))),
        min(len(second), max(longest[1], room - len(first))),
    )
    return list(first[: sizes[0]]), list(second[: sizes[1]])


def layout(first: Sequence[int], second: Sequence[int] | None, cls: int, sep: int, max_length: int) -> Inputs:
    """One text, or a pair, of at most `max_length` tokens with their symbols.

    Raises:
      ConfigError: if there is no room for a token of each text.
    """
    symbols, texts = (2, 1) if second is None else (3, 2)
    if max_length < symbols + texts:
        raise ConfigError(f"max_length {max_length} has no room for a token: give at least {symbols + texts}")
    cut, rest = truncate(first, second or (), max_length - symbols)
    ids = [cls, *cut, sep]
    after = [] if second is None else [*rest, sep]
    return Inputs(ids + after, [0] * len(ids) + [1] * len(after))


def text_inputs(
    examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int, what: str = "texts"
) -> list[Inputs]:
    """The rows of texts and pairs; those that are cut are counted in a warning, which calls all of them `what`.

    Raises:
      DataError: if the vocabulary has no [CLS] or [SEP].
      ConfigError: as `layout`.
    """
    cls, sep = tokenizer.id(CLS), tokenizer.id(SEP)
    first = tokenizer.encode([example.text for example in examples])
    second = tokenizer.encode([example.second or "" for example in examples])
    sizes = [
        len(text) + len(other) + (2 if example.second is None else 3)
        for example, text, other in zip(examples, first, second)
    ]
    if said := cuts(what, sizes, max_length, _lines(examples)):
        log.warning("%s", said)
    return [
        layout(text, None if example.second is None else other, cls, sep, max_length)
        for example, text, other in zip(examples, first, second)
    ]


def _lines(examples: Sequence[TextExample] | Sequence[TaggedExample]) -> list[int] | None:
    """Where examples begin in their files, if they are of files."""
    return [example.line for example in examples] if all(example.line for example in examples) else None


def tagged_inputs(
    examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_length: int, what: str = "sentences"
) -> list[TaggedInputs]:
    """The rows of sentences whose words have labels; words that do not fit are cut off, and have no place.

    Each word is cut for itself. A warning counts the words that no row has. Errors as in `text_inputs`.
    """
    cls, sep = tokenizer.id(CLS), tokenizer.id(SEP)
    pieces = iter(tokenizer.encode([word for example in examples for word in example.words]))
    sentences = [[next(pieces) for _ in example.words] for example in examples]
    sizes = [sum(map(len, words)) + 2 for words in sentences]
    rows = []
    for example, words in zip(examples, sentences):
        ids, segments = layout([piece for word in words for piece in word], None, cls, sep, max_length)
        labels, places = [NO_LABEL] * len(ids), []
        place = 1
        for word, label in zip(words, example.labels):
            # A word of nothing that the vocabulary sees has no piece.
            there = word and place < len(ids) - 1
            places.append(place if there else NO_PLACE)
            if there:
                labels[place] = label
            place += len(word)
        rows.append(TaggedInputs(ids, segments, labels, places))
    said, lost = (
        cuts(what, sizes, max_length, _lines(examples)),
        sum(row.places.count(NO_PLACE) for row in rows),
    )
    if lost:
        own = f"{lost} words of {what} are not read, and count as labelled wrongly"
        log.warning("%s", f"{said}; {own}" if said else own)
    return rows


def padded(
    rows: Iterable[Sequence[int]], length: int | None = None, value: int = PAD
) -> Int[np.ndarray, "B L"]:
    """Rows as one array, filled with `value` up to `length`, or to the longest; longer ones are an error."""
    rows = list(rows)
    array = np.full(
        (len(rows), max(map(len, rows), default=0) if length is None else length), value, np.int32
    )
    for place, row in enumerate(rows):
        if len(row) > array.shape[1]:
            raise ValueError(f"row {place} has {len(row)} tokens, more than {array.shape[1]}")
        array[place, : len(row)] = row
    return array
