"""The interface between a training and what it trains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.shards import TokenCorpus
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.sharding import owned_rows, put_batch
from flaxnmt.training.step import Objective
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
      corpus: what it is trained on, as tokens.
      train: its batches.
      flops: of the forward pass of a batch.
      examples: what an epoch is counted in, in a word.
      sizes: what the two sizes of a batch shape are of.
      use: what to do with a trained run, with {run} for its directory.
      evaluator: from (objective, parameters, mesh).
    """

    model: nn.Module
    vocabularies: Vocabularies
    corpus: TokenCorpus
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

    def __call__(self, params: Params) -> dict[str, float]:
        """Everything that the objective sums, by token, padding not counted, and the perplexity."""
        totals: dict[str, float] = {}
        for sums in [self._sums(params, self._put(i)) for i in range(len(self.batches))]:
            for name, value in jax.device_get(sums).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        tokens = totals.pop("tokens")
        means = {name: value / tokens for name, value in totals.items()}
        return means | {"perplexity": float(np.exp(means["nll"]))}

    def _put(self, index: int):
        rows = owned_rows(self.batches.shape(index).rows, self.mesh)
        return put_batch(self.batches.batch(index, rows), self.mesh)
