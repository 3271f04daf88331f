"""Answers as spans of tokens: windows over a long context, from characters to tokens and back.

A row is `[CLS] question [SEP] part of the context [SEP]`. Where the answer is not whole in the part, or there is none,
both of its ends are at [CLS] (Devlin et al. 2019, section 4.3). Windows overlap, so that an answer is whole in at least
one of them if it is not longer than the overlap; beside a long question they may not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flaxnmt.data.labelled.examples import Answer, QuestionExample
from flaxnmt.data.tokenizers import CLS, SEP, Offsets, Tokenizer
from flaxnmt.errors import ConfigError
from flaxnmt.typing import Float

NOWHERE = (0, 0)
"""Both ends at [CLS]: no answer here."""

LEAST = 7
"""Tokens of a row that has room for a context beside any question."""

MAX_QUESTION = 64
"""Tokens of a question that are kept (Devlin et al. 2019, in their code)."""


class Window(NamedTuple):
    """A question with a part of its context.

    Attributes:
      ids, segments: the row.
      first: context token that the part begins with.
      begin: its place in the row.
      size: context tokens of the part.
    """

    ids: list[int]
    segments: list[int]
    first: int
    begin: int
    size: int


class Span(NamedTuple):
    """Context tokens from `first` to `last`, and the sum of the logits of its ends; `score` minus that of no answer
    is what a threshold decides on."""

    first: int
    last: int
    score: float


class Question(NamedTuple):
    """A question as tokens: its windows, the answer in each of them (in training the first answer that there is), where
    the tokens of the context stand in its text, and how many tokens were asked, of which its rows may have fewer."""

    windows: list[Window]
    answers: list[tuple[int, int]]
    context: Offsets
    asked: int


def answer_tokens(spans: Sequence[tuple[int, int]], answer: Answer) -> tuple[int, int] | None:
    """First and last of the tokens, by their spans of characters, that hold any of an answer; None if none does."""
    places = [
        place for place, (start, end) in enumerate(spans) if max(start, answer.start) < min(end, answer.end)
    ]
    return (places[0], places[-1]) if places else None


def answer_text(context: str, spans: Sequence[tuple[int, int]], first: int, last: int) -> str:
    """The text of context tokens, spaces between them included."""
    return context[spans[first][0] : spans[last][1]]


def most_of_question(max_length: int, max_question: int = MAX_QUESTION) -> int:
    """Tokens of a question that are kept in rows of this length."""
    return min(max_question, max_length // 2)


def windows(
    question: Sequence[int],
    context: Sequence[int],
    cls: int,
    sep: int,
    *,
    max_length: int,
    stride: int,
    max_question: int = MAX_QUESTION,
) -> list[Window]:
    """The windows of a context, in order; together they hold all of it.

    A question has half of a row at most. Where it leaves less room than the stride, windows follow without overlap.

    Args:
      max_length: tokens of a row, symbols included.
      stride: context tokens by which a window begins after the one before.
      max_question: tokens of the question that are kept.

    Raises:
      ConfigError: if there is no room for the context, or for a stride below 1 or above what any row holds of one.
    """
    head = [cls, *question[: most_of_question(max_length, max_question)], sep]
    room, most = max_length - len(head) - 1, max_length - 3
    if room < 1:
        raise ConfigError(
            f"--data.max-length {max_length} has no room for a context beside a question of {len(head) - 2} tokens: "
            f"give at least {LEAST}"
        )
    if not 1 <= stride <= most:
        raise ConfigError(
            f"--data.stride {stride}: rows of --data.max-length {max_length} hold {most} tokens of a context, give 1 to "
            f"{most}"
        )
    stride, found = min(stride, room), []
    for first in range(0, max(len(context) - room, 0) + stride, stride):
        part = context[first : first + room]
        found.append(
            Window([*head, *part, sep], [0] * len(head) + [1] * (len(part) + 1), first, len(head), len(part))
        )
        if first + room >= len(context):
            break
    return found


def answer_in(window: Window, answer: tuple[int, int] | None) -> tuple[int, int]:
    """Places in the row of the first and last token of an answer, or `NOWHERE` if it is not whole in the window."""
    if answer is None or answer[0] < window.first or answer[1] >= window.first + window.size:
        return NOWHERE
    shift = window.begin - window.first
    return answer[0] + shift, answer[1] + shift


def question_inputs(
    example: QuestionExample,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    stride: int,
    max_question: int = MAX_QUESTION,
) -> Question:
    """A question as windows, with its first answer in each of them.

    Raises:
      DataError: if the vocabulary has no [CLS] or [SEP].
      ConfigError: as `windows`.
    """
    context = tokenizer.encode_with_offsets(example.context)
    (question,) = tokenizer.encode([example.question])
    symbols = tokenizer.id(CLS), tokenizer.id(SEP)
    found = windows(
        question, context.ids, *symbols, max_length=max_length, stride=stride, max_question=max_question
    )
    answer = answer_tokens(context.spans, example.answers[0]) if example.answers else None
    return Question(found, [answer_in(window, answer) for window in found], context, len(question))


def best_span(
    window: Window, start: Float[np.ndarray, "L"], end: Float[np.ndarray, "L"], longest: int = 30
) -> Span | None:
    """The span of at most `longest` context tokens of a window with the largest sum of logits; the first of equals.

    Args:
      start, end: logits of each place of the row; padding after it is not looked at.
    """
    if not window.size:
        return None
    part = slice(window.begin, window.begin + window.size)
    sums = np.asarray(start)[part, None] + np.asarray(end)[None, part]
    allowed = np.tri(window.size, k=longest - 1, dtype=bool) & np.tri(window.size, dtype=bool).T
    sums = np.where(allowed, sums, -np.inf)
    first, last = np.unravel_index(np.argmax(sums), sums.shape)
    return Span(window.first + int(first), window.first + int(last), float(sums[first, last]))


def best_answer(
    question: Question,
    context: str,
    starts: Sequence[Float[np.ndarray, "L"]],
    ends: Sequence[Float[np.ndarray, "L"]],
    *,
    longest: int = 30,
    threshold: float | None = None,
) -> str:
    """The text of the best span of all windows, or "" where no answer is better by more than `threshold`.

    The score of no answer is the least, over the windows, of the sum of the logits at [CLS].

    Args:
      starts, ends: logits of each window, as in `best_span`.
      threshold: of SQuAD 2.0; with None every question has an answer.
    """
    found = [best_span(*parts, longest=longest) for parts in zip(question.windows, starts, ends, strict=True)]
    best = max((span for span in found if span), key=lambda span: span.score, default=None)
    if best is None:
        return ""
    if threshold is not None:
        nothing = min(float(start[0] + end[0]) for start, end in zip(starts, ends))
        if nothing - best.score > threshold:
            return ""
    return answer_text(context, question.context.spans, best.first, best.last)
