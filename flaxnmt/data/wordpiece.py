"""WordPiece vocabularies (Wu et al. 2016, Devlin et al. 2019), by the tokenizers library.

A word is cut greedily into the longest pieces that the vocabulary has; those inside of a word begin with ##. A word
that cannot be cut is unknown as a whole. What is a word decides what comes back:

- In a vocabulary that is trained here a word begins with U+2581 where a space is before it, and each mark of
  punctuation and each Han character is a word of its own. So nothing is lost, and `decode(encode(text))` is the text
  for single-spaced text without unknown words, as with sentencepiece.
- The BERT vocabulary of a `vocab.txt` is cut as BERT cuts: accents of lower-cased text and all spaces are lost, and
  decoding puts a space between any two words.
- A `tokenizer.json` keeps its own rules.

The model is a `tokenizer.json`, which the library reads as it is.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from flaxnmt.data.files import locate, read_lines, write_bytes
from flaxnmt.data.tokenizers import (
    CLS,
    MASK,
    NAMES,
    SEP,
    Offsets,
    tagged,
    tagged_offsets,
    tags_of,
    without_spaces,
)
from flaxnmt.errors import DataError
from flaxnmt.symbols import EOS, UNK

INSIDE = "##"
BERT_SPECIALS = ("[PAD]", "[UNK]", CLS, SEP, MASK)


def library() -> ModuleType:
    """The tokenizers library; raises DataError where it is not installed."""
    try:
        import tokenizers
    except ImportError as error:
        raise DataError("WordPiece needs the tokenizers library: pip install 'flaxnmt[wordpiece]'") from error
    return tokenizers


@dataclass(frozen=True)
class WordPiece:
    """A WordPiece model as the bytes of its `tokenizer.json`, which are the same for the same training."""

    suffix: ClassVar[str] = ".json"
    model: bytes = field(repr=False)

    @cached_property
    def _spec(self) -> dict[str, Any]:
        return json.loads(self.model)

    @cached_property
    def _backend(self) -> Any:
        backend = library().Tokenizer.from_str(self.model.decode())
        # A symbol that stands in text is text.
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The piece of each id."""
        return tuple(self._spec["model"]["vocab"])

    @cached_property
    def _tags(self) -> dict[str, int]:
        return tags_of(self.pieces)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is cut."""
        return _lowercases(self._spec["normalizer"])

    @cached_property
    def controls(self) -> frozenset[int]:
        """Ids of what stands for no text: special ones and symbols."""
        return frozenset({token["id"] for token in self._spec["added_tokens"] if token["special"]} | {UNK})

    @property
    def hash(self) -> str:
        """Fingerprint of the model, 16 hexadecimal digits."""
        return hashlib.sha256(self.model).hexdigest()[:16]

    def id(self, symbol: str) -> int:
        """The id of a symbol given in training; raises DataError for one that the vocabulary lacks."""
        index = self._spec["model"]["vocab"].get(symbol, UNK)
        if index == UNK:
            raise DataError(f"the vocabulary has no symbol {symbol!r}: name it when the tokenizer is made")
        return index

    def encode(self, texts: Sequence[str], threads: int = -1) -> list[list[int]]:
        """Ids of each text, without bos and eos.

        The library shares its threads, one per core, among all callers, whatever `threads` says. Symbols are never
        made from text, but for a language tag at its beginning.
        """

        def encode(texts: list[str]) -> list[list[int]]:
            return [found.ids for found in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

        return tagged(texts, self._tags, encode)

    def encode_with_offsets(self, text: str) -> Offsets:
        """The ids of `encode` and the characters of each."""
        return tagged_offsets(text, self._tags, self._with_offsets)

    def _with_offsets(self, text: str) -> Offsets:
        found = self._backend.encode(text, add_special_tokens=False)
        return Offsets(found.ids, [without_spaces(text, start, end) for start, end in found.offsets])

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Text of the ids before the first eos; pad, bos and symbols have none."""
        rows = [[int(index) for index in row] for row in ids]
        cut = [row[: row.index(EOS)] if EOS in row else row for row in rows]
        return self._backend.decode_batch(cut, skip_special_tokens=True)

    def save(self, path: str | Path) -> None:
        """Writes a `tokenizer.json`, whole or not at all."""
        write_bytes(path, self.model)

    @classmethod
    def load(cls, path: str | Path, lowercase: bool = False, symbols: Sequence[str] = ()) -> "WordPiece":
        """A `tokenizer.json`, or the `vocab.txt` of a BERT, one piece a line.

        Special ids are moved to the places that this library uses, missing ones and missing `symbols` are added after
        them, and all other pieces keep their order. `lowercase` makes the tokenizer lower-case its text; that of an
        uncased `vocab.txt` does so only where it is said. Raises DataError for another kind of file.
        """
        path, backend = locate(path), library().Tokenizer
        if path.suffix == ".txt":
            return standard(json.loads(_of_vocabulary(path, lowercase)), lowercase, symbols)
        try:
            text = path.read_text(encoding="utf-8")
            backend.from_str(text)
            spec = json.loads(text)
        # The library raises nothing more special.
        except Exception as error:
            raise DataError(
                f"{path} is not the file of a tokenizer ({str(error).splitlines()[0]})"
            ) from error
        if spec["model"]["type"] != "WordPiece":
            raise DataError(
                f"{path} holds a {spec['model']['type']} model, and WordPiece alone is read from .json"
            )
        return standard(spec, lowercase, symbols)


