"""How much gates let through, from what blocks captured of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flaxnmt.symbols import PAD
from flaxnmt.typing import Array, Bool, Float, Int

BATCH = 64
"""Rows at once."""

Gates = Mapping[str, Sequence[Mapping[str, Mapping[str, Float[Array, "*B L m"]]]]]
"""By stack, layer, block and kind, as `Aux.gates`: 1 where a gate is open, 0 where it is closed and at padding."""

Tokens = Callable[[str, str, str], Bool[np.ndarray, "*B L"]]
"""From stack, block and kind of a gate to the tokens that it has decided about."""


def in_batches(*ids: Int[np.ndarray, "B _"]) -> Iterator[tuple[Int[np.ndarray, "b _"], ...]]:
    """Padded rows and those that go with them, always as many at once, the last ones with rows of padding behind them."""
    count = len(ids[0])
    size = min(count, BATCH)
    for first in range(0, count, size):
        some = [rows[first : first + size] for rows in ids]
        yield tuple(np.pad(rows, ((0, size - len(rows)), (0, 0)), constant_values=PAD) for rows in some)


def of_gates(batches: Iterable[tuple[Gates, Tokens]]) -> list[dict[str, Any]]:
    """For each gate its place, how often it is open, and whether that depends on the token.

    Args:
      batches: what was captured of each, and which tokens that is about.

    Returns:
      for each gate `stack`, `layer`, `block`, `gate` (`rows`, or `keys` for those of keys and values), `part` (of a
      feed-forward network), `on`, the share of tokens for which it is open, and `mixed`, the share of lines, or of the
      sentences of documents, in which it is open for some tokens and closed for others.
    """
    sums = {}
    for gates, tokens in batches:
        for place, open_, lengths in _by_line(gates, tokens):
            mixed = (open_ > 0) & (open_ < lengths)
            found = np.asarray([open_.sum(), lengths.sum(), mixed.sum(), (lengths > 0).sum()], np.float64)
            sums[place] = sums.get(place, 0) + found
    names = ("stack", "layer", "block", "gate", "part")
    return [
        dict(zip(names, place)) | {"on": float(open_ / tokens), "mixed": float(mixed / lines)}
        for place, (open_, tokens, mixed, lines) in sums.items()
    ]


def _by_line(gates: Gates, tokens: Tokens):
    """Place of each gate, for how many tokens of each line it is open, and how many there are."""
    for stack, layers in gates.items():
        for number, layer in enumerate(layers):
            for block, kinds in layer.items():
                for kind, values in kinds.items():
                    lengths = tokens(stack, block, kind).sum(-1).ravel()
                    for part, on in enumerate(np.moveaxis(np.asarray(values), -1, 0)):
                        yield (stack, number, block, kind, part), on.sum(-1).ravel(), lengths
