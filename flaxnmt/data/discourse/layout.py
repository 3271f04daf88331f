"""Where things stand in a document: paragraphs, deciding sentences and the sentences that depend on them."""

import random
from typing import Literal, NamedTuple

Phenomenon = Literal["pronoun", "noun", "address"]
PHENOMENA: tuple[Phenomenon, ...] = ("pronoun", "noun", "address")
MAX_DISTANCE = 12


class Group(NamedTuple):
    """One deciding sentence and the sentences with an ambiguous word that it decides."""

    phenomenon: Phenomenon
    decider: int
    dependents: tuple[int, ...]


class Layout(NamedTuple):
    length: int
    starts: tuple[int, ...]
    """Index of the first sentence of each paragraph."""
    groups: tuple[Group, ...]


def draw_layout(
    rng: random.Random,
    length: int,
    paragraphs: int,
    phenomena: tuple[Phenomenon, ...] = PHENOMENA,
    focus: tuple[Phenomenon, int] | None = None,
) -> Layout:
    """A layout of `length` sentences in at most `paragraphs` paragraphs.

    The deciding sentence of a pronoun stands before it, of a noun anywhere, of an address in the same
    paragraph. `focus` (phenomenon, distance) makes that the first group, with one dependent only.
    """
    free = [True] * length
    groups: list[Group] = []
    if focus:
        groups.append(_anchor(rng, free, *focus))
    # The address comes first because no paragraph may begin between its two sentences.
    if "address" in phenomena and not (focus and focus[0] == "address") and rng.random() < 0.6:
        groups.append(_anchor(rng, free, "address"))
    spans = [(g.decider, g.dependents[0]) for g in groups if g and g.phenomenon == "address"]
    starts = _starts(rng, length, paragraphs, spans)
    if "address" in phenomena:
        groups += _other_paragraphs(rng, free, length, starts, spans)

    rest = [p for p in phenomena if p != "address"]
    if rng.random() < 0.5:
        rest.reverse()
    for phenomenon in rest:
        if phenomenon == "noun" or not (focus and focus[0] == phenomenon):
            groups.append(_anchor(rng, free, phenomenon))
    if "noun" in phenomena and length >= 10:
        groups.append(_anchor(rng, free, "noun"))
    extended = [_extend(rng, free, length, starts, group) for group in groups[bool(focus) :] if group]
    return Layout(length, starts, (*groups[: bool(focus)], *extended))


def _anchor(
    rng: random.Random, free: list[bool], phenomenon: Phenomenon, distance: int | None = None
) -> Group | None:
    """A group of one dependent on free places; None where a few trials find none.

    The larger of two draws favours long distances, which fewer documents have room for.
    """
    longest = min(MAX_DISTANCE, len(free) - 1)
    for _ in range(4):
        gap = distance or 1 + int(max(rng.random(), rng.random()) * longest)
        low = int(rng.random() * (len(free) - gap))
        if free[low] and free[low + gap]:
            free[low] = free[low + gap] = False
            before = {"pronoun": 1.0, "noun": 0.5, "address": 0.7}[phenomenon]
            if rng.random() < before:
                return Group(phenomenon, low, (low + gap,))
            return Group(phenomenon, low + gap, (low,))
    return None


def _starts(
    rng: random.Random, length: int, paragraphs: int, spans: list[tuple[int, int]]
) -> tuple[int, ...]:
    """First sentences of paragraphs, none within a span (deciding sentence, dependent).

    Most of the dependents end or begin their paragraph, where the relation of the next one is near.
    """
    wanted = int(rng.random() * min(paragraphs, max(1, length // 2)))
    inside = {cut for span in spans for cut in range(min(span) + 1, max(span) + 1)}
    cuts = [cut for cut in range(1, length) if cut not in inside]
    chosen = set(rng.sample(cuts, min(wanted, len(cuts))))
    for decider, dependent in spans:
        edge = dependent + (dependent > decider)
        if paragraphs > 1 and 0 < edge < length and rng.random() < 0.8:
            chosen = {edge, *list(chosen)[: paragraphs - 2]}
    return (0, *sorted(chosen))


def _other_paragraphs(
    rng: random.Random, free: list[bool], length: int, starts: tuple[int, ...], spans: list[tuple[int, int]]
) -> list[Group]:
    """Addresses in paragraphs that have none yet, so that a relation next door can mislead."""
    groups = []
    for start, end in zip(starts, (*starts[1:], length), strict=True):
        places = [i for i in range(start, end) if free[i]]
        if len(places) < 2 or any(start <= span[0] < end for span in spans) or rng.random() < 0.3:
            continue
        decider, dependent = rng.sample(places, 2)
        if rng.random() < 0.5:
            decider, dependent = sorted((decider, dependent))
        if spans and rng.random() < 0.8:
            facing = places[0 if start > spans[0][0] else -1]
            decider, dependent = facing, dependent if dependent != facing else decider
        if abs(decider - dependent) <= MAX_DISTANCE:
            free[decider] = free[dependent] = False
            groups.append(Group("address", decider, (dependent,)))
    return groups


def _extend(
    rng: random.Random, free: list[bool], length: int, starts: tuple[int, ...], group: Group
) -> Group:
    """Adds up to one dependent for every six sentences."""
    low, high = group.decider - MAX_DISTANCE, group.decider + MAX_DISTANCE
    if group.phenomenon == "pronoun":
        low = group.decider + 1
    elif group.phenomenon == "address":
        low = max(low, max(start for start in starts if start <= group.decider))
        high = min(high, min((start for start in starts if start > group.decider), default=length) - 1)
    low, high = max(low, 0), min(high, length - 1)
    dependents = list(group.dependents)
    for _ in range(int(rng.random() * (1 + length / 6))):
        place = low + int(rng.random() * (high - low + 1))
        if free[place]:
            free[place] = False
            dependents.append(place)
    return group._replace(dependents=tuple(sorted(dependents)))
