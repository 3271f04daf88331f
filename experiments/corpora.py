"""The corpora of a run: vocabularies, tokenised training and development sets, raw text to score against."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from flaxnmt.config import DataConfig
from flaxnmt.data.batches import EvaluationBatches, TrainBatches
from flaxnmt.data.buckets import extend, plan_buckets
from flaxnmt.data.readers import read
from flaxnmt.data.shards import TokenArray, TokenCorpus, file_stamp, tokenize_corpus
from flaxnmt.data.vocabularies import Vocabularies, build_tokenizers
from flaxnmt.errors import ConfigError, DataError, RunError, UserError
from flaxnmt.run import TOKENIZER


@dataclass(frozen=True)
class TextPairs:
    """An evaluation set as text, for scoring against what the file says."""

    sources: list[str]
    targets: list[str]

    @classmethod
    def of(cls, paths: tuple[str, ...], paragraphs: bool) -> "TextPairs":
        """Reads an evaluation set.

        Raises:
          DataError: if a line has no target.
        """
        documents = list(read(*paths, paragraphs=paragraphs))
        pairs = [sentence for document in documents for sentence in document]
        missing = next((pair for pair in pairs if pair.target is None), None)
        if missing is not None:
            raise DataError(
                f"{paths[0]}:{missing.line}: an evaluation set needs targets, and this line has none"
            )
        return cls([pair.source for pair in pairs], [pair.target for pair in pairs])

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class Corpora:
    """Everything that a training reads."""

    vocabularies: Vocabularies
    train: TrainBatches
    dev: TextPairs
    dev_batches: EvaluationBatches
    test: TextPairs | None


def prepare(config: DataConfig, directory: Path, seed: int) -> Corpora:
    """Reads, tokenises and plans; what an earlier start of the run left is used again.

    The first process makes what is missing, and the others open it.

    Raises:
      ConfigError: if there is no training or development corpus.
      DataError: if one cannot be used.
    """
    for name in ("train", "dev"):
        if not getattr(config, name):
            raise ConfigError(
                f"no --{name} corpus: give two parallel files, a document file, tfds:NAME or discourse"
            )
    _make_once(config, directory)
    vocabularies = Vocabularies.load(directory / TOKENIZER)
    corpus = TokenCorpus.open(directory / "data" / "train")
    plan = plan_buckets(
        corpus.source.lengths,
        corpus.target.lengths,
        max_length=config.max_length,
        batch_tokens=config.batch_tokens,
        buckets=config.buckets,
        rows_multiple=config.rows_multiple,
        length_multiple=config.length_multiple,
    )
    batches = TrainBatches(corpus, plan, seed)
    dev = TextPairs.of(config.dev, config.paragraphs)
    source, target = (
        TokenArray.from_lists(tokenizer.encode(texts))
        for tokenizer, texts in ((vocabularies.source, dev.sources), (vocabularies.target, dev.targets))
    )
    longest = max(plan.max_length, 1024)
    dev_batches = EvaluationBatches(source, target, extend(plan, longest, rows_multiple=config.rows_multiple))
    test = TextPairs.of(config.test, config.paragraphs) if config.test else None
    return Corpora(vocabularies, batches, dev, dev_batches, test)


def _make_once(config: DataConfig, directory: Path) -> None:
    """`_make` in the first process; the others wait, and fail where it fails."""
    failure = None
    if jax.process_index() == 0:
        try:
            _make(config, directory)
        except UserError as error:
            failure = error
    if jax.process_count() > 1:
        failed = bool(multihost_utils.broadcast_one_to_all(np.asarray(failure is not None)))
        if failed and failure is None:
            failure = DataError("the first process could not prepare the data; its own message says why")
    if failure is not None:
        raise failure


def _make(config: DataConfig, directory: Path) -> None:
    documents = partial(read, *config.train, paragraphs=config.paragraphs)
    try:
        vocabularies = Vocabularies.load(directory / TOKENIZER)
    except RunError:
        vocabularies = build_tokenizers(config.tokenizer, documents())
        vocabularies.save(directory / TOKENIZER)
    stamps = [file_stamp(path) if Path(path).exists() else path for path in config.train]
    tokenize_corpus(
        documents(),
        partial(vocabularies.source.encode, threads=1),
        partial(vocabularies.target.encode, threads=1),
        directory / "data" / "train",
        vocab_size=max(vocabularies.source.vocab_size, vocabularies.target.vocab_size),
        fingerprint={"tokenizer": vocabularies.hash, "files": stamps, "paragraphs": config.paragraphs},
        workers=config.workers,
        progress=sys.stderr.isatty(),
    )
