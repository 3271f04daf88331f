"""The corpora of a run: vocabularies, tokenised training and development sets, raw text to score against."""

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from flaxnmt.config import Config, DataConfig
from flaxnmt.data.batches import EvaluationBatches, ShuffledBatches, SortedBatches, TrainBatches
from flaxnmt.data.boundaries import Boundaries
from flaxnmt.data.buckets import extend, plan_buckets
from flaxnmt.data.chunks import chunk
from flaxnmt.data.concatenation import BREAK, Breaks, concatenate
from flaxnmt.data.document_batches import DocumentChunks, plan_documents
from flaxnmt.data.documents import Document
from flaxnmt.data.readers import read, read_texts, without_part
from flaxnmt.data.shards import TokenArray, TokenCorpus, file_stamp, tokenize_corpus
from flaxnmt.data.vocabularies import Vocabularies, build_tokenizers
from flaxnmt.errors import ConfigError, DataError, RunError, UserError
from flaxnmt.remote import is_address, located, reaching
from flaxnmt.run_directory import TOKENIZER, load_vocabularies
from flaxnmt.translation.lines import Text
from flaxnmt.translation.shapes import FULL, grid_plan, longest_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextPairs:
    """An evaluation set as text, for scoring against what the file says."""

    documents: list[Document]

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
        return cls(documents)

    @property
    def targets(self) -> list[str]:
        """Reference lines."""
        return [sentence.target for document in self.documents for sentence in document]

    def first(self, sentences: int) -> "TextPairs":
        """The first documents, as many as have that many sentences."""
        ends = itertools.accumulate(map(len, self.documents))
        return TextPairs(self.documents[: 1 + sum(end < sentences for end in ends)])

    def __len__(self) -> int:
        return sum(map(len, self.documents))


@dataclass(frozen=True)
class Corpora:
    """Everything that a training reads."""

    vocabularies: Vocabularies
    corpus: TokenCorpus
    train: ShuffledBatches
    dev: TextPairs
    dev_batches: SortedBatches
    test: TextPairs | None


def prepare(config: Config, directory: Path, bring: Callable[[], None]) -> Corpora:
    """Reads, tokenises and plans; what an earlier start of the run left is used again.

    The first process makes what is missing, `bring` brings it to the others, and they open it.

    Raises:
      ConfigError: if there is no training or development corpus.
      DataError: if one cannot be used.
    """
    data = config.data
    for name in ("train", "dev"):
        if not getattr(data, name):
            raise ConfigError(
                f"no --{name} corpus: give two parallel files, a document file, tfds:NAME or discourse"
            )
    make_once(partial(_make, data, directory))
    bring()
    vocabularies = load_vocabularies(directory, config)
    corpus = TokenCorpus.open(directory / "data" / "train")
    make = _document_batches if config.model.is_document else _sentence_batches
    dev = TextPairs.of(data.dev, data.paragraphs)
    train, dev_batches = make(config, corpus, _tokenised(dev, data, vocabularies))
    test = TextPairs.of(data.test, data.paragraphs) if data.test else None
    return Corpora(vocabularies, corpus, train, dev, dev_batches, test)


def _tokenised(pairs: TextPairs, config: DataConfig, vocabularies: Vocabularies) -> TokenCorpus:
    """An evaluation set as tokens, in memory."""
    documents = list(_with_context(pairs.documents, config))
    text = Text.of_documents(documents)
    targets = [sentence.target for document in documents for sentence in document]
    source, target = (
        TokenArray.from_lists(tokenizer.encode(list(side)))
        for tokenizer, side in ((vocabularies.source, text.sentences), (vocabularies.target, targets))
    )
    return TokenCorpus(source, target, text.numbers, text.starts)


def _sentence_batches(
    config: Config, corpus: TokenCorpus, dev: TokenCorpus
) -> tuple[ShuffledBatches, SortedBatches]:
    data = config.data
    plan = plan_buckets(
        corpus.source.lengths,
        corpus.target.lengths,
        max_length=data.max_length,
        batch_tokens=data.batch_tokens,
        buckets=data.buckets,
        rows_multiple=data.rows_multiple,
        length_multiple=data.length_multiple,
    )
    longest = max(plan.max_length, longest_of(config.model))
    dev_plan = extend(plan, longest, rows_multiple=data.rows_multiple)
    evaluation = EvaluationBatches(dev.source, dev.target, dev_plan)
    return TrainBatches(corpus, plan, config.training.seed), evaluation


