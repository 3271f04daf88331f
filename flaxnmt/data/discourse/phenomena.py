"""The three phenomena: what decides, what depends, and how both are said.

Each class draws its words once for all sides (genders, senses or relations); `side` says which one
holds in this document, so two documents that differ in it differ in nothing but what it decides.
`earlier` are the contents that the document has already.
"""

import random
from collections.abc import Sequence
from typing import Literal

from flaxnmt.data.discourse import lexicon
from flaxnmt.data.discourse.clauses import ANYBODY, Slot, Trio, contact, fill, pick
from flaxnmt.data.discourse.grammar import DU, IT, SIE, WE, Clause, Pronoun, conjugate
from flaxnmt.data.discourse.lexicon import GENDERS, Frame

Split = Literal["train", "dev", "test"]
HELD_OUT_SHARE_IN_TEST = 0.5
"""Share of pronouns in the test split whose pair of antecedent and template never occurs in training."""
_HELD_OUT_EVERY = 5

_SPEAKERS = lexicon.PERSONS["m"] + lexicon.PERSONS["f"]
_IT_AS_SUBJECT = {kind: tuple(f for f in lexicon.FRAMES if kind in f.subjects) for kind in "taw"}
_IT_AS_OBJECT = {kind: tuple(f for f in lexicon.FRAMES if kind in f.objects) for kind in "taw"}
_YOU_AS_SUBJECT = tuple(f for f in lexicon.FRAMES if "p" in f.subjects)
_YOU_AS_OBJECT = tuple(
    f for f in lexicon.FRAMES if "p" in f.objects or ("w" in f.objects and f.recipient is None)
)


def template(role: str, frame: Frame) -> str:
    """Name of a way to say an ambiguous word: its grammatical role and its German verb."""
    return f"{role}/{frame.verb.infinitive}"


def templates(kind: str) -> list[tuple[str, Frame]]:
    """Roles and frames in which "it" (kinds t and a) or an ambiguous noun (kind w) can stand."""
    subjects = [("subject", frame) for frame in _IT_AS_SUBJECT[kind]]
    return subjects + [("object", frame) for frame in _IT_AS_OBJECT[kind]]


def is_held_out(trio: Trio, number: int) -> bool:
    """Whether an antecedent and template `number` of `templates(kind)` meet in the test split only."""
    return (trio[1] + number) % _HELD_OUT_EVERY == 0


def _by_status(kind: str, index: int) -> dict[bool, list[tuple[str, Frame]]]:
    status: dict[bool, list[tuple[str, Frame]]] = {True: [], False: []}
    for number, pair in enumerate(templates(kind)):
        status[is_held_out((kind, index), number)].append(pair)
    return status


_TEMPLATES = {
    (kind, index): _by_status(kind, index)
    for kind in lexicon.ANTECEDENTS
    for index in range(len(lexicon.ANTECEDENTS[kind]["m"]))
}
_NOUN_TEMPLATES = templates("w")


class PronounTopic:
    """*it* is er, sie or es by the gender of the topic: "This story is about the lamp." """

    sides = 3
    source_word = "it"

    def __init__(self, rng: random.Random, split: Split, side: int | None, earlier: Sequence):
        kind = "t" if rng.random() < 0.6 else "a"
        nouns = lexicon.ANTECEDENTS[kind]
        self.split = split
        self.trio: Trio = (kind, int(rng.random() * len(nouns["m"])))
        drawn = int(rng.random() * self.sides)
        self.gender = GENDERS[drawn if side is None else side]
        self.antecedent = nouns[self.gender][self.trio[1]]

    def decide(self, rng: random.Random) -> Clause:
        topic = Slot(self.trio[0], self.antecedent, "the")
        if rng.random() < 0.5:
            return contact(rng, pick(rng, lexicon.TELLING), WE, topic, timed=True)
        text = Slot("text", pick(rng, lexicon.TEXTS), "this")
        return contact(rng, lexicon.IS_ABOUT, text, topic, stative=True)

    def depend(self, rng: random.Random, avoid: Trio | None) -> tuple[Clause, str, bool]:
        unseen = self.split == "test" and rng.random() < HELD_OUT_SHARE_IN_TEST
        role, frame = pick(rng, _TEMPLATES[self.trio][unseen])
        clause = fill(rng, frame, **{role: IT[self.gender]}, avoid=avoid, kind=self.trio[0])
        return clause, template(role, frame), unseen

    def target_words(self, clause: Clause) -> tuple[str, ...]:
        return _pronoun_words(clause, IT[self.gender])


