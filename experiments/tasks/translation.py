"""Translation, by an encoder and a decoder or by a decoder alone."""

from collections.abc import Callable
from pathlib import Path

from jax.sharding import Mesh

from experiments.tasks.corpora import Corpora, TextPairs, prepare
from experiments.tasks.task import Losses, Scored, Task, check_metric
from flaxnmt.config import Config
from flaxnmt.evaluation.scores import evaluate
from flaxnmt.models.flops import forward_flops
from flaxnmt.run import make_model, make_translator
from flaxnmt.training.step import Objective
from flaxnmt.translation.translator import Translator
from flaxnmt.typing import Params


class TranslationScores:
    """Loss over all development pairs, and BLEU and chrF of translations against the text of the file.

    Attributes:
      translator: decodes with the parameters given to each call.
      translations: development lines that are translated; all if None.
      lowercase: of BLEU, where the vocabulary knows no capitals.
    """

    def __init__(
        self,
        objective: Objective,
        translator: Translator,
        corpora: Corpora,
        translations: int | None,
        lowercase: bool = False,
    ):
        self.translator, self.translations, self.lowercase = translator, translations, lowercase
        self.pairs, self.test_pairs = corpora.dev, corpora.test
        self.losses = Losses(objective, corpora.dev_batches, translator.mesh)
        self.whole = self.losses.whole

    def scores(self, params: Params, pairs: TextPairs) -> Scored:
        """BLEU, chrF and TER with signatures, and the translations."""
        self.translator.params = params
        outputs = [line for lines in self.translator.translate_documents(pairs.documents) for line in lines]
        return evaluate(outputs, pairs.targets, lowercase=self.lowercase), outputs

    def __call__(self, params: Params) -> Scored:
        row = self.losses(params)
        if self.translations == 0:
            return row, []
        some = self.pairs if self.translations is None else self.pairs.first(self.translations)
        scores, outputs = self.scores(params, some)
        return row | scores, outputs

    def test(self, params: Params) -> Scored:
        return self.scores(params, self.test_pairs)


def make(config: Config, directory: Path, bring: Callable[[], None]) -> Task:
    """The task of translating from two texts.

    Raises:
      ConfigError: for a score that there is not.
      ConfigError, DataError: as `experiments.tasks.corpora.prepare`.
    """
    check_metric(config.training.metric, ("bleu", "chrf", "loss"), "a translation")
    corpora, training = prepare(config, directory, bring), config.training
    model = make_model(config, corpora.vocabularies)

    def evaluator(objective: Objective, params: Params, mesh: Mesh) -> TranslationScores:
        translator = make_translator(config, model, params, corpora.vocabularies, mesh)
        some, lowercase = training.evaluate_translations, corpora.vocabularies.target.lowercase
        return TranslationScores(objective, translator, corpora, some, lowercase)

    def flops(batch) -> int:
        shapes = batch["source"].shape, batch["target"].shape
        return forward_flops(config.model, corpora.vocabularies.target.vocab_size, *shapes)

    return Task(
        model=model,
        vocabularies=corpora.vocabularies,
        corpus=corpora.corpus,
        train=corpora.train,
        flops=flops,
        evaluator=evaluator,
        sizes="(sentences, words)" if config.model.is_document else "(source, target)",
    )
