"""Training of WordPiece vocabularies that lose nothing of their text (see `flaxnmt.data.wordpiece`)."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flaxnmt.data.tokenizers import NAMES, too_large, too_small
from flaxnmt.data.wordpiece import INSIDE, WordPiece, library, standard
from flaxnmt.symbols import UNK

SPACE = "\u2581"
# The punctuation of BERT: Unicode's, and all other ASCII that is neither letter, digit nor space.
ALONE = r"▁?[\p{P}$+<=>^`|~\p{Han}]"
LONGEST_WORD = 1000
REPEATED = 1 << 16


def _untrained(lowercase: bool) -> Any:
    """A tokenizer that loses nothing, without a vocabulary."""
    lib = library()
    backend = lib.Tokenizer(
        lib.models.WordPiece({NAMES[UNK]: UNK}, unk_token=NAMES[UNK], max_input_chars_per_word=LONGEST_WORD)
    )
    replace, spaces = lib.normalizers.Replace, [("^ +| +$", ""), (" +", " ")]
    backend.normalizer = lib.normalizers.Sequence(
        [
            *([lib.normalizers.Lowercase()] if lowercase else []),
            *(replace(lib.Regex(pattern), content) for pattern, content in spaces),
        ]
    )
    backend.pre_tokenizer = lib.pre_tokenizers.Sequence(
        [
            lib.pre_tokenizers.Metaspace(SPACE, "always", split=True),
            lib.pre_tokenizers.Split(lib.Regex(ALONE), "isolated"),
        ]
    )
    backend.decoder = lib.decoders.Sequence(
        [
            lib.decoders.Replace(NAMES[UNK], f"{SPACE}\u2047"),
            lib.decoders.Replace(lib.Regex(f"^{INSIDE}"), ""),
            lib.decoders.Metaspace(SPACE, "always", split=True),
        ]
    )
    return backend


def train(
    texts: Sequence[str],
    vocab_size: int,
    lowercase: bool = False,
    character_coverage: float = 1.0,
    symbols: Sequence[str] = (),
) -> WordPiece:
    """Trains a vocabulary, see `flaxnmt.data.tokenizers.train`.

    The library joins the most frequent pairs of pieces, as BPE does; WordPiece is how text is then cut. The result
    does not depend on its threads.
    """
    backend, symbols = _untrained(lowercase), tuple(dict.fromkeys(symbols))
    words: Counter[str] = Counter()
    for text in texts:
        found = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
        words.update(word for word, _ in found)
    words = _covered(words, character_coverage)
    room = vocab_size - len(NAMES) - len(symbols)
    pieces = _pieces(words, room)
    others = len(pieces) + len(NAMES) + len(symbols)
    if len(pieces) > room:
        raise too_small("wordpiece", vocab_size, others - 1)
    if len(pieces) < room:
        raise too_large("wordpiece", vocab_size, others)
    spec = json.loads(backend.to_str())
    spec["model"]["vocab"] = {piece: index for index, piece in enumerate((*NAMES, *symbols, *pieces))}
    return standard(spec, False, symbols)


def _covered(words: Counter[str], coverage: float) -> Counter[str]:
    """Words of the most frequent characters alone, that make up this share of all characters."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    kept, seen = set(), 0
    for character in sorted(characters, key=lambda each: (-characters[each], each)):
        if seen >= coverage * characters.total():
            break
        kept.add(character)
        seen += characters[character]
    return Counter({word: count for word, count in words.items() if kept.issuperset(word)})


def _pieces(words: Counter[str], size: int) -> list[str]:
    """The pieces of a vocabulary of these words, or all characters where these are more than `size`."""
    lib = library()
    backend = lib.Tokenizer(lib.models.WordPiece(unk_token=NAMES[UNK]))
    backend.pre_tokenizer = lib.pre_tokenizers.CharDelimiterSplit("\0")
    # Ties between pairs are broken by the ids of characters, and the library gives those inside of words theirs in the
    # random order of its table of words, unless they have one before.
    inside = sorted({INSIDE + character for word in words for character in word[1:]})

    def repeated() -> Iterator[str]:
        for word, count in words.items():
            for start in range(0, count, REPEATED):
                yield f"{word}\0" * min(count - start, REPEATED)

    trainer = lib.trainers.WordPieceTrainer(
        vocab_size=max(size, 0),
        special_tokens=inside,
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    backend.train_from_iterator(repeated(), trainer)
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)
