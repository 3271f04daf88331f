"""Draws clauses: fills the frames of the lexicon with nouns, adjectives, adverbs, times and places.

How much randomness a clause uses depends on the kinds of its words only, never on the words: twins of a
contrastive set stay equal outside of what was exchanged.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from flaxnmt.data.discourse import lexicon
from flaxnmt.data.discourse.grammar import Case, Clause, Order, Phrase, Prepositional, Pronoun
from flaxnmt.data.discourse.lexicon import BE, GENDERS, Contact, Frame, Noun, Verb

MIN_WORDS, MAX_WORDS = 4, 10
ANYBODY = tuple(noun for gender in GENDERS for noun in lexicon.PERSONS[gender])
_ANY_ADVERB = lexicon.FREQUENCIES + lexicon.OPINIONS
_DETERMINERS = ("the", "the", "a")

Trio = tuple[str, int]
"""Kind of antecedent and its index in the list of each gender."""
T = TypeVar("T")


class Slot(NamedTuple):
    """A noun with its determiner, and the kind that says which adjectives it takes ("" for none)."""

    kind: str
    noun: Noun
    determiner: str


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """A uniform choice from one draw."""
    return options[int(rng.random() * len(options))]


def fill(
    rng: random.Random,
    frame: Frame,
    subject: Slot | Pronoun | None = None,
    object: Slot | Pronoun | None = None,
    avoid: Trio | None = None,
    kind: str = "",
) -> Clause:
    """A clause of a frame; subject and object are drawn where they are not given.

    `avoid` is the trio that is the document's topic: its nouns are not drawn. `kind` is that of what a
    pronoun given as subject stands for.
    """
    if subject is None:
        subject = _draw(rng, frame.subjects, avoid)
    kind = subject.kind if isinstance(subject, Slot) else kind
    actor = subject.noun if isinstance(subject, Slot) else None
    if object is None and frame.objects:
        object = _draw(rng, frame.objects, avoid, actor)
    return compose(
        rng,
        frame.verb,
        subject,
        object=object,
        recipient=None if frame.recipient is None else _person(rng, actor),
        recipient_preposition=frame.recipient or "",
        predicate=kind if frame.verb.infinitive == BE else None,
        place=frame.place,
        modals=() if frame.stative else lexicon.MODALS if kind in "pa" else lexicon.MODALS[:1],
        stative=frame.stative,
    )


def contact(rng: random.Random, how: Contact, subject: Slot | Pronoun, other: Slot, **options) -> Clause:
    """A plain clause that joins a subject to an addressee or a theme by a verb and its case."""
    options |= {"plain": True}
    if how.german:
        return compose(rng, how.verb, subject, complement=(how.german, other, how.case), **options)
    case = {"acc": "object", "dat": "recipient"}[how.case]
    return compose(rng, how.verb, subject, **{case: other}, **options)


def compose(
    rng: random.Random,
    verb: Verb,
    subject: Slot | Pronoun,
    object: Slot | Pronoun | None = None,
    recipient: Slot | None = None,
    recipient_preposition: str = "",
    complement: tuple[str, Slot, Case] | None = None,
    predicate: str | None = None,
    place: str = "maybe",
    modals: Sequence[Verb] = (),
    stative: bool = False,
    timed: bool = False,
    plain: bool = False,
) -> Clause:
    """Adds what is optional to a verb and its arguments, within MIN_WORDS to MAX_WORDS English words.

    `predicate` is the kind of adjective said of the subject; `timed` forces a time;
    `plain` leaves out adverbs and matrix clauses.
    """
    words = 2 - isinstance(subject, Pronoun) + verb.base.count(" ") + 1
    words += 0 if object is None else 2 - isinstance(object, Pronoun)
    words += 2 * (recipient is not None) + bool(recipient_preposition) + 2 * (complement is not None)
    words += 2 * (predicate is not None)
    here = place == "always" or (place == "maybe" and (words < MIN_WORDS or rng.random() < 0.4))
    here = here and words + 3 <= MAX_WORDS
    words += 3 * here

    order: Order = "plain"
    asked = isinstance(subject, Pronoun) and subject.english == "you" and rng.random() < 0.25
    draw = rng.random()
    if asked:
        order, words = "question", words + 1
    elif draw < (0.4 if stative else 0.15) and words + 4 <= MAX_WORDS and not plain:
        order, words = "that", words + 4
    elif draw < 0.4 and not stative and words + 2 <= MAX_WORDS:
        order = "time first"
    when = how_often = modal = None
    late = timed or (not stative and words + 2 <= MAX_WORDS and rng.random() < 0.3)
    if late or order == "time first":
        when, words = pick(rng, lexicon.TIMES), words + 2
    if modals and words < MAX_WORDS and rng.random() < 0.2:
        modal, words = pick(rng, modals), words + 1
    adverbs = _adverbs(bool(when) or stative, bool(modal) or asked)
    if adverbs and words < MAX_WORDS and not plain and rng.random() < 0.4:
        how_often, words = pick(rng, adverbs), words + 1

    where = Slot("place", pick(rng, lexicon.PLACES), "the") if here else None
    actor = subject.noun if isinstance(subject, Slot) else None
    knower = _person(rng, actor) if order == "that" else None
    theme = complement[1] if complement else None
    phrases = []
    for slot in (subject, object, recipient, theme, where, knower):
        adjective = None
        if isinstance(slot, Slot):
            if slot.kind and words < MAX_WORDS and rng.random() < 0.5:
                adjective, words = pick(rng, lexicon.ADJECTIVES[slot.kind]), words + 1
            slot = Phrase(slot.determiner, adjective, slot.noun)
        phrases.append(slot)
    actor, patient, receiver, theme, where, knower = phrases
    return Clause(
        actor,
        verb,
        patient,
        receiver,
        recipient_preposition,
        Prepositional("", complement[0], theme, complement[2]) if complement else None,
        (pick(rng, lexicon.DEGREES), pick(rng, lexicon.ADJECTIVES[predicate])) if predicate else None,
        Prepositional(*pick(rng, lexicon.PLACE_PREPOSITIONS), where) if where else None,
        when,
        how_often,
        modal,
        order,
        knower,
        pick(rng, lexicon.MATRIX_VERBS) if knower else None,
    )


def _adverbs(no_frequency: bool, no_opinion: bool) -> Sequence[lexicon.Adverbial]:
    if no_frequency:
        return () if no_opinion else lexicon.OPINIONS
    return lexicon.FREQUENCIES if no_opinion else _ANY_ADVERB


def _draw(rng: random.Random, kinds: str, avoid: Trio | None, other: Noun | None = None) -> Slot:
    kind = pick(rng, [letter for letter in kinds if letter in "pta"])
    if kind == "p":
        return _person(rng, other)
    nouns = pick(rng, tuple(lexicon.ANTECEDENTS[kind].values()))
    index = int(rng.random() * len(nouns))
    if (kind, index) == avoid:
        index = (index + 1) % len(nouns)
    return Slot(kind, nouns[index], pick(rng, _DETERMINERS))


def _person(rng: random.Random, other: Noun | None) -> Slot:
    """Anybody but `other`: nobody gives a book to himself here."""
    index = int(rng.random() * len(ANYBODY))
    if ANYBODY[index] == other:
        index = (index + 1) % len(ANYBODY)
    return Slot("p", ANYBODY[index], "the")
