"""Context controls: does a gain come from the context, or from more parameters and a noisy input?

A document model is run again with its context taken away (none), taken from another document (random), or out of
order (shuffled). A gain that survives `none` and `random` is not one of context (Kim et al. 2019; Li et al. 2020,
arXiv:2005.03393, found that gains of context encoders remain with random context).

A control turns documents into `View`s: documents to translate, with a note of where each output belongs.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.contrastive import Contrast, Scorer, accuracy, score_contrasts, with_sentences
from flaxnmt.evaluation.documents import Outputs, document_scores, paired_document_bootstrap, references

Kind = Literal["true", "none", "random", "shuffled"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Translate = Callable[[list[Document]], Outputs]
"""Documents to translations: for each document, one for each of its sentences."""

TranslateWanted = Callable[[list[Document], list[tuple[int, ...]]], Outputs]
"""Documents and indices of sentences to translations: for each document, one for each index."""


@dataclass(frozen=True, slots=True)
class View:
    """A document to translate or score in place of another one.

    Attributes:
      document: what the model reads.
      wanted: ascending indices of the sentences whose outputs count; the others are context.
      origin: for each of them, the (document, sentence) of the input that it is.
    """

    document: Document
    wanted: tuple[int, ...]
    origin: tuple[tuple[int, int], ...]


def views(documents: Sequence[Document], kind: Kind, seed: int = 0) -> list[View]:
    """What a model reads under a control; every sentence of the input is wanted exactly once.

    true: the documents themselves.
    none: every sentence as a document of its own.
    random: for every sentence, its document with all other sentences (and their targets) from another document,
      position by position, from its beginning again where it is shorter. As many views as sentences.
    shuffled: the sentences of each document in a random order, in paragraphs of the same lengths.

    The same seed gives the same views. Raises ConfigError for another kind, DataError where there is no other
    document to draw from.
    """
    _check(kind)
    if kind == "random":
        return _random_views(documents, seed)
    if kind == "none":
        return [
            View(_alone(document, sentence), (0,), ((d, s),))
            for d, document in enumerate(documents)
            for s, sentence in enumerate(document)
        ]
    result = []
    for d, document in enumerate(documents):
        order = list(range(len(document)))
        if kind == "shuffled":
            random.Random(f"shuffled/{seed}/{d}").shuffle(order)
        sentences = document.sentences
        read = with_sentences(document, [sentences[s] for s in order])
        result.append(View(read, tuple(range(len(order))), tuple((d, s) for s in order)))
    return result


def collect(views: Sequence[View], outputs: Outputs) -> list[list[str]]:
    """Outputs of the input's sentences in the input's order, from those of the views.

    outputs: for each view, those of all sentences of its document, or of the wanted ones alone.
    Raises DataError for other lengths.
    """
    if len(views) != len(outputs):
        raise DataError(f"outputs for {len(outputs)} documents, where {len(views)} were to be translated")
    found: dict[tuple[int, int], str] = {}
    for number, (view, texts) in enumerate(zip(views, outputs, strict=True), start=1):
        if len(texts) == len(view.document):
            texts = [texts[i] for i in view.wanted]
        elif len(texts) != len(view.wanted):
            raise DataError(
                f"{len(texts)} outputs for document {number} {view.document.id!r}, which has "
                f"{len(view.document)} sentences of which {len(view.wanted)} are wanted"
            )
        found |= zip(view.origin, texts, strict=True)
    lists: list[list[str]] = []
    for d, s in sorted(found):
        while len(lists) <= d:
            lists.append([])
        lists[d].append(found[d, s])
    return lists


def compare_controls(
    translate: Translate,
    documents: Sequence[Document],
    *,
    kinds: Sequence[Kind] = KINDS,
    seed: int = 0,
    samples: int = 1000,
    tokenize: str = "13a",
    lowercase: bool = False,
    translate_wanted: TranslateWanted | None = None,
) -> dict:
    """Translations and scores of documents under each control, and whether true context beats the others.

    Returns {"outputs": {kind: lists of lines}, "scores": {kind: as `document_scores`}, "significance": as
    `paired_document_bootstrap` with the first kind (true context) as baseline}.
    translate_wanted: used for the random control, where a document is read for every sentence; a translator
    that decodes the wanted sentence alone saves most of that time.
    Errors as in `views`, `collect` and `paired_document_bootstrap`; all but those of `collect` come before anything
    is translated.
    """
    options = {"tokenize": tokenize, "lowercase": lowercase}
    if len(set(kinds)) < 2:
        raise ConfigError(f"context controls {list(kinds)}: give true and at least one to compare it with")
    # What cannot be scored is refused here, and not after it was translated.
    document_scores(references(documents), documents, **options)
    parts = {kind: views(documents, kind, seed) for kind in kinds}
    outputs = {}
    for kind, seen in parts.items():
        read = [view.document for view in seen]
        if kind == "random" and translate_wanted is not None:
            texts = translate_wanted(read, [view.wanted for view in seen])
        else:
            texts = translate(read)
        outputs[kind] = collect(seen, texts)
    return {
        "outputs": outputs,
        "scores": {kind: document_scores(texts, documents, **options) for kind, texts in outputs.items()},
        "significance": paired_document_bootstrap(outputs, documents, samples=samples, **options),
    }


def controlled(examples: Sequence[Contrast], kind: Kind, seed: int = 0) -> list[Contrast]:
    """Contrasts whose judged sentence and candidates stay, and whose context is changed.

    none: the sentence alone. random: all other sentences from a document of another group, as in `views`.
    shuffled: all other sentences in a random order around the judged one, which keeps its place.

    Examples of a group get the same donor and the same order. In a closed set the context then decides nothing,
    so that every scorer without ties is right on exactly half of it with `none` and `random`.
    Errors as in `views`.
    """
    _check(kind)
    if kind == "true":
        return list(examples)
    if kind == "none":
        return [
            replace(e, document=_alone(e.document, e.document.sentences[e.sentence]), sentence=0)
            for e in examples
        ]
    # An example without a group is one of its own: a number is nobody's name.
    groups = [example.group or number for number, example in enumerate(examples)]
    places: dict[str | int, int] = {}
    donors: list[Document] = []
    for group, example in zip(groups, examples, strict=True):
        if places.setdefault(group, len(donors)) == len(donors):
            donors.append(example.document)
    result = []
    for group, example in zip(groups, examples, strict=True):
        rng = random.Random(f"{kind}/{seed}/{group}")
        kept, sentences = example.sentence, example.document.sentences
        if kind == "random":
            others = _foreign(sentences, kept, _another(rng, donors, places[group], "groups of contrasts"))
        else:
            rest = [sentence for s, sentence in enumerate(sentences) if s != kept]
            rng.shuffle(rest)
            others = [*rest[:kept], sentences[kept], *rest[kept:]]
        result.append(replace(example, document=with_sentences(example.document, others)))
    return result


def compare_contrastive_controls(
    score: Scorer,
    examples: Sequence[Contrast],
    *,
    kinds: Sequence[Kind] = KINDS,
    seed: int = 0,
    farthest: int | None = None,
) -> dict[str, dict]:
    """Contrastive accuracy under each control: {kind: as `contrastive.accuracy`}; errors as there."""
    result = {}
    for kind in kinds:
        changed = controlled(examples, kind, seed)
        result[kind] = accuracy(changed, score_contrasts(changed, score), farthest=farthest)
    return result


def _random_views(documents: Sequence[Document], seed: int) -> list[View]:
    result = []
    for d, document in enumerate(documents):
        sentences = document.sentences
        for s in range(len(sentences)):
            donor = _another(random.Random(f"random/{seed}/{d}/{s}"), documents, d, "documents")
            read = with_sentences(document, _foreign(sentences, s, donor))
            result.append(View(read, (s,), ((d, s),)))
    return result


def _another(rng: random.Random, documents: Sequence[Document], place: int, what: str) -> Document:
    """A random document that is not the one at this place."""
    if len(documents) < 2:
        raise DataError(f"random context needs two {what} or more, to take it from another one")
    drawn = rng.randrange(len(documents) - 1)
    return documents[drawn + (drawn >= place)]


def _foreign(sentences: Sequence[Sentence], kept: int, donor: Document) -> list[Sentence]:
    """Sentences of the donor at every place but one, from its beginning again where it is shorter."""
    foreign = donor.sentences
    return [sentence if s == kept else foreign[s % len(foreign)] for s, sentence in enumerate(sentences)]


def _alone(document: Document, sentence: Sentence) -> Document:
    return replace(document, paragraphs=((sentence,),))


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"unknown context control {kind!r}: choose from {', '.join(KINDS)}")
