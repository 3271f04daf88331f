"""Contrastive sets that are closed under swapping: without context, exactly half is right.

Each set is one document written once for every side of one ambiguous word; only the deciding sentence and
the translation of the ambiguous word differ. For every ordered pair of sides there is one example,
so whatever a scorer makes of (sentence, right, wrong), it meets (sentence, wrong, right) as well.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from flaxnmt.data.discourse.generate import check, write_document
from flaxnmt.data.discourse.layout import MAX_DISTANCE, PHENOMENA, Layout, Phenomenon, draw_layout
from flaxnmt.data.discourse.phenomena import KINDS, Split
from flaxnmt.data.documents import Document
from flaxnmt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ContrastiveExample:
    """A document, one of its sentences, and a right and a wrong translation of that sentence."""

    document: Document
    """Holds the right translation."""
    phenomenon: Phenomenon
    distance: int
    sentence: int
    """Index in the document, from 0."""
    deciding_sentence: int
    right: str
    wrong: str
    held_out: bool
    """The antecedent and the template never occur together in training."""
    set: int
    """Examples of one set share everything but what decides."""


def contrastive(
    split: Split,
    sets: int,
    seed: int = 0,
    *,
    phenomena: Sequence[Phenomenon] = PHENOMENA,
    distances: Sequence[int] = tuple(range(1, MAX_DISTANCE + 1)),
    min_sentences: int = 4,
    max_sentences: int = 16,
    max_paragraphs: int = 4,
) -> list[ContrastiveExample]:
    """Closed sets that take turns through `phenomena` x `distances`.

    A set has six examples for a pronoun (ordered pairs of genders) and two for a noun or an address.
    Raises ConfigError for a distance that does not fit into a document.
    """
    check(split, min_sentences, max_sentences, max_paragraphs, tuple(phenomena))
    if not phenomena or not distances or not 1 <= min(distances) <= max(distances) <= max_sentences - 1:
        raise ConfigError(
            f"discourse: distances {list(distances)} of {list(phenomena)} in up to {max_sentences} "
            "sentences; give at least one phenomenon, and distances from 1 to max_sentences - 1"
        )
    examples = []
    for number in range(sets):
        phenomenon = phenomena[number % len(phenomena)]
        distance = distances[number // len(phenomena) % len(distances)]
        name = f"contrastive/{split}/{seed}/{number}"
        rng = random.Random(name)
        shortest = max(min_sentences, distance + 1)
        length = shortest + int(rng.random() * (max_sentences - shortest + 1))
        layout = draw_layout(rng, length, max_paragraphs, focus=(phenomenon, distance))
        examples += _closed_set(rng, layout, split, name, number)
    return examples


def _closed_set(
    rng: random.Random, layout: Layout, split: Split, name: str, number: int
) -> list[ContrastiveExample]:
    focus = layout.groups[0]
    at = focus.dependents[0]
    words = rng.getstate()
    twins = []
    for side in range(KINDS[focus.phenomenon].sides):
        rng.setstate(words)
        twins.append(write_document(rng, layout, split, f"{name}/{side}", side))
    targets = [twin.document.sentences[at].target for twin in twins]
    judged = next(a for a in twins[0].annotations if a.sentence == at)
    return [
        ContrastiveExample(
            twin.document,
            focus.phenomenon,
            judged.distance,
            at,
            focus.decider,
            targets[side],
            wrong,
            judged.held_out,
            number,
        )
        for side, twin in enumerate(twins)
        for wrong in targets
        if wrong != targets[side]
    ]
