"""Translation by a sentence model that reads the sentences before its own (`flaxnmt.data.concatenation`)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flaxnmt.data.concatenation import BREAK, join, last_sentence, wave
from flaxnmt.data.documents import Document
from flaxnmt.data.shards import DOCUMENT
from flaxnmt.data.tokenizers import Tokenizer
from flaxnmt.errors import ConfigError
from flaxnmt.translation.lines import Text
from flaxnmt.translation.search import Hypothesis, Score
from flaxnmt.translation.shapes import longest_of
from flaxnmt.translation.translator import Translator


class ConcatenationTranslator(Translator):
    """Puts the previous sentences of its document before each line, and takes their translation off again.

    With target context, sentences are decoded in their order, each after the model's own translations of the
    sentences before it; one search is for the first sentences of all documents, the next for the second ones.

    Attributes:
      previous: sentences of context, at most.
      target_context: whether the model writes them, too.
    """

    by_document = True
    forces_context = True

    def __init__(self, *parts, previous: int, target_context: bool, **options):
        super().__init__(*parts, **options)
        self.previous, self.target_context = previous, target_context

    def outputs(
        self, text: Text, prefixes: Sequence[str] | None = None, *args, **options
    ) -> list[list[Hypothesis]]:
        if prefixes is not None:
            raise ConfigError("a model of concatenated sentences forces its own prefixes: leave --prefix out")
        documents = _documents(text)
        if not self.target_context:
            lines = self._with_context(text.sentences, documents)
            results = super().outputs(text._replace(sentences=lines), None, *args, **options)
            return [[_last(one) for one in found] for found in results]
        if text.wanted is not None:
            # What comes after the last wanted sentence of a document is not looked at.
            ends = [
                max((n for n, i in enumerate(document, 1) if text.wanted[i]), default=0)
                for document in documents
            ]
            documents = [document[:end] for document, end in zip(documents, ends, strict=True)]
        sources = [[text.sentences[i] for i in document] for document in documents]
        best: list[list[str]] = [[] for _ in documents]
        results: list[list[Hypothesis]] = [[]] * len(text.sentences)
        for index in range(max(map(len, documents), default=0)):
            members, lines, starts = wave(sources, best, index, self.previous)
            places = np.asarray([documents[member][index] for member in members])
            part = Text(tuple(lines), text.starts[places], text.numbers[places])
            for member, place, found in zip(
                members, places, super().outputs(part, starts, *args, **options), strict=True
            ):
                results[place] = [_last(one) for one in found]
                best[member].append(results[place][0].text)
        return results if text.wanted is None else [results[i] for i in np.flatnonzero(text.wanted)]

    def log_probs(self, judged: Sequence[tuple[Document, int]], **options) -> list[float]:
        # Of each document the model reads nothing else than this.
        read = [
            replace(document, paragraphs=(document.sentences[max(index - self.previous, 0) : index + 1],))
            for document, index in judged
        ]
        return [found[-1].log_prob for found in self.score_documents(read, **options)]

    def scores(self, text: Text, targets: Sequence[str], *args, **options) -> list[Score]:
        """Scores of the targets alone; with target context, given the targets before them."""
        documents = _documents(text)
        lines = self._with_context(text.sentences, documents)
        if self.target_context:
            targets = self._with_context(targets, documents)
        scores = super().scores(text._replace(sentences=lines), targets, *args, **options)
        return [_after_break(score) for score in scores]

    def encode(self, tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, without its first sentences where it is too long: what is cut is context."""
        symbol, most = tokenizer.id(BREAK), longest_of(self.model.config) - 1
        return [_within(ids, most, symbol) for ids in super().encode(tokenizer, lines)]

    def _with_context(self, sentences: Sequence[str], documents: list[list[int]]) -> tuple[str, ...]:
        return tuple(
            join(sentences[i] for i in document[max(place - self.previous, 0) : place + 1])
            for document in documents
            for place in range(len(document))
        )


def _documents(text: Text) -> list[list[int]]:
    """Indices of the sentences of each document."""
    starts = np.flatnonzero(text.starts & DOCUMENT)
    ends = [*starts[1:], len(text.sentences)] if len(starts) else []
    return [list(range(start, end)) for start, end in zip(starts, ends, strict=True)]


def _within(ids: list[int], most: int, symbol: int) -> list[int]:
    """The last sentences of a line, as many as hold `most` ids together, and one in any case."""
    start = 0
    while len(ids) - start > most and symbol in ids[start:]:
        start = ids.index(symbol, start) + 1
    return ids[start:]


def _last_start(tokens: Sequence[str]) -> int:
    """Where the last sentence begins."""
    return max((i + 1 for i, token in enumerate(tokens) if token == BREAK), default=0)


def _last(found: Hypothesis) -> Hypothesis:
    """The last sentence of an output; its scores are those of the whole."""
    return replace(found, text=last_sentence(found.text), tokens=found.tokens[_last_start(found.tokens) :])


def _after_break(score: Score) -> Score:
    """The part of a score that belongs to the last sentence."""
    place = _last_start(score.tokens)
    values = score.token_log_probs[place:]
    if not place:
        return score
    return replace(score, log_prob=float(sum(values)), token_log_probs=values, tokens=score.tokens[place:])
