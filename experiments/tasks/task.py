"""The interface between a training and what it trains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.labelled.rows import LabelledRows
from flaxnmt.data.shards import TokenCorpus
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import Budget, full_budget
from flaxnmt.sharding import owned_rows, put_batch
from flaxnmt.training.step import Objective, Sums
from flaxnmt.typing import Params

Scored = tuple[dict, list[str]]
"""A row of scores, and the lines behind it."""


class Evaluator(Protocol):
    """Scores of parameters.

    Attributes:
      whole: sharding of what every device has all of.
    """

    whole: NamedSharding

    def __call__(self, params: Params) -> Scored:
        """On the development set."""
        ...

    def test(self, params: Params) -> Scored:
        """On the test set, of a configuration that names one."""
        ...


@dataclass(frozen=True)
class Task:
    """What is learned, from what, and how it is judged.

    Attributes:
      model: the module.
      vocabularies: its tokenizers.
      corpus: what it is trained on, which has a checksum.
      train: its batches.
      flops: of the forward pass of a batch.
      examples: what an epoch is counted in, in a word.
      sizes: what the two sizes of a batch shape are of.
      use: what to do with a trained run, with {run} for its directory.
      evaluator: from (objective, parameters, mesh).
    """

    model: nn.Module
    vocabularies: Vocabularies
    corpus: TokenCorpus | LabelledRows
    train: ShuffledBatches
    flops: Callable[[dict[str, np.ndarray]], int]
    evaluator: Callable[[Objective, Params, Mesh], Evaluator]
    examples: str = "pairs"
    sizes: str = "(source, target)"
    use: str = "to translate: flaxnmt translate --run {run} --input FILE"


class Losses:
    """Means of an objective over a development set.

    Attributes:
      objective: see `flaxnmt.training.step`.
      batches: of the development set.
      mesh: on which the parameters lie.
    """

    def __init__(self, objective: Objective, batches: SortedBatches, mesh: Mesh):
        self.batches, self.mesh = batches, mesh
        self.whole = NamedSharding(mesh, PartitionSpec())
        self._sums = jax.jit(lambda params, batch: objective(params, batch, None))

    def __call__(self, params: Params, budget: int | None = None) -> dict[str, float]:
        """Everything that the objective sums, by token, padding not counted, and the perplexity.

        At one of the budgets of the model, by its place, also the share of the full computation that is used.
        """
        found = [
            self._sums(params, placed(self.batches, i, self.mesh, budget)) for i in range(len(self.batches))
        ]
        return means(jax.device_get(found))


def placed(batches: SortedBatches, index: int, mesh: Mesh, budget: int | None = None) -> dict[str, jax.Array]:
    """A batch, its rows laid over the mesh, each with the place of the budget if there is one."""
    batch = batches.batch(index, owned_rows(batches.shape(index).rows, mesh))
    if budget is not None:
        rows = len(next(iter(batch.values())))
        batch = batch | {"budget": np.full(rows, budget, np.int32)}
    return put_batch(batch, mesh)


def means(found: Sequence[Sums]) -> dict[str, float]:
    """Means by token of the sums of batches, with the perplexity; of `used` and `full` FLOPs their quotient, `use`.

    Where no token counts, as of a set whose labels are a secret, there is no mean.
    """
    totals = {name: sum(float(sums[name]) for sums in found) for name in found[0]}
    tokens = totals.pop("tokens")
    use = {"use": totals.pop("used") / totals.pop("full")} if "used" in totals else {}
    if not tokens:
        return use
    row = {name: value / tokens for name, value in totals.items()}
    return row | {"perplexity": float(np.exp(row["nll"]))} | use


def at_budgets(budgets: Sequence[Budget], row: Callable[[int | None], Scored]) -> Scored:
    """What `row` says at the largest budget of a model, and under `budgets` what it says at each; or once, of None."""
    if not budgets:
        return row(None)
    found = [row(place) for place in range(len(budgets))]
    scores, lines = found[full_budget(budgets)]
    rows = [{"budget": budget[0], **at} for budget, (at, _) in zip(budgets, found)]
    return scores | {"budgets": rows}, lines


def check_metric(metric: str, known: Sequence[str], what: str) -> None:
    """Refuses to judge a run by a score that it does not have.

    Raises:
      ConfigError: with those that there are.
    """
    if metric not in known:
        raise ConfigError(f"--training.metric {metric}: {what} is judged by {' or '.join(known)}")
