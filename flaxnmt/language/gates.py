"""What gates of models of one stack let through of texts."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.errors import DataError
from flaxnmt.gates.budget import find_budget
from flaxnmt.gates.counts import in_batches, of_gates
from flaxnmt.language.attention import closed, how_to_read
from flaxnmt.language.causal import CausalReader
from flaxnmt.language.reader import Reader
from flaxnmt.symbols import PAD
from flaxnmt.translation.lines import refuse_one
from flaxnmt.translation.shapes import longest_of


def of_texts(
    reader: Reader | CausalReader, texts: Sequence[str], budget: float | Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """How much each gate lets through, over all tokens of these texts (`flaxnmt.gates.counts.of_gates`).

    Args:
      reader: of a model with gates.
      texts: of up to as many tokens as the model reads; longer ones are cut, with a warning.
      budget: one of the model's; its largest if None.

    Raises:
      ConfigError: for a model without gates or one of translation, a budget that it was not trained for, or one text.
      DataError: for no texts.
    """
    model = reader.model
    _, method = how_to_read(model)
    place = find_budget(model.config.budgets, budget)
    refuse_one(texts)
    if not texts:
        raise DataError("no texts: gates are counted over those of one at least")
    rows = [closed(reader.read(text).ids, longest_of(model.config), reader.last) for text in texts]
    ids = np.full((len(rows), max(map(len, rows))), PAD, np.int32)
    for row, read in zip(ids, rows):
        row[: len(read)] = read

    @jax.jit
    def capture(variables, tokens):
        budget = jnp.full(len(tokens), place, jnp.int32)
        return model.apply(variables, tokens, capture=True, budget=budget, method=method)[1].gates

    return of_gates(
        (capture({"params": reader.params}, tokens), lambda *_, real=tokens != PAD: real)
        for (tokens,) in in_batches(ids)
    )
