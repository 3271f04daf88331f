"""How much gates let through, from what blocks captured of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.symbols import PAD
from flaxnmt.typing import Array, Bool, Float, Int

BATCH = 64
"""Rows at once."""

Gates = Mapping[str, Sequence[Mapping[str, Mapping[str, Float[Array, "B L m"]]]]]
"""By stack, layer, block and kind, as `Aux.gates`: 1 where a gate is open, 0 where it is closed and at padding."""


def in_batches(capture: Callable[..., Gates], *ids: Int[np.ndarray, "B _"]) -> Gates:
    """What blocks capture of padded rows, and of those that go with them.

    Args:
      capture: from as many rows of each of `ids` to what was captured of them; always of the same number.
    """
    count = len(ids[0])
    size = min(count, BATCH)
    filled = (np.pad(rows, ((0, -count % size), (0, 0)), constant_values=PAD) for rows in ids)
    batches = zip(*(rows.reshape(-1, size, rows.shape[1]) for rows in filled), strict=True)
    found = [capture(*batch) for batch in batches]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *found)


def of_gates(gates: Gates, mask: Callable[[str, str, str], Bool[np.ndarray, "B L"]]) -> list[dict[str, Any]]:
    """For each gate its place, how often it is open, and whether that depends on the token.

    Args:
      gates: what was captured.
      mask: from stack, block and kind of a gate to the tokens that it has decided about.

    Returns:
      for each gate `stack`, `layer`, `block`, `gate` (`rows`, or `keys` for those of keys and values), `part` (of a
      feed-forward network), `on`, the share of tokens for which it is open, and `mixed`, the share of lines in which it is
      open for some tokens and closed for others.
    """
    rows = []
    for stack, layers in gates.items():
        for number, layer in enumerate(layers):
            for block, kinds in layer.items():
                for kind, values in kinds.items():
                    lengths = mask(stack, block, kind).sum(1)
                    for part, on in enumerate(np.moveaxis(np.asarray(values), -1, 0)):
                        open_ = on.sum(1)
                        rows.append(
                            {
                                "stack": stack, "layer": number, "block": block, "gate": kind, "part": part,
                                "on": float(open_.sum() / lengths.sum()),
                                "mixed": float(((open_ > 0) & (open_ < lengths)).mean()),
                            }
                        )  # fmt: skip
    return rows
