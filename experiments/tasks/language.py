"""Language models of texts: of each symbol after those before it, and of masked symbols among the others."""

import math
from functools import partial
from pathlib import Path

from jax.sharding import Mesh

from experiments.tasks.corpora import make_once, tokenize_texts
from experiments.tasks.task import Losses, Scored, Task
from flaxnmt.config import Config
from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.readers import read_texts
from flaxnmt.data.sequences import packed_sequences, plan_sequences
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.data.symbols import CLS, ENCODER_SYMBOLS
from flaxnmt.data.tokenizers import BOS
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import EncoderOnlyConfig
from flaxnmt.models.flops import sequence_flops
from flaxnmt.run import load_vocabularies, make_model
from flaxnmt.training.masking import RATE
from flaxnmt.training.step import Objective
from flaxnmt.translation.lines import Text
from flaxnmt.typing import Params


class TextLosses:
    """Loss and perplexity of development and test texts."""

    def __init__(self, dev: Losses, test: Losses | None):
        self.dev, self.test_losses, self.whole = dev, test, dev.whole

    def __call__(self, params: Params) -> Scored:
        return self.dev(params), []

    def test(self, params: Params) -> Scored:
        return self.test_losses(params), []


def make(config: Config, directory: Path) -> Task:
    """The task of a model of texts.

    Raises:
      ConfigError: without texts, or with a score that there is not.
      DataError: if texts cannot be used.
    """
    data, training = config.data, config.training
    for name in ("train", "dev"):
        if not getattr(data, name):
            raise ConfigError(f"no --{name} texts: give one file or several, a document file or tfds:NAME")
    if training.metric != "loss":
        raise ConfigError(
            f"--training.metric {training.metric}: a language model has a loss alone to be judged by"
        )
    masks = isinstance(config.model, EncoderOnlyConfig)
    make_once(partial(tokenize_texts, data, directory, ENCODER_SYMBOLS if masks else ()))
    vocabularies = load_vocabularies(directory, config)
    vocabulary = vocabularies.source.vocab_size
    first = vocabularies.source.id(CLS) if masks else BOS
    plan = plan_sequences(data.max_length, data.batch_tokens, data.rows_multiple)
    corpus = TokenCorpus.open(directory / "data" / "train")

    def sorted_batches(paths: tuple[str, ...]) -> SortedBatches:
        return SortedBatches(packed_sequences(_tokenised(paths, vocabularies), data.max_length, first), plan)

    def evaluator(objective: Objective, params: Params, mesh: Mesh) -> TextLosses:
        test = Losses(objective, sorted_batches(data.test), mesh) if data.test else None
        return TextLosses(Losses(objective, sorted_batches(data.dev), mesh), test)

    outputs = math.ceil(RATE * data.max_length) if masks else data.max_length
    return Task(
        model=make_model(config, vocabularies),
        vocabularies=vocabularies,
        corpus=corpus,
        train=ShuffledBatches(packed_sequences(corpus, data.max_length, first), plan, training.seed),
        flops=lambda batch: sequence_flops(config.model, vocabulary, batch["tokens"].shape, outputs),
        evaluator=evaluator,
        examples="sequences",
        sizes="(tokens, tokens)",
        use='to use it: flaxnmt.open_run("{run}").' + ("fill_mask" if masks else "complete"),
    )


def _tokenised(paths: tuple[str, ...], vocabularies: Vocabularies) -> TokenCorpus:
    """An evaluation set as tokens, in memory."""
    text = Text.of_documents(list(read_texts(*paths)))
    tokens = TokenArray.from_lists(vocabularies.source.encode(list(text.sentences)))
    return TokenCorpus(tokens, None, text.numbers, text.starts)
