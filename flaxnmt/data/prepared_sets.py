"""Sets of TensorFlow Datasets that are prepared on disk, as ArrayRecord files, read without TensorFlow."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from flaxnmt.data.formats import one_line
from flaxnmt.errors import DataError

REGISTERING = ("tensorflow_datasets.translate", "tensorflow_datasets.text")
"""What TFDS does not list by itself: the sets of WMT and GLUE."""

READ_AHEAD = 1024


class NoSuchSet(DataError):
    """TFDS knows no set, or no configuration, of this name."""


def open_set(full: str, data_dir: str | Path | None = None) -> Any:
    """The builder of a set, by its name and configuration.

    `data_dir` is the folder of prepared sets, TFDS_DATA_DIR or TFDS's own default if None. Raises DataError where
    TFDS is not installed, NoSuchSet with the words of TFDS.
    """
    try:
        import tensorflow_datasets as tfds

        for module in REGISTERING:
            import_module(module)
    except ImportError as error:
        raise DataError("reading tfds:... needs tensorflow-datasets: pip install flaxnmt[tfds]") from error
    try:
        return tfds.builder(full, file_format="array_record", data_dir=data_dir)
    except (ValueError, RuntimeError) as error:
        raise NoSuchSet(str(error).strip().splitlines()[0]) from error


def name_of(builder: Any) -> str:
    """Name and configuration of a set, without its version."""
    return builder.info.full_name.rpartition("/")[0]


def split_of(builder: Any, split: str) -> Sequence[Any]:
    """The examples of a split, or of a slice of it, in the order on disk.

    Raises DataError for a set that is not prepared, with the command that does it, and for a split that it lacks.
    """
    full = name_of(builder)
    if not builder.info.splits:
        raise DataError(
            f"tfds:{full} is not prepared in {builder.data_dir}: set TFDS_DATA_DIR, or prepare it once with "
            f'"import tensorflow_datasets as tfds, {", ".join(REGISTERING)}; '
            f"tfds.builder('{full}', file_format='array_record').download_and_prepare()\""
        )
    try:
        return builder.as_data_source(split)
    except NotImplementedError as error:  # TFDS's word for a format that it cannot read at random
        form = builder.info.file_format.value
        raise DataError(
            f"tfds:{full} is prepared as {form}: prepare it with file_format='array_record'"
        ) from error
    except (ValueError, KeyError) as error:
        raise DataError(
            f"tfds:{full} has no split {split}; it has {', '.join(builder.info.splits)}"
        ) from error


def in_order(data: Sequence[Any], places: Sequence[int] | None = None) -> Iterator[Any]:
    """The examples at these places, or all, read ahead."""
    places = range(len(data)) if places is None else places
    for start in range(0, len(places), READ_AHEAD):
        yield from data.__getitems__(places[start : start + READ_AHEAD])


def as_text(value: Any) -> str:
    """A text of an example in one line, without white space at its ends."""
    return one_line(as_written(value)).strip()


def as_written(value: Any) -> str:
    """A text of an example as it is, so that places in it stay what they are."""
    return value.decode() if isinstance(value, bytes) else str(value)
