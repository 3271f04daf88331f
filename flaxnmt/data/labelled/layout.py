"""Labelled examples as rows of token ids, in the layout of BERT (Devlin et al. 2019, section 3.1).

`[CLS] text [SEP]` or `[CLS] text [SEP] second [SEP]`; segment 0 up to the first [SEP], 1 after it. A vocabulary has
[CLS] and [SEP] where they were asked for as symbols. Rows are padded with 0, ids and segments alike.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flaxnmt.data.labelled.examples import TaggedExample, TextExample
from flaxnmt.data.tokenizers import CLS, PAD, SEP, Tokenizer
from flaxnmt.errors import ConfigError
from flaxnmt.typing import Int

NO_LABEL = -1
"""The label of a token that is none: a symbol, padding, or a piece of a word after its first."""


class Inputs(NamedTuple):
    """A row of tokens and their segments, of the same length."""

    ids: list[int]
    segments: list[int]


class TaggedInputs(NamedTuple):
    """A row of tokens with a label for the first piece of each word and `NO_LABEL` elsewhere."""

    ids: list[int]
    segments: list[int]
    labels: list[int]


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


def text_inputs(examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int) -> list[Inputs]:
    """The rows of texts and pairs.

    Raises:
      DataError: if the vocabulary has no [CLS] or [SEP].
      ConfigError: as `layout`.
    """
    cls, sep = tokenizer.id(CLS), tokenizer.id(SEP)
    first = tokenizer.encode([example.text for example in examples])
    second = tokenizer.encode([example.second or "" for example in examples])
    return [
        layout(text, None if example.second is None else other, cls, sep, max_length)
        for example, text, other in zip(examples, first, second)
    ]


def tagged_inputs(
    examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_length: int
) -> list[TaggedInputs]:
    """The rows of sentences whose words have labels; words that do not fit are left out, with their labels.

    Each word is cut for itself. Errors as in `text_inputs`.
    """
    cls, sep = tokenizer.id(CLS), tokenizer.id(SEP)
    pieces = iter(tokenizer.encode([word for example in examples for word in example.words]))
    rows = []
    for example in examples:
        words = [next(pieces) for _ in example.words]
        ids, segments = layout([piece for word in words for piece in word], None, cls, sep, max_length)
        labels = [NO_LABEL] * len(ids)
        place = 1
        for word, label in zip(words, example.labels):
            # A word of nothing that the vocabulary sees has no piece.
            if word and place < len(ids) - 1:
                labels[place] = label
            place += len(word)
        rows.append(TaggedInputs(ids, segments, labels))
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
