"""Documents whose outputs are lines, one a sentence, with a blank line between two documents."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from flaxnmt.data.documents import Document
from flaxnmt.data.shards import DOCUMENT
from flaxnmt.errors import ConfigError
from flaxnmt.translation.lines import Text
from flaxnmt.translation.search import BLANK, Hypothesis, Score
from flaxnmt.translation.translator import Translator


def spaced(documents: Sequence[Document], first_line: int = 1) -> Text:
    """The source sentences of documents, numbered as the lines that they are written on."""
    text = Text.of_documents(documents)
    blanks = np.cumsum(text.starts & DOCUMENT != 0) - 1
    return text._replace(numbers=text.numbers + blanks + first_line - 1)


def stream(
    translator: Translator,
    blocks: Iterable[Sequence[Document]],
    *,
    prefixes: Sequence[str] | None = None,
    **options,
) -> Iterator[list[Hypothesis]]:
    """The outputs of each line of documents that come in blocks, each as soon as its block is there.

    Paragraphs are those of the documents. A translator that knows no documents translates sentence by sentence.

    Args:
      translator: of lines or of documents.
      blocks: documents, of which each has a sentence.
      prefixes: what each line must begin with, blank ones included; all documents are then one block.
      options: of `Translator.outputs`.

    Raises:
      ConfigError: as `Translator.hypotheses`.
    """
    blank, last = [BLANK] * options.get("n_best", 1), 0
    for documents in blocks:
        text = spaced(documents, last + 2 if last else 1)
        lines = range(last + 1, int(text.numbers[-1]) + 1)
        given, last = None, lines[-1]
        if prefixes is not None:
            if len(prefixes) != last:
                raise ConfigError(
                    f"{len(prefixes)} prefixes for {last} lines: give one a sentence, and a blank one between two "
                    "documents"
                )
            given = [prefixes[number - 1] for number in text.numbers]
        found = dict(zip(text.numbers.tolist(), translator.outputs(text, given, **options), strict=True))
        for number in lines:
            yield found.get(number, blank)


def score(
    translator: Translator,
    documents: Sequence[Document],
    outputs: Sequence[str],
    batch_size: int | None = None,
    budget: float | Sequence[float] | None = None,
) -> list[Score]:
    """log p of the lines that `stream` wrote of these documents; 0 for a blank line between two."""
    text = spaced(documents)
    results = [Score(0.0, (), ())] * len(outputs)
    targets = [outputs[number - 1] for number in text.numbers]
    for number, found in zip(text.numbers, translator.scores(text, targets, batch_size, budget), strict=True):
        results[number - 1] = found
    return results
