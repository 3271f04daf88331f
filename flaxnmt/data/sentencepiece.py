"""Vocabularies of the sentencepiece library: BPE, unigram, words and characters.

Text is not normalised apart from spaces, so `decode(encode(text))` is the text for single-spaced text whose characters
the vocabulary knows (U+2581, which sentencepiece writes for a space, comes back as a space; what is unknown comes back
as U+2047). A lower-casing tokenizer says so in the name of its model's normaliser.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import ClassVar

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from sentencepiece.sentencepiece_pb2 import SentencePieceText

from flaxnmt.data.files import locate, write_bytes
from flaxnmt.data.tokenizers import (
    NAMES,
    SPECIALS,
    Offsets,
    tagged,
    tagged_offsets,
    tags_of,
    too_large,
    too_small,
    without_spaces,
)
from flaxnmt.errors import DataError
from flaxnmt.symbols import EOS, UNK

LOWERCASE = "+lowercase"
MAX_BYTES = 1 << 16
# Unigram vocabularies depend on the number of threads, so it is a constant and not the machine's cores.
THREADS = 4


@dataclass(frozen=True)
class SentencePiece:
    """A sentencepiece model as its serialised bytes, which are the same for the same training."""

    suffix: ClassVar[str] = ".model"
    model: bytes = field(repr=False)

    @cached_property
    def _proto(self) -> ModelProto:
        return ModelProto.FromString(self.model)

    @cached_property
    def _processor(self) -> SentencePieceProcessor:
        return SentencePieceProcessor(model_proto=self.model)

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The piece of each id."""
        return tuple(piece.piece for piece in self._proto.pieces)

    @cached_property
    def _tags(self) -> dict[str, int]:
        return tags_of(self.pieces)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is cut."""
        return self._proto.normalizer_spec.name.endswith(LOWERCASE)

    @cached_property
    def controls(self) -> frozenset[int]:
        """Ids of what stands for no text: special ones and symbols."""
        kinds = (ModelProto.SentencePiece.CONTROL, ModelProto.SentencePiece.UNKNOWN)
        return frozenset(index for index, piece in enumerate(self._proto.pieces) if piece.type in kinds)

    @property
    def hash(self) -> str:
        """Fingerprint of the model, 16 hexadecimal digits."""
        return hashlib.sha256(self.model).hexdigest()[:16]

    def id(self, symbol: str) -> int:
        """The id of a symbol given in training; raises DataError for one that the vocabulary lacks."""
        index = self._processor.piece_to_id(symbol)
        if index == UNK:
            raise DataError(f"the vocabulary has no symbol {symbol!r}: name it when the tokenizer is made")
        return index

    def encode(self, texts: Sequence[str], threads: int = -1) -> list[list[int]]:
        """Ids of each text, without bos and eos; `threads` -1 is one per core.

        Symbols are never made from text, but for a language tag at its beginning: a "<symbol>" that a user writes is
        plain characters.
        """

        def encode(texts: list[str]) -> list[list[int]]:
            if self.lowercase:
                texts = [text.lower() for text in texts]
            return self._processor.encode(texts, out_type=int, num_threads=threads)

        return tagged(texts, self._tags, encode)

    def encode_with_offsets(self, text: str) -> Offsets:
        """The ids of `encode` and the characters of each."""
        return tagged_offsets(text, self._tags, self._with_offsets)

    def _with_offsets(self, text: str) -> Offsets:
        # The library counts bytes of the text that it is given; some characters have a lower case of two.
        characters = [character.lower() if self.lowercase else character for character in text]
        places = [place for place, cut in enumerate(characters) for _ in cut.encode()] + [len(text)]
        given = text.lower() if self.lowercase else text
        found = SentencePieceText.FromString(self._processor.encode(given, out_type="serialized_proto"))
        spans = [without_spaces(text, places[piece.begin], places[piece.end]) for piece in found.pieces]
        return Offsets([piece.id for piece in found.pieces], spans)

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Text of the ids before the first eos; pad, bos and symbols have none."""
        rows = [[int(index) for index in row] for row in ids]
        return self._processor.decode([row[: row.index(EOS)] if EOS in row else row for row in rows])

    def save(self, path: str | Path) -> None:
        """Writes a sentencepiece model file, whole or not at all."""
        write_bytes(path, self.model)

    @classmethod
    def load(cls, path: str | Path, lowercase: bool = False, symbols: Sequence[str] = ()) -> "SentencePiece":
        """A model file of this library or of another one.

        Special ids are moved to the places that this library uses and missing `symbols` are added after
        them; `lowercase` makes the tokenizer lower-case its text. Raises DataError for another kind of file.
        """
        data = locate(path).read_bytes()
        try:
            proto = ModelProto.FromString(data)
            SentencePieceProcessor(model_proto=data)
        except Exception as error:
            raise DataError(f"{path} is not a sentencepiece model ({str(error).splitlines()[0]})") from error
        return cls(_standard(proto, lowercase, symbols))


