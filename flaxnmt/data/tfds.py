"""Translation sets of TensorFlow Datasets, read without TensorFlow.

A set is named `tfds:NAME[/CONFIG][/SRC_to_TGT][:SPLIT]`, for example `tfds:wmt14_translate/fr-en`,
`tfds:wmt14_translate/fr-en/en_to_fr:train[:1000]`, `tfds:ted_hrlr_translate/gl_to_en:validation` and
`tfds:ted_multi_translate/de_to_en`. Without a direction, the set's own pair (its supervised keys) is
taken; the split is train if none is named. TFDS_DATA_DIR says where prepared sets lie.

TFDS writes the examples of a split sorted by the hash of their key. Talks of ted_multi_translate, whose
keys are 0, 1, 2, ..., get their order back; sets of single sentences are read in the order on disk.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.prepared_sets import NoSuchSet, as_text, in_order, name_of, open_set, split_of
from flaxnmt.errors import DataError

FORM = "tfds:NAME[/CONFIG][/SRC_to_TGT][:SPLIT]"
TALK = "talk_name"
TRANSLATIONS = "translations"


class Name(NamedTuple):
    """The parts of `tfds:NAME[/CONFIG][/SRC_to_TGT][:SPLIT]` as they stand there."""

    set: str
    parts: tuple[str, ...]
    split: str

    @classmethod
    def parse(cls, text: str) -> "Name":
        name, _, split = text.removeprefix("tfds:").partition(":")
        head, *parts = name.split("/")
        if not head or not all(parts) or len(parts) > 2:
            raise DataError(f"{text}: expected {FORM}")
        return cls(head, tuple(parts), split or "train")


def _open(name: Name, data_dir: str | Path | None) -> tuple[Any, tuple[str, str] | None]:
    """The builder of a set and the direction that was named after its config."""
    readings = [(name.parts, None)] if len(name.parts) < 2 else []
    if name.parts and "_to_" in name.parts[-1]:
        source, _, target = name.parts[-1].partition("_to_")
        readings.append((name.parts[:-1], (source, target)))
    refusal: str | NoSuchSet = f"expected {FORM}"
    for parts, direction in readings:
        try:
            return open_set("/".join((name.set, *parts)), data_dir), direction
        except NoSuchSet as error:
            refusal = error
    raise DataError(f"tfds:{'/'.join((name.set, *name.parts))}: no such set or config: {refusal}")


def _order_on_disk(split: str, examples: int) -> list[int]:
    """Where each example lies: TFDS sorts a split by the hash of its keys, which are 0, 1, 2, ... here."""
    from tensorflow_datasets.core.hashing import Hasher

    keys = sorted(range(examples), key=Hasher(split).hash_key)
    places = [0] * examples
    for place, key in enumerate(keys):
        places[key] = place
    return places


def _languages(features: Any) -> tuple[str, ...]:
    if TRANSLATIONS in features:
        return tuple(features[TRANSLATIONS].languages)
    return tuple(features.keys())


def _pair(example: Any, direction: tuple[str, str], number: int) -> Sentence | None:
    """The sentence of an example, None where it has no text on one of the two sides."""
    texts = example
    if TRANSLATIONS in example:
        several = example[TRANSLATIONS]
        languages = map(as_text, several["language"])
        texts = dict(zip(languages, several["translation"], strict=True))
    source, target = (as_text(texts.get(language, "")) for language in direction)
    return Sentence(source, target, number) if source and target else None


def _talks(examples: Iterator[Any], direction: tuple[str, str], full: str) -> Iterator[Document]:
    """Examples with the same talk name that follow each other are a document."""
    runs, names = 0, set()
    numbered = ((as_text(example[TALK]), number, example) for number, example in enumerate(examples, 1))
    for name, talk in groupby(numbered, key=itemgetter(0)):
        runs += 1
        names.add(name)
        if runs > 2 * len(names):
            raise DataError(
                f"tfds:{full}: the order of its talks cannot be put back (keys are not 0, 1, 2, ...)"
            )
        sentences = (_pair(example, direction, number) for _, number, example in talk)
        if sentences := tuple(filter(None, sentences)):
            yield Document((sentences,), id=name)


def read(text: str, data_dir: str | Path | None = None) -> Iterator[Document]:
    """Documents of a prepared set: talks in their order where it has talks, otherwise single sentences.

    `data_dir` is the folder of prepared sets, TFDS_DATA_DIR or TFDS's own default if None. Examples
    without text on one of the two sides are left out. Raises DataError for an unknown set, split
    or language, for one that is not prepared (with the command that does it) and, while reading, for
    talks whose order cannot be put back.
    """
    name = Name.parse(text)
    builder, direction = _open(name, data_dir)
    full = name_of(builder)
    direction = direction or builder.info.supervised_keys
    features = builder.info.features
    languages = _languages(features)
    if direction is None or not set(direction) <= set(languages):
        known = ", ".join(languages[:12]) + (", ..." if len(languages) > 12 else "")
        lacks = "needs a direction" if direction is None else f"has no {' to '.join(direction)}"
        raise DataError(f"tfds:{full} {lacks}: name /SRC_to_TGT with two of {known}")
    data = split_of(builder, name.split)
    places = range(len(data))
    if TALK not in features:
        pairs = (
            _pair(example, direction, number) for number, example in enumerate(in_order(data, places), 1)
        )
        return (Document(((pair,),)) for pair in pairs if pair)
    if not builder.info.disable_shuffling:
        if name.split not in list(builder.info.splits):
            raise DataError(f"{text}: a slice of a shuffled split has no whole talks; name the split alone")
        places = _order_on_disk(name.split, len(data))
    return _talks(in_order(data, places), direction, full)