class NounSense:
    """*bank* is Bank or Ufer by a sentence about money or about the river."""

    sides = 2

    def __init__(self, rng: random.Random, split: Split, side: int | None, earlier: Sequence):
        used = {words.source_word for words in earlier}
        senses = pick(rng, [senses for senses in lexicon.AMBIGUOUS if senses[0].noun.english not in used])
        cues = tuple(pick(rng, sense.cues) for sense in senses)
        drawn = int(rng.random() * self.sides)
        side = drawn if side is None else side
        self.noun, self.cue = senses[side].noun, cues[side]
        self.source_word = self.noun.english

    def decide(self, rng: random.Random) -> Clause:
        cue = Slot("", self.cue, "" if self.cue.mass else "the")
        return contact(rng, pick(rng, lexicon.TELLING), Slot("p", pick(rng, ANYBODY), "the"), cue)

    def depend(self, rng: random.Random, avoid: Trio | None) -> tuple[Clause, str, bool]:
        role, frame = pick(rng, _NOUN_TEMPLATES)
        noun = Slot("w", self.noun, pick(rng, ("the", "the", "a")))
        return fill(rng, frame, **{role: noun}, avoid=avoid), template(role, frame), False

    def target_words(self, clause: Clause) -> tuple[str, ...]:
        return (self.noun.german,)


class Address:
    """*you* is du or Sie by whom the speaker of the paragraph talks to: a brother or the director."""

    sides = 2
    source_word = "you"

    def __init__(self, rng: random.Random, split: Split, side: int | None, earlier: Sequence):
        self.speaker = pick(rng, _SPEAKERS)
        possessive = "his" if self.speaker.gender == "m" else "her"
        familiar, formal = pick(rng, lexicon.FAMILIAR), pick(rng, lexicon.FORMAL)
        close = rng.random() < 0.5 and formal.english in lexicon.PERSONAL_SERVICE
        self.drawn = int(rng.random() * self.sides)
        others = [words.drawn for words in earlier if isinstance(words, Address)]
        if rng.random() < 0.5 and others:  # neighbours that mostly disagree, so that paragraphs matter
            self.drawn = 1 - others[-1]
        side = self.drawn if side is None else side
        self.addressee = (
            Slot("addressee", familiar, possessive),
            Slot("addressee", formal, possessive if close else "the"),
        )[side]
        self.you = (DU, SIE)[side]

    def decide(self, rng: random.Random) -> Clause:
        return contact(rng, pick(rng, lexicon.ADDRESSING), Slot("p", self.speaker, "the"), self.addressee)

    def depend(self, rng: random.Random, avoid: Trio | None) -> tuple[Clause, str, bool]:
        if rng.random() < 0.8:
            role, frame = "subject", pick(rng, _YOU_AS_SUBJECT)
        else:
            role, frame = "object", pick(rng, _YOU_AS_OBJECT)
        return fill(rng, frame, **{role: self.you}, avoid=avoid, kind="p"), template(role, frame), False

    def target_words(self, clause: Clause) -> tuple[str, ...]:
        words = _pronoun_words(clause, self.you)
        if clause.subject != self.you:
            return words
        verb = conjugate(clause.modal or clause.verb, self.you)
        return (verb[0].upper() + verb[1:], *words) if clause.order == "question" else (*words, verb)


KINDS = {"pronoun": PronounTopic, "noun": NounSense, "address": Address}


def filler(rng: random.Random, avoid: Trio | None) -> Clause:
    """A sentence without an ambiguous word; its nouns distract."""
    return fill(rng, pick(rng, lexicon.FRAMES), avoid=avoid)


def _pronoun_words(clause: Clause, pronoun: Pronoun) -> tuple[str, ...]:
    if clause.subject != pronoun:
        return (pronoun.acc,)
    return (pronoun.nom.capitalize() if clause.order == "plain" else pronoun.nom,)