def _standard(proto: ModelProto, lowercase: bool, symbols: Sequence[str]) -> bytes:
    """The model with special pieces first, symbols next and the others in their order."""
    spec = proto.trainer_spec
    pieces = list(proto.pieces)
    by_name = {piece.piece: piece for piece in pieces}

    def control(name: str) -> ModelProto.SentencePiece:
        return ModelProto.SentencePiece(piece=name, score=0.0, type=ModelProto.SentencePiece.CONTROL)

    front = []
    for special, name in zip(SPECIALS, NAMES, strict=True):
        index = getattr(spec, f"{special}_id")
        piece = pieces[index] if index >= 0 else by_name.get(name) or control(name)
        if special != "unk":
            piece.type = ModelProto.SentencePiece.CONTROL
        setattr(spec, f"{special}_id", len(front))
        setattr(spec, f"{special}_piece", piece.piece)
        front.append(piece)
    for symbol in symbols:
        front.append(by_name.get(symbol) or control(symbol))
        # Other tools have symbols that are made from text.
        front[-1].type = ModelProto.SentencePiece.CONTROL
    taken = {piece.piece for piece in front}
    ordered = [ModelProto.SentencePiece.FromString(p.SerializeToString()) for p in front]
    ordered += [piece for piece in pieces if piece.piece not in taken]
    reordered = ModelProto()
    reordered.CopyFrom(proto)
    del reordered.pieces[:]
    reordered.pieces.extend(ordered)
    reordered.trainer_spec.vocab_size = len(ordered)
    if lowercase and not proto.normalizer_spec.name.endswith(LOWERCASE):
        reordered.normalizer_spec.name += LOWERCASE
    return reordered.SerializeToString(deterministic=True)


def _refusal(error: RuntimeError, kind: str, vocab_size: int) -> DataError:
    if largest := re.search(r"value <= (\d+)", str(error)):
        return too_large(kind, vocab_size, largest[1])
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
        return too_small(kind, vocab_size, needed[1])
    reason = str(error).splitlines()[0]
    return DataError(f"a {kind} vocabulary of {vocab_size} pieces could not be trained ({reason})")


def train(
    kind: str,
    texts: Sequence[str],
    vocab_size: int,
    lowercase: bool = False,
    character_coverage: float = 1.0,
    symbols: Sequence[str] = (),
) -> SentencePiece:
    """Trains a vocabulary, see `flaxnmt.data.tokenizers.train`."""
    model = BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(text.lower() for text in texts) if lowercase else iter(texts),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=kind in ("bpe", "unigram"),
            character_coverage=character_coverage,
            control_symbols=list(symbols),
            normalization_rule_name="identity",
            max_sentence_length=MAX_BYTES,
            num_threads=THREADS,
            minloglevel=2,
            **{f"{special}_id": index for index, special in enumerate(SPECIALS)},
        )
    except RuntimeError as error:
        raise _refusal(error, kind, vocab_size) from error
    return SentencePiece(_standard(ModelProto.FromString(model.getvalue()), lowercase, symbols))
