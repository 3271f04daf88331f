"""Text to token ids and back: what every vocabulary is, how one is trained, and how a file of one is read.

Every vocabulary has pad=0, unk=1, bos=2, eos=3 and then the caller's symbols; a loaded model with other special ids is
reordered. Symbols are asked for by name and are never made from text, but for the language tag that a text begins with.
Leading and trailing spaces of a text are dropped and runs of them become one; `decode(encode(text))` is the text for
single-spaced text whose characters the vocabulary knows. The library of a kind is loaded when one of its vocabularies is.
"""

import random
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from flaxnmt.errors import DataError

SPECIALS = ("pad", "unk", "bos", "eos")
NAMES = ("<pad>", "<unk>", "<s>", "</s>")

MASK, CLS, SEP = "[MASK]", "[CLS]", "[SEP]"
"""Symbols of Devlin et al. 2019: a masked token, the beginning of a pair of texts, the end of each of them."""

ENCODER_SYMBOLS = (MASK, CLS, SEP)
"""Of every vocabulary of an encoder alone, in the order of their ids."""

MAX_SENTENCES = 2_000_000

TAG = re.compile(r"<2[\w-]+>")

T = TypeVar("T")


def language_tag(code: str) -> str:
    """The symbol that says into which language to translate, such as <2de> (Johnson et al. 2017).

    A text that begins with it, and a space, has it as its first id, of a vocabulary among whose symbols it is.
    """
    return f"<2{code}>"


def tags_of(pieces: Iterable[str]) -> dict[str, int]:
    """The language tags of a vocabulary and their ids."""
    return {piece: place for place, piece in enumerate(pieces) if TAG.fullmatch(piece)}


def tagged(
    texts: Sequence[str], tags: Mapping[str, int], encode: Callable[[list[str]], list[list[int]]]
) -> list[list[int]]:
    """Ids of texts, that of a language tag before those of the text behind it."""
    if not tags:
        return encode(list(texts))
    heads, rest = zip(*(_split(text, tags) for text in texts)) if texts else ((), ())
    return [[tags[head], *ids] if head else ids for head, ids in zip(heads, encode(list(rest)))]


def tagged_offsets(text: str, tags: Mapping[str, int], encode: Callable[[str], "Offsets"]) -> "Offsets":
    """The ids of a text as in `tagged`, and the characters of each."""
    head, rest = _split(text, tags)
    if not head:
        return encode(text)
    found, start = encode(rest), len(head)
    spans = [(start + first, start + last) for first, last in found.spans]
    return Offsets([tags[head], *found.ids], [(0, start), *spans])


def _split(text: str, tags: Container[str]) -> tuple[str, str]:
    """The language tag of a text, empty if it has none, and the text behind it."""
    head = text.partition(" ")[0]
    return (head, text.removeprefix(head)) if head in tags else ("", text)


class Offsets(NamedTuple):
    """The tokens of one text and where in it they stand.

    Attributes:
      ids: without bos and eos.
      spans: for each id the characters [start, end) that it was made of, without the spaces around them; a token of
        nothing but a space is empty.
    """

    ids: list[int]
    spans: list[tuple[int, int]]


class Tokenizer(Protocol):
    """A vocabulary: what batching, decoding, scoring and fine-tuning need of it.

    Equal models are equal tokenizers. `flaxnmt.data.sentencepiece` and `flaxnmt.data.wordpiece` have the kinds.

    Attributes:
      suffix: of the files that `save` writes.
    """

    suffix: str

    @property
    def pieces(self) -> tuple[str, ...]:
        """The piece of each id."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is cut."""
        ...

    @property
    def controls(self) -> frozenset[int]:
        """Ids of what stands for no text: special ones and symbols."""
        ...

    @property
    def hash(self) -> str:
        """Fingerprint of the model, 16 hexadecimal digits."""
        ...

    def id(self, symbol: str) -> int:
        """The id of a symbol given in training; raises DataError for one that the vocabulary lacks."""
        ...

    def encode(self, texts: Sequence[str], threads: int = -1) -> list[list[int]]:
        """Ids of each text, without bos and eos; `threads` -1 is one per core."""
        ...

    def encode_with_offsets(self, text: str) -> Offsets:
        """The ids of `encode` and the characters of each."""
        ...

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Text of the ids before the first eos; pad, bos and symbols have none."""
        ...

    def save(self, path: str | Path) -> None:
        """Writes a file that `load` reads, whole or not at all."""
        ...


def without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """The span [start, end) of a text without the white space at its ends; an empty one lies at its end."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def sample(items: Iterable[T], size: int, seed: int = 0) -> list[T]:
    """All items, or a uniform sample of `size` of them (reservoir, Vitter 1985), a function of the seed."""
    kept: list[T] = []
    draw = random.Random(seed).random
    for index, item in enumerate(items):
        if index < size:
            kept.append(item)
        elif (place := int(draw() * (index + 1))) < size:
            kept[place] = item
    return kept


def too_large(kind: str, vocab_size: int, largest: int | str) -> DataError:
    """The refusal of a vocabulary for which the text has too few pieces."""
    return DataError(
        f"a {kind} vocabulary of {vocab_size} pieces is larger than the training text allows; the largest possible "
        f"is {largest}"
    )


def too_small(kind: str, vocab_size: int, needed: int | str) -> DataError:
    """The refusal of a vocabulary that has fewer pieces than the text has characters."""
    return DataError(
        f"a {kind} vocabulary of {vocab_size} pieces does not hold all characters of the training text; it needs more "
        f"than {needed}, or a lower character coverage"
    )


def train(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    lowercase: bool = False,
    character_coverage: float = 1.0,
    symbols: Sequence[str] = (),
) -> Tokenizer:
    """Trains a vocabulary of `vocab_size` pieces, the four special ones and `symbols` included.

    `kind` is bpe (Sennrich et al. 2016), unigram (Kudo 2018), word, char or wordpiece (Wu et al. 2016); for word and
    char `vocab_size` is an upper bound. The result is a function of the arguments; more than two million texts are
    sampled.

    Raises:
      DataError: no text, a vocabulary that the text does not allow (with the largest that it does), or a library that
        is not installed.
    """
    if tags := tags_of(symbols):
        texts = (_split(text, tags)[1] for text in texts)
    texts = sample((text for text in texts if text and not text.isspace()), MAX_SENTENCES)
    if not texts:
        raise DataError("there is no text to train a vocabulary on")
    if kind == "wordpiece":
        from flaxnmt.data import wordpiece_training

        return wordpiece_training.train(texts, vocab_size, lowercase, character_coverage, symbols)
    from flaxnmt.data import sentencepiece

    return sentencepiece.train(kind, texts, vocab_size, lowercase, character_coverage, symbols)


def load(path: str | Path, lowercase: bool = False, symbols: Sequence[str] = ()) -> Tokenizer:
    """A vocabulary file of this library or of another one: .json and .txt are WordPiece, others sentencepiece.

    Special ids are moved to the places that this library uses and missing `symbols` are added after them; `lowercase`
    makes the tokenizer lower-case its text. Raises DataError for another kind of file.
    """
    if Path(path).suffix in (".json", ".txt"):
        from flaxnmt.data.wordpiece import WordPiece

        return WordPiece.load(path, lowercase, symbols)
    from flaxnmt.data.sentencepiece import SentencePiece

    return SentencePiece.load(path, lowercase, symbols)
