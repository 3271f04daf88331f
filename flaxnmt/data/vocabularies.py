"""The two vocabularies of a run: trained on its training text or loaded, shared or separate."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flaxnmt.config import TokenizerConfig
from flaxnmt.data.documents import Document
from flaxnmt.data.tokenizers import MAX_SENTENCES, Tokenizer, load, sample, train
from flaxnmt.errors import ConfigError, DataError, RunError

SHARED = "shared"
SEPARATE = ("source", "target")
SUFFIXES = (".model", ".json")


@dataclass(frozen=True)
class Vocabularies:
    """Tokenizers of the source and the target; one and the same where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        return self.source == self.target

    @property
    def hash(self) -> str:
        """Fingerprint of both models, 16 hexadecimal digits."""
        return hashlib.sha256(f"{self.source.hash} {self.target.hash}".encode()).hexdigest()[:16]

    def save(self, directory: str | Path) -> None:
        """Writes shared.model, or source.model and target.model; .json in place of .model for WordPiece."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        sides = ((SHARED, self.source),) if self.shared else zip(SEPARATE, (self.source, self.target))
        for name, tokenizer in sides:
            tokenizer.save(directory / f"{name}{tokenizer.suffix}")

    @classmethod
    def load(cls, directory: str | Path) -> "Vocabularies":
        """Reads what `save` wrote; raises RunError where it is missing."""
        directory = Path(directory)
        if shared := _file(directory, SHARED):
            tokenizer = load(shared)
            return cls(tokenizer, tokenizer)
        files = [_file(directory, name) for name in SEPARATE]
        if missing := [name for name, file in zip(SEPARATE, files) if file is None]:
            wanted = " and ".join(f"{name}.model" for name in missing)
            raise RunError(f"{directory} holds no tokenizer: neither {SHARED}.model nor {wanted}, nor .json")
        return cls(*map(load, files))


def _file(directory: Path, name: str) -> Path | None:
    """The vocabulary of this name, of whatever kind."""
    paths = (directory / f"{name}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.exists()), None)


def _trained(side: str, config: TokenizerConfig, texts: Iterable[str], symbols: Sequence[str]) -> Tokenizer:
    try:
        return train(
            config.kind, texts, config.vocab_size, config.lowercase, config.character_coverage, symbols
        )
    except DataError as error:
        raise DataError(f"tokenizer.vocab_size ({side}): {error}") from error


def build_tokenizers(
    config: TokenizerConfig, documents: Iterable[Document], symbols: Sequence[str] = ()
) -> Vocabularies:
    """Loads the models that the config names and trains the others in one pass over the documents.

    Both have `symbols` and those that the config names. Documents are not read where nothing is trained. Raises
    DataError for unusable models and for a vocabulary that the text does not allow, ConfigError for two models that
    cannot be one.
    """
    symbols = tuple(dict.fromkeys((*symbols, *config.symbols)))
    paths = (config.source_model, config.target_model)
    source, target = (load(path, config.lowercase, symbols) if path is not None else None for path in paths)
    if config.shared:
        if source and target and source != target:
            raise ConfigError(f"{paths[0]} and {paths[1]} differ: set tokenizer.shared to false, or name one")
        tokenizer = source or target
        if tokenizer is None:
            texts = (text for document in documents for pair in document for text in pair[:2] if text)
            # Read before training starts, so that a defect of the text is not blamed on the vocabulary.
            tokenizer = _trained("shared", config, sample(texts, MAX_SENTENCES), symbols)
        return Vocabularies(tokenizer, tokenizer)
    if source and target:
        return Vocabularies(source, target)
    pairs = sample((sentence[:2] for document in documents for sentence in document), MAX_SENTENCES)
    return Vocabularies(
        source or _trained("source", config, (text for text, _ in pairs), symbols),
        target or _trained("target", config, (text for _, text in pairs if text), symbols),
    )