def _lowercases(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        return any(map(_lowercases, normalizer["normalizers"]))
    return normalizer["type"] == "Lowercase" or bool(normalizer.get("lowercase"))


def standard(spec: dict[str, Any], lowercase: bool, symbols: Sequence[str]) -> WordPiece:
    """The tokenizer with special pieces first, symbols next and the others in their order."""
    model, added = spec["model"], {token["content"]: token for token in spec["added_tokens"]}
    old = model["vocab"] | {name: token["id"] for name, token in added.items()}
    pieces = sorted(old, key=old.__getitem__)
    pad = "[PAD]" if "[PAD]" in old else NAMES[0]
    front = dict.fromkeys((pad, model["unk_token"], *NAMES[2:], *symbols))
    ordered = [*front, *(piece for piece in pieces if piece not in front)]
    model["vocab"] = {piece: index for index, piece in enumerate(ordered)}
    special = {name for name, token in added.items() if token["special"]} | set(front)
    special -= {model["unk_token"]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    kept = [
        {"id": index, "content": piece, **flags, "special": True}
        if piece in special
        else added[piece] | {"id": index}
        for piece, index in model["vocab"].items()
        if piece in special or (piece in added and piece != model["unk_token"])
    ]
    spec |= {"added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
    if lowercase and not _lowercases(spec["normalizer"]):
        lower, others = {"type": "Lowercase"}, [spec["normalizer"]] if spec["normalizer"] else []
        spec["normalizer"] = {"type": "Sequence", "normalizers": [lower, *others]}
    tokenizer = WordPiece(json.dumps(spec, ensure_ascii=False, indent=1).encode())
    _check_symbols(tokenizer, special)
    return tokenizer


def _check_symbols(tokenizer: WordPiece, symbols: Iterable[str]) -> None:
    """Refuses symbols that are words of text."""
    words = tokenizer._backend.pre_tokenizer
    for symbol in symbols:
        found = {} if words is None else dict(words.pre_tokenize_str(f"-{symbol} {symbol}"))
        if symbol in found:
            raise DataError(
                f"the symbol {symbol!r} would be made from text that says the same: give it punctuation, such as "
                f"<{symbol.strip('<>[]')}>, or take a vocabulary that splits words at punctuation"
            )


def _of_vocabulary(path: Path, lowercase: bool) -> str:
    """The `tokenizer.json` of a BERT with these pieces."""
    lib = library()
    vocabulary: dict[str, int] = {}
    for line, text in enumerate(read_lines(path), 1):
        piece = text.rstrip()
        if not piece or piece in vocabulary:
            what = f"the piece {piece!r} again" if piece else "no piece"
            raise DataError(f"{path}:{line}: {what}: a vocabulary has one piece a line, each once")
        vocabulary[piece] = len(vocabulary)
    unknown = BERT_SPECIALS[1]
    if unknown not in vocabulary:
        raise DataError(f"{path}: no {unknown} in it, so it is not the vocabulary of a BERT")
    backend = lib.Tokenizer(lib.models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = lib.normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
    backend.decoder = lib.decoders.WordPiece(INSIDE, cleanup=True)
    backend.add_special_tokens([name for name in BERT_SPECIALS if name in vocabulary])
    return backend.to_str()
