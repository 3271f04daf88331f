"""Development and test scores of a model in training."""

import jax
from jax.sharding import NamedSharding, PartitionSpec

from experiments.corpora import Corpora, TextPairs
from flaxnmt.data.batches import EvaluationBatches
from flaxnmt.evaluation.scores import evaluate
from flaxnmt.sharding import owned_rows, put_batch
from flaxnmt.training.step import Objective
from flaxnmt.translation.translator import Translator
from flaxnmt.typing import Params


class Evaluator:
    """Loss over all development pairs, and BLEU and chrF of translations against the text of the file.

    Attributes:
      translator: decodes with the parameters given to each call.
      whole: sharding of what every device has all of.
    """

    def __init__(
        self, objective: Objective, translator: Translator, corpora: Corpora, translations: int | None
    ):
        self.translator = translator
        self.dev, self.batches = corpora.dev, corpora.dev_batches
        self.translations = translations
        self.whole = NamedSharding(translator.mesh, PartitionSpec())
        self._sums = jax.jit(lambda params, batch: objective(params, batch, None))

    def losses(self, params: Params) -> dict[str, float]:
        """Smoothed loss and perplexity per target token, padding not counted."""
        totals: dict[str, float] = {}
        for sums in [self._sums(params, self._put(self.batches, i)) for i in range(len(self.batches))]:
            for name, value in jax.device_get(sums).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        tokens = totals.pop("tokens")
        means = {name: value / tokens for name, value in totals.items()}
        return means | {"perplexity": float(jax.numpy.exp(means["nll"]))}

    def scores(self, params: Params, pairs: TextPairs, limit: int | None = None) -> tuple[dict, list[str]]:
        """BLEU, chrF and TER with signatures, and the translations."""
        self.translator.params = params
        pairs = pairs if limit is None else pairs.first(limit)
        outputs = [line for lines in self.translator.translate_documents(pairs.documents) for line in lines]
        return evaluate(outputs, pairs.targets), outputs

    def __call__(self, params: Params) -> tuple[dict, list[str]]:
        """A row of development scores, and the translations behind it."""
        row = self.losses(params)
        if self.translations == 0:
            return row, []
        scores, outputs = self.scores(params, self.dev, self.translations)
        return row | scores, outputs

    def _put(self, batches: EvaluationBatches, index: int):
        mesh = self.translator.mesh
        return put_batch(batches.batch(index, owned_rows(batches.shape(index).rows, mesh)), mesh)