def _document_batches(
    config: Config, corpus: TokenCorpus, dev: TokenCorpus
) -> tuple[ShuffledBatches, SortedBatches]:
    data, seed = config.data, config.training.seed
    chunks = chunk(corpus.document_offsets, data.max_sentences, data.overlap)
    if chunks.cut:
        log.info("%s", chunks.cut)
    boundaries = Boundaries(data.boundaries, seed)
    units = DocumentChunks(corpus, chunks, data.max_length, boundaries=boundaries)
    plan = plan_documents(
        units,
        max_length=data.max_length,
        batch_tokens=data.batch_tokens,
        buckets=data.buckets,
        rows_multiple=data.rows_multiple,
        length_multiple=data.length_multiple,
    )
    dev_chunks = chunk(dev.document_offsets, data.max_sentences, data.overlap)
    dev_units = DocumentChunks(dev, dev_chunks, boundaries=boundaries)
    dev_plan = grid_plan(data.batch_tokens // FULL, data.max_sentences, data.rows_multiple)
    return ShuffledBatches(units, plan, seed), SortedBatches(dev_units, dev_plan)


def _with_context(documents: Iterable[Document], config: DataConfig) -> Iterable[Document]:
    """Documents as the model reads them."""
    if not config.previous:
        return documents
    return (concatenate(document, config.previous, config.previous_target) for document in documents)


def make_once(make: Callable[[], None]) -> None:
    """Calls it in the first process; the others wait, and fail where it fails."""
    failure = None
    if jax.process_index() == 0:
        try:
            make()
        except UserError as error:
            failure = error
    if jax.process_count() > 1:
        failed = bool(multihost_utils.broadcast_one_to_all(np.asarray(failure is not None)))
        if failed and failure is None:
            failure = DataError("the first process could not prepare the data; its own message says why")
    if failure is not None:
        raise failure


def tokenize_texts(config: DataConfig, directory: Path, symbols: tuple[str, ...]) -> None:
    """Makes the vocabulary, with these symbols, and the tokens of training texts of one language."""
    documents = partial(read_texts, *config.train)
    vocabularies = make_vocabularies(config, directory, documents, symbols)
    tokenize_corpus(
        documents(),
        partial(vocabularies.source.encode, threads=1),
        None,
        directory / "data" / "train",
        vocab_size=vocabularies.source.vocab_size,
        fingerprint={"tokenizer": vocabularies.hash, "files": stamps(config.train)},
        workers=config.workers,
        progress=sys.stderr.isatty(),
    )


def make_vocabularies(
    config: DataConfig, directory: Path, documents: Callable[[], Iterable[Document]], symbols: tuple[str, ...]
) -> Vocabularies:
    """Those of the run directory, or new ones that are saved there."""
    try:
        return Vocabularies.load(directory / TOKENIZER)
    except RunError:
        vocabularies = build_tokenizers(config.tokenizer, documents(), symbols)
        vocabularies.save(directory / TOKENIZER)
        return vocabularies


def stamps(names: Sequence[str]) -> list[dict]:
    """What says that training files have not changed, nor the parts of them that are meant."""
    return [_stamp(without_part(name)) | _part(name) for name in names]


def _stamp(path: str) -> dict:
    if is_address(path):
        with reaching(path, DataError):
            status = located(path).stat()
        return {"name": path, "bytes": status.length, "mtime": status.mtime}
    return file_stamp(path) if Path(path).exists() else {"name": path}


def _part(name: str) -> dict:
    return {} if without_part(name) == name else {"part": name.removeprefix(without_part(name))}


def _make(config: DataConfig, directory: Path) -> None:
    documents = partial(read, *config.train, paragraphs=config.paragraphs)
    vocabularies = make_vocabularies(config, directory, documents, (BREAK,) if config.previous else ())
    if config.previous:
        if any(BREAK not in part.pieces for part in (vocabularies.source, vocabularies.target)):
            raise ConfigError(
                f"--data.previous needs a vocabulary with the symbol {BREAK}, and the one given has none: start from a "
                f"run with --data.tokenizer.symbols '{BREAK}', or leave --init-from and --data.tokenizer.source-model "
                "out, so that this one makes its own"
            )
        vocabularies = Vocabularies(Breaks(vocabularies.source), Breaks(vocabularies.target))
    fingerprint = {
        "tokenizer": vocabularies.hash,
        "files": stamps(config.train),
        "paragraphs": config.paragraphs,
    }
    if config.previous:
        fingerprint["context"] = [config.previous, config.previous_target]
    tokenize_corpus(
        _with_context(documents(), config),
        partial(vocabularies.source.encode, threads=1),
        partial(vocabularies.target.encode, threads=1),
        directory / "data" / "train",
        vocab_size=max(vocabularies.source.vocab_size, vocabularies.target.vocab_size),
        fingerprint=fingerprint,
        workers=config.workers,
        progress=sys.stderr.isatty(),
    )
