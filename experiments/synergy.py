"""Synergy of encoders (Hu et al. 2023, section 5): what one gains from another beside it, and how to grow by it.

Scores are BLEU, or any other quality, by the encoders of a model: `("attention:6",)`, `("attention:6", "lstm:18")`; twice
the same is an encoder duplicated. Order does not matter.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

Encoders = tuple[str, ...]
Scores = Mapping[Encoders, float]
Base = Literal["single", "duplicated"]
"""What the gain of a pair is measured from. The paper's words allow both readings: the first encoder alone, or the first
encoder twice, which is a model of about the same size."""


def canonical(encoders: Iterable[str]) -> Encoders:
    """The same for any order."""
    return tuple(sorted(encoders))


def synergy(scores: Scores, first: str, second: str, base: Base = "single") -> float | None:
    """s(first, second) = score(first + second) - score(first), or of first twice; None where a score is missing."""
    alone = (first,) if base == "single" else (first, first)
    both, without = scores.get(canonical((first, second))), scores.get(canonical(alone))
    return None if both is None or without is None else both - without


def synergy_matrix(
    scores: Scores, encoders: Sequence[str], base: Base = "single"
) -> list[list[float | None]]:
    """s(row, column) of all pairs of different encoders; None on the diagonal."""
    return [
        [None if one == other else synergy(scores, one, other, base) for other in encoders]
        for one in encoders
    ]


def mutual(scores: Scores, first: str, second: str, base: Base = "single") -> float | None:
    """s(first, second) + s(second, first), by which the paper chooses what to add."""
    both = synergy(scores, first, second, base), synergy(scores, second, first, base)
    return None if None in both else sum(both)


def growth(scores: Scores, encoders: Sequence[str], base: Base = "single") -> list[str] | None:
    """The encoders in the order in which they are added: the pair with the most mutual synergy, then always that with the
    most of any with one that is in, which is how the paper's rule is read here. Of the pair the one that gains less comes
    first, which is the better by itself.

    None where a pair has not been measured.
    """
    pairs = {pair: mutual(scores, *pair, base) for pair in combinations(encoders, 2)}
    if None in pairs.values():
        return None

    def gain(candidate: str) -> float:
        return max(value for pair, value in pairs.items() if candidate in pair and set(order) & set(pair))

    one, other = max(pairs, key=pairs.__getitem__)
    order = (
        [one, other]
        if synergy(scores, one, other, base) <= synergy(scores, other, one, base)
        else [other, one]
    )
    while left := [encoder for encoder in encoders if encoder not in order]:
        order.append(max(left, key=gain))
    return order
