"""A small grammar of English and German: noun phrases with their endings, and clauses with their word order.

German main clauses put the finite verb second, clauses with "dass" put it last, infinitives after a
modal stand at the end. In the middle field pronoun objects come first, then the dative of a verb with two
noun objects, time, adverb, the (other) object, place.
"""

import functools
from typing import Literal, NamedTuple

from flaxnmt.data.discourse.lexicon import BE, Adjective, Adverbial, Gender, Noun, Verb

Case = Literal["nom", "acc", "dat"]
Order = Literal["plain", "time first", "question", "that"]

_CASES = ("nom", "acc", "dat")
# Endings by gender in the order of _CASES.
_DEFINITE = {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem")}
_DIES = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em")}
_EIN = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em")}
_WEAK = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en")}
_MIXED = {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en")}
_EIN_STEMS = {"a": "ein", "his": "sein", "her": "ihr"}
_CONTRACTIONS = {"in": "im", "an": "am", "von": "vom", "bei": "beim"}


class Phrase(NamedTuple):
    """Determiner ("the", "this", "a", "his", "her", or "" for a mass noun), adjective and noun."""

    determiner: str
    adjective: Adjective | None
    noun: Noun


class Pronoun(NamedTuple):
    english: str
    nom: str
    acc: str
    person: Literal["er", "du", "plural"]


IT: dict[Gender, Pronoun] = {
    "m": Pronoun("it", "er", "ihn", "er"),
    "f": Pronoun("it", "sie", "sie", "er"),
    "n": Pronoun("it", "es", "es", "er"),
}
WE = Pronoun("we", "wir", "uns", "plural")
DU = Pronoun("you", "du", "dich", "du")
SIE = Pronoun("you", "Sie", "Sie", "plural")


class Prepositional(NamedTuple):
    english: str
    german: str
    phrase: Phrase
    case: Case = "dat"


class Clause(NamedTuple):
    subject: Phrase | Pronoun
    verb: Verb
    object: Phrase | Pronoun | None = None
    recipient: Phrase | None = None
    recipient_preposition: str = ""
    complement: Prepositional | None = None
    predicate: tuple[Adverbial, Adjective] | None = None
    place: Prepositional | None = None
    time: Adverbial | None = None
    adverb: Adverbial | None = None
    modal: Verb | None = None
    order: Order = "plain"
    knower: Phrase | None = None
    """Subject of the matrix clause where the order is "that"."""
    knows: Verb | None = None


class NounPhrase(NamedTuple):
    """A German noun phrase as generated, before it is contracted with a preposition (im, vom)."""

    text: str
    case: Case
    gender: Gender


@functools.cache
def decline(phrase: Phrase, case: Case) -> str:
    """The German noun phrase in a case: "the old dog", "acc" gives "den alten Hund"."""
    determiner, adjective, noun = phrase
    if not determiner:
        return noun.german
    at = _CASES.index(case)
    if determiner in _EIN_STEMS:
        article, endings = _EIN_STEMS[determiner] + _EIN[noun.gender][at], _MIXED
    else:
        this = determiner == "this"
        article, endings = "dies" + _DIES[noun.gender][at] if this else _DEFINITE[noun.gender][at], _WEAK
    if adjective is None:
        return f"{article} {noun.german}"
    return f"{article} {adjective.german}{endings[noun.gender][at]} {noun.german}"


@functools.cache
def english_phrase(phrase: Phrase) -> str:
    words = [phrase.adjective.english] if phrase.adjective else []
    words.append(phrase.noun.english)
    determiner = phrase.determiner
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    return " ".join((determiner, *words)) if determiner else " ".join(words)


def conjugate(verb: Verb, subject: Phrase | Pronoun) -> str:
    """The finite German form of a verb that agrees with a subject."""
    person = subject.person if isinstance(subject, Pronoun) else "er"
    return getattr(verb, person)


def english(clause: Clause) -> str:
    """The English sentence, capitalised and with its full stop or question mark."""
    subject, verb, modal, order = clause.subject, clause.verb, clause.modal, clause.order
    name = _english(subject)
    plural = isinstance(subject, Pronoun) and subject.english != "it"
    adverb = clause.adverb.english if clause.adverb else ""
    finite = verb.present if plural else verb.third
    copula = verb.infinitive == BE
    if order == "question":
        auxiliary = modal.base if modal else finite if copula else "do" if plural else "does"
        head = [auxiliary, name, adverb, "" if copula and not modal else verb.base]
    elif modal:
        head = [name, modal.base, adverb, verb.base]
    elif copula:
        head = [name, finite, adverb]
    else:
        head = [name, adverb, finite]
    if order == "time first":
        head.insert(0, clause.time.english)
    elif order == "that":
        head = [english_phrase(clause.knower), clause.knows.third, "that", *head]
    if clause.predicate:
        head += [clause.predicate[0].english, clause.predicate[1].english]
    if clause.object:
        head.append(_english(clause.object))
    if clause.recipient:
        head += [clause.recipient_preposition, english_phrase(clause.recipient)]
    for prepositional in (clause.complement, clause.place):
        if prepositional:
            head += [prepositional.english, english_phrase(prepositional.phrase)]
    if clause.time and order != "time first":
        head.append(clause.time.english)
    return _sentence(head, order)


def german(clause: Clause) -> tuple[str, tuple[NounPhrase, ...]]:
    """The German sentence and its noun phrases in their order."""
    phrases: list[NounPhrase] = []
    subject, verb, modal, order = clause.subject, clause.verb, clause.modal, clause.order
    head = []
    if order == "that":
        head = [_german(clause.knower, "nom", phrases), clause.knows.er + ",", "dass"]
    name = _german(subject, "nom", phrases)
    finite = conjugate(modal or verb, subject)
    if order == "plain":
        head += [name, finite]
    elif order == "time first":
        head += [clause.time.german, finite, name]
    elif order == "question":
        head += [finite, name]
    else:
        head.append(name)
    if isinstance(clause.object, Pronoun):
        head.append(clause.object.acc)
    if clause.recipient and isinstance(clause.object, Phrase):
        head.append(_german(clause.recipient, "dat", phrases))
    if clause.time and order != "time first":
        head.append(clause.time.german)
    if clause.adverb:
        head.append(clause.adverb.german)
    if isinstance(clause.object, Phrase):
        head.append(_german(clause.object, "acc", phrases))
    elif clause.recipient:
        head.append(_german(clause.recipient, "dat", phrases))
    for prepositional in (clause.complement, clause.place):
        if prepositional:
            head.append(_prepositional(prepositional, phrases))
    if clause.predicate:
        head += [clause.predicate[0].german, clause.predicate[1].german]
    if modal:
        head.append(verb.infinitive)
    if order == "that":
        head.append(finite)
    return _sentence(head, order), tuple(phrases)


def _english(phrase: Phrase | Pronoun) -> str:
    return phrase.english if isinstance(phrase, Pronoun) else english_phrase(phrase)


def _german(phrase: Phrase | Pronoun, case: Case, phrases: list[NounPhrase]) -> str:
    if isinstance(phrase, Pronoun):
        return phrase.nom
    text = decline(phrase, case)
    if phrase.determiner:
        phrases.append(NounPhrase(text, case, phrase.noun.gender))
    return text


def _prepositional(part: Prepositional, phrases: list[NounPhrase]) -> str:
    text = _german(part.phrase, part.case, phrases)
    if part.german in _CONTRACTIONS and text.startswith("dem "):
        return _CONTRACTIONS[part.german] + text[3:]
    return f"{part.german} {text}"


def _sentence(words: list[str], order: Order) -> str:
    text = " ".join(filter(None, words))
    return f"{text[0].upper()}{text[1:]}{'?' if order == 'question' else '.'}"
