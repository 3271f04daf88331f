"""Translation sets of TensorFlow Datasets, read without TensorFlow.

A set is named `tfds:NAME[/CONFIG][/SRC_to_TGT][:SPLIT]`, for example `tfds:wmt14_translate/fr-en`,
`tfds:wmt14_translate/fr-en/en_to_fr:train[:1000]`, `tfds:ted_hrlr_translate/gl_to_en:validation` and
`tfds:ted_multi_translate/de_to_en`. Without a direction, the set's own pair (its supervised keys) is
taken; the split is train if none is named. TFDS_DATA_DIR says where prepared sets lie.

TFDS writes the examples of a split sorted by the hash of their key. Talks of ted_multi_translate, whose
keys are 0, 1, 2, ..., get their order back; sets of single sentences are read in the order on disk.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.formats import one_line
from flaxnmt.errors import DataError

FORM = "tfds:NAME[/CONFIG][/SRC_to_TGT][:SPLIT]"
TALK = "talk_name"
TRANSLATIONS = "translations"
READ_AHEAD = 1024


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
    try:
        import tensorflow_datasets as tfds

        # This import registers the WMT sets.
        import_module("tensorflow_datasets.translate")
    except ImportError as error:
        raise DataError("reading tfds:... needs tensorflow-datasets: pip install flaxnmt[tfds]") from error

    readings = [(name.parts, None)] if len(name.parts) < 2 else []
    if name.parts and "_to_" in name.parts[-1]:
        source, _, target = name.parts[-1].partition("_to_")
        readings.append((name.parts[:-1], (source, target)))
    refusal = f"expected {FORM}"
    for parts, direction in readings:
        try:
            full = "/".join((name.set, *parts))
            return tfds.builder(full, file_format="array_record", data_dir=data_dir), direction
        except (ValueError, RuntimeError) as error:
            refusal = str(error).strip().splitlines()[0]
    raise DataError(f"tfds:{'/'.join((name.set, *name.parts))}: no such set or config: {refusal}")


def _data(builder: Any, split: str) -> Sequence[Any]:
    """The examples of a split in the order on disk."""
    full = builder.info.full_name.rpartition("/")[0]
    if not builder.info.splits:
        raise DataError(
            f"tfds:{full} is not prepared in {builder.data_dir}: set TFDS_DATA_DIR, or prepare it once with "
            '"import tensorflow_datasets as tfds, tensorflow_datasets.translate; '
            f"tfds.builder('{full}', file_format='array_record').download_and_prepare()\""
        )
    try:
        return builder.as_data_source(split)
    # What TFDS raises for a file format that it cannot read at random.
    except NotImplementedError as error:
        form = builder.info.file_format.value
        raise DataError(
            f"tfds:{full} is prepared as {form}: prepare it with file_format='array_record'"
        ) from error
    except (ValueError, KeyError) as error:
        raise DataError(
            f"tfds:{full} has no split {split}; it has {', '.join(builder.info.splits)}"
        ) from error


def _order_on_disk(split: str, examples: int) -> list[int]:
    """Where each example lies: TFDS sorts a split by the hash of its keys, which are 0, 1, 2, ... here."""
    from tensorflow_datasets.core.hashing import Hasher

    keys = sorted(range(examples), key=Hasher(split).hash_key)
    places = [0] * examples
    for place, key in enumerate(keys):
        places[key] = place
    return places


def _examples(data: Sequence[Any], places: Sequence[int]) -> Iterator[Any]:
    for start in range(0, len(places), READ_AHEAD):
        yield from data.__getitems__(places[start : start + READ_AHEAD])


def _text(value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return one_line(text).strip()


def _languages(features: Any) -> tuple[str, ...]:
    if TRANSLATIONS in features:
        return tuple(features[TRANSLATIONS].languages)
    return tuple(features.keys())


def _pair(example: Any, direction: tuple[str, str], number: int) -> Sentence | None:
    """The sentence of an example, None where it has no text on one of the two sides."""
    texts = example
    if TRANSLATIONS in example:
        several = example[TRANSLATIONS]
        languages = map(_text, several["language"])
        texts = dict(zip(languages, several["translation"], strict=True))
    source, target = (_text(texts.get(language, "")) for language in direction)
    return Sentence(source, target, number) if source and target else None


def _talks(examples: Iterator[Any], direction: tuple[str, str], full: str) -> Iterator[Document]:
    """Examples with the same talk name that follow each other are a document."""
    runs, names = 0, set()
    numbered = ((_text(example[TALK]), number, example) for number, example in enumerate(examples, 1))
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
    full = builder.info.full_name.rpartition("/")[0]
    direction = direction or builder.info.supervised_keys
    features = builder.info.features
    languages = _languages(features)
    if direction is None or not set(direction) <= set(languages):
        known = ", ".join(languages[:12]) + (", ..." if len(languages) > 12 else "")
        lacks = "needs a direction" if direction is None else f"has no {' to '.join(direction)}"
        raise DataError(f"tfds:{full} {lacks}: name /SRC_to_TGT with two of {known}")
    data = _data(builder, name.split)
    places = range(len(data))
    if TALK not in features:
        pairs = (
            _pair(example, direction, number) for number, example in enumerate(_examples(data, places), 1)
        )
        return (Document(((pair,),)) for pair in pairs if pair)
    if not builder.info.disable_shuffling:
        if name.split not in list(builder.info.splits):
            raise DataError(f"{text}: a slice of a shuffled split has no whole talks; name the split alone")
        places = _order_on_disk(name.split, len(data))
    return _talks(_examples(data, places), direction, full)
