"""Language models of texts: of each symbol after those before it, and of masked symbols among the others."""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from experiments.tasks.corpora import make_once, tokenize_texts
from experiments.tasks.task import Losses, Scored, Task, at_budgets, check_metric
from flaxnmt.config import Config
from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.readers import read_texts
from flaxnmt.data.sequences import PackedSequences, packed_sequences, plan_sequences
from flaxnmt.data.shards import TokenArray, TokenCorpus
from flaxnmt.data.tokenizers import CLS, ENCODER_SYMBOLS, SEP, SPECIALS, Tokenizer
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError
from flaxnmt.evaluation.unigram import unigram_perplexity
from flaxnmt.gates.budget import Budget
from flaxnmt.models.config import EncoderOnlyConfig
from flaxnmt.models.flops import sequence_flops
from flaxnmt.run import make_model
from flaxnmt.run_directory import load_vocabularies
from flaxnmt.training.masking import RATE
from flaxnmt.training.step import Objective
from flaxnmt.translation.lines import Text
from flaxnmt.typing import Int, Params

PART = 1 << 24
"""Tokens that are counted at a time."""

log = logging.getLogger(__name__)


class TextLosses:
    """Loss and perplexity of development and test texts, at every budget of the model.

    Attributes:
      budgets: of the model.
      known: what every row says of the development texts.
    """

    def __init__(self, dev: Losses, test: Losses | None, budgets: Sequence[Budget], known: dict[str, float]):
        self.dev, self.test_losses, self.whole = dev, test, dev.whole
        self.budgets, self.known = budgets, known

    def __call__(self, params: Params) -> Scored:
        row, lines = self._rows(params, self.dev)
        return row | self.known, lines

    def test(self, params: Params) -> Scored:
        return self._rows(params, self.test_losses)

    def _rows(self, params: Params, losses: Losses) -> Scored:
        return at_budgets(self.budgets, lambda place: (losses(params, place), []))


def check_symbols(tokenizer: Tokenizer) -> None:
    """Refuses a vocabulary, of another run, whose symbols are not where the objective looks for them."""
    wanted = dict(zip(ENCODER_SYMBOLS, range(len(SPECIALS), len(SPECIALS) + len(ENCODER_SYMBOLS))))
    for symbol, place in wanted.items():
        if tokenizer.id(symbol) != place:
            raise ConfigError(
                f"the vocabulary has {symbol} as id {tokenizer.id(symbol)}, and masked language models as {place}: start "
                "from a run whose --data.tokenizer.symbols are [MASK] [CLS] [SEP], in this order"
            )


def make(config: Config, directory: Path, bring: Callable[[], None]) -> Task:
    """The task of a model of texts.

    Raises:
      ConfigError: without texts, or with a score that there is not.
      DataError: if texts cannot be used.
    """
    data, training = config.data, config.training
    for name in ("train", "dev"):
        if not getattr(data, name):
            raise ConfigError(f"no --{name} texts: give one file or several, a document file or tfds:NAME")
    check_metric(training.metric, ("loss",), "a language model")
    masks = isinstance(config.model, EncoderOnlyConfig)
    plan = plan_sequences(data.max_length, data.batch_tokens, data.rows_multiple)
    make_once(partial(tokenize_texts, data, directory, ENCODER_SYMBOLS if masks else ()))
    bring()
    vocabularies = load_vocabularies(directory, config)
    vocabulary = vocabularies.source.vocab_size
    if masks:
        check_symbols(vocabularies.source)
    ends = {name: vocabularies.source.id(symbol) for name, symbol in (("first", CLS), ("last", SEP)) if masks}
    corpus = TokenCorpus.open(directory / "data" / "train")
    apart = not config.model.packs
    if apart:
        log.info(
            "encoders that are no attention read all of a sequence: each holds one document alone, padded"
        )

    def sequences(texts: TokenCorpus) -> PackedSequences:
        return packed_sequences(texts, data.max_length, **ends, apart=apart, follows=not masks)

    dev, model = _tokenised(data.dev, vocabularies), make_model(config, vocabularies)
    specials = len(SPECIALS) + len(ENCODER_SYMBOLS) if masks else 0
    counts = [counted(texts.source.tokens, vocabulary)[specials:] for texts in (corpus, dev)]
    known = {"unigram_perplexity": unigram_perplexity(*counts)}
    log.info("unigrams of the training texts: dev perplexity %.1f", known["unigram_perplexity"])

    def evaluator(objective: Objective, params: Params, mesh: Mesh) -> TextLosses:
        test = _tokenised(data.test, vocabularies) if data.test else None
        losses = [
            None if texts is None else Losses(objective, SortedBatches(sequences(texts), plan), mesh)
            for texts in (dev, test)
        ]
        return TextLosses(*losses, config.model.budgets, known)

    outputs = math.ceil(RATE * data.max_length) if masks else data.max_length
    return Task(
        model=model,
        vocabularies=vocabularies,
        corpus=corpus,
        train=ShuffledBatches(sequences(corpus), plan, training.seed),
        flops=lambda batch: sequence_flops(config.model, vocabulary, batch["tokens"].shape, outputs),
        evaluator=evaluator,
        examples="sequences",
        sizes="(tokens, tokens)",
        use='to use it: flaxnmt.open_run("{run}").' + ("fill_mask" if masks else "complete"),
    )


def counted(tokens: Int[np.ndarray, " tokens"], vocabulary: int) -> Int[np.ndarray, " V"]:
    """How often each symbol is there; by parts, since NumPy makes eight bytes of each token that it counts."""
    parts = (tokens[start : start + PART] for start in range(0, len(tokens), PART))
    return sum((np.bincount(part, minlength=vocabulary) for part in parts), np.zeros(vocabulary, np.int64))


def _tokenised(paths: tuple[str, ...], vocabularies: Vocabularies) -> TokenCorpus:
    """An evaluation set as tokens, in memory."""
    text = Text.of_documents(list(read_texts(*paths)))
    tokens = TokenArray.from_lists(vocabularies.source.encode(list(text.sentences)))
    return TokenCorpus(tokens, None, text.numbers, text.starts)
