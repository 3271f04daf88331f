"""Embeddings of every token of texts in every layer, of models of one stack."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from flaxnmt.data.batches import EvaluationBatches
from flaxnmt.data.buckets import BucketPlan
from flaxnmt.data.shards import TokenArray
from flaxnmt.data.tokenizers import Offsets
from flaxnmt.gates.budget import find_budget
from flaxnmt.models.config import ModelConfig
from flaxnmt.translation.shapes import square_plan
from flaxnmt.typing import Array, Float, Int

BATCH = 64

Kept = TypeVar("Kept")


class Contextual(NamedTuple):
    """The tokens of a text and their embeddings.

    Attributes:
      pieces: with the symbols that the model reads before and after the text, if any.
      spans: for each piece the characters [start, end) of the text that it was made of; none of a symbol, which stands
        for no text.
      layers: embeddings before the first layer and after each.
    """

    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    layers: Float[np.ndarray, "layers L D"]


def told(
    config: ModelConfig, budget: float | Sequence[float] | None
) -> Callable[[int], Int[np.ndarray, " B"] | None]:
    """From a number of rows to the place of a budget for each of them, the largest if None; to None without budgets.

    Raises:
      ConfigError: for a budget for which the model was not trained.
    """
    if not config.budgets and budget is None:
        return lambda rows: None
    place = find_budget(config.budgets, budget)
    return lambda rows: np.full(rows, place, np.int32)


def plan_of(count: int, longest: int) -> BucketPlan:
    """Shapes for this many texts of up to `longest` tokens."""
    return square_plan(min(BATCH, 1 << max(count - 1, 0).bit_length()), longest=longest)


def over_batches(
    function: Callable[[Int[np.ndarray, "B L"]], Array],
    rows: Sequence[Sequence[int]],
    longest: int,
    keep: Callable[[np.ndarray, int, int], Kept],
) -> list[Kept]:
    """What `keep` leaves of what `function` makes of each row of ids, to which eos is added.

    Rows are padded and put together in few shapes; those of more than `longest` tokens are cut, with a warning.

    Args:
      keep: from the outputs of a row, its length and its place among the rows; the outputs of a batch are given back
        before the next one.
    """
    tokens = TokenArray.from_lists(rows)
    plan = plan_of(len(tokens), longest)
    batches = EvaluationBatches(tokens, None, plan)
    lengths = np.minimum(tokens.lengths, plan.max_length).tolist()
    found = []
    for number, batch in enumerate(batches):
        outputs = np.asarray(function(batch["source"]))
        places = batches.indices(number)
        found.append([None if i < 0 else keep(row, lengths[i], i) for row, i in zip(outputs, places)])
    return batches.restore(found)


def contextual(
    texts: Sequence[Offsets],
    layers: Callable[[Int[np.ndarray, "B L"]], Float[Array, "layers B L D"]],
    pieces: Sequence[str],
    longest: int,
    last: int | None,
) -> list[Contextual]:
    """Embeddings of the tokens of each text in each layer.

    Args:
      texts: tokens as the model reads them, without the symbol at the end.
      layers: of padded rows.
      pieces: of the vocabulary.
      longest: tokens of a text, at which it is cut, with a warning.
      last: the symbol at the end; None where the model reads none there.
    """

    def by_row(tokens):
        return np.moveaxis(np.asarray(layers(tokens)), 0, 1)

    end = [] if last is None else [last]

    def of_text(row, length, place):
        ids, spans = (part[: length - 1] for part in texts[place])
        own = tuple(pieces[i] for i in (*ids, *end))
        return Contextual(own, (*spans, *((0, 0) for _ in end)), row[:, : len(own)].copy())

    return over_batches(by_row, [text.ids for text in texts], longest, of_text)
