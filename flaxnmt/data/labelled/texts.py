"""Classes of texts and of pairs of texts: SST-2, CoLA and MNLI of GLUE (Wang et al. 2019), and files like them.

A corpus is a TSV file whose first line names its columns, a file of JSON lines, either of them gzip or not, or a
prepared set of TensorFlow Datasets, such as `tfds:glue/mnli:validation_matched`. The text is in the column, or field,
`sentence`, `text`, `sentence1` or `premise`, the second one in `sentence2` or `hypothesis`, the label in `gold_label`
or `label`: the name of a class or, where no name is a number, its place among them. Nothing is quoted in a TSV file, as
in those of GLUE, of which CoLA's alone, with source, label, mark and sentence, name no columns.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from flaxnmt.data.files import Problem, Report, locate, read_lines, refuse
from flaxnmt.data.formats import one_line
from flaxnmt.data.labelled.examples import TextExample
from flaxnmt.data.prepared_sets import NoSuchSet, as_text, in_order, name_of, open_set, split_of
from flaxnmt.errors import DataError

log = logging.getLogger(__name__)

FIRST = ("sentence", "text", "sentence1", "premise")
SECOND = ("sentence2", "hypothesis")
LABEL = ("gold_label", "label")
COLA = ("source", "label", "mark", "sentence")
UNDECIDED = "-"
"""The gold label of a pair on which its annotators did not agree; such a pair is left out."""

HIDDEN = "-1"
"""The label of an example whose label is a secret, unless a class has this name."""

NO_LABEL = f"no label; give {HIDDEN} where it is a secret"

Row = tuple[int, Mapping[str, Any]]
T = TypeVar("T")


def read_texts(
    name: str | Path,
    labels: Sequence[str],
    *,
    limit: int | None = None,
    data_dir: str | Path | None = None,
    report: Report = refuse,
) -> Iterator[TextExample]:
    """Examples of a corpus, in its order; pairs without an agreed label are left out.

    Args:
      labels: names of the classes, such as `LABELS["sst2"]` or what `label_names` found.
      limit: a number of examples.
      data_dir: folder of prepared sets, as in `flaxnmt.data.tfds`.
      report: what gets the problems of lines; reading goes on where it does not raise.

    Raises:
      DataError: at once for what is not there or has no text, while reading for what is wrong with a line.
    """
    names = {label: place for place, label in enumerate(labels)}
    # Where a name is a number, a number is a name: "2" among 1, 2, 3 is not the class at place 2.
    numbers = {} if any(map(_is_number, labels)) else {str(place): place for place in range(len(labels))}
    places = {HIDDEN: None} | numbers | names

    def problem(line: int, kind: str, message: str) -> None:
        report(Problem(kind, str(name), line, message))

    def examples() -> Iterator[TextExample]:
        found = False
        for line, row in _rows(name, data_dir, problem):
            found = True
            text, second, label = (_first(row, names) for names in (FIRST, SECOND, LABEL))
            if label == UNDECIDED:
                continue
            if text is None or not text.strip() or (second is not None and not second.strip()):
                problem(line, "blank", "no text" if text is None or not text.strip() else "no second text")
            elif label is not None and label not in places:
                known = f"{label!r} is none of the labels {', '.join(labels)}"
                problem(line, "label", known if label.strip() else NO_LABEL)
            else:
                yield TextExample(text, second, None if label is None else places[label], line)
        if not found:
            problem(0, "empty", "no example in it")

    return islice(examples(), limit)


def label_names(*names: str | Path, data_dir: str | Path | None = None) -> tuple[str, ...]:
    """The labels of corpora: of prepared sets in their order, then those of files, sorted, numbers by their size.

    Where there are prepared sets, a number in a file is the place of one of their labels.

    Raises:
      DataError: as `read_texts`, and for a file without labels.
    """
    prepared = [name for name in names if str(name).startswith("tfds:")]
    features = [_prepared(str(name), data_dir)[0].info.features["label"] for name in prepared]
    ordered = dict.fromkeys(label for feature in features for label in feature.names)
    found = set().union(*(_labels_of(name) for name in names if name not in prepared)) - set(ordered)
    if ordered:
        found = {label for label in found if not _is_number(label)}
    return (*ordered, *sorted(found, key=float if all(map(_is_number, found)) else None))


def _labels_of(name: str | Path) -> set[str]:
    """The labels of a file."""

    def problem(line: int, kind: str, message: str) -> None:
        refuse(Problem(kind, str(name), line, message))

    counts = Counter()
    for line, row in _rows(name, None, problem):
        label = _first(row, LABEL)
        if label is not None and not label.strip():
            problem(line, "label", NO_LABEL)
        counts[label] += 1
    found = set(counts) - {None, UNDECIDED, HIDDEN}
    if not found:
        problem(0, "label", f"no label in it: a column {' or '.join(LABEL)} was expected")
    if counts[HIDDEN]:
        log.warning(
            "%s: label %s stands for a secret, so that nothing is learned of the %d examples that have it; if it is a "
            "class, name all of them with --data.labels", name, HIDDEN, counts[HIDDEN],
        )  # fmt: skip
    return found


def _is_number(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((str(row[name]) for name in names if row.get(name) is not None), None)


def _rows(
    name: str | Path, data_dir: str | Path | None, problem: Callable[[int, str, str], None]
) -> Iterator[Row]:
    """Line and values of each example."""
    if str(name).startswith("tfds:"):
        return _of_set(str(name), data_dir)
    path, suffixes = locate(name), str(name).removesuffix(".gz")
    if suffixes.endswith(".tsv"):
        return _of_table(path, problem)
    if suffixes.endswith(".jsonl"):
        return _of_json_lines(path, problem)
    raise DataError(f"{name}: labelled text is .tsv[.gz], .jsonl[.gz] or tfds:NAME/CONFIG[:SPLIT]")


def _of_table(path: Path, problem: Callable[[int, str, str], None]) -> Iterator[Row]:
    lines = enumerate(read_lines(path), 1)
    first = next(lines, (1, ""))
    names = first[1].split("\t")
    if len(names) == len(COLA) and names[1] in ("0", "1"):
        names, lines = COLA, chain([first], lines)
    if not set(names) & set(FIRST):
        problem(1, "columns", f"no column {', '.join(FIRST)}: the first line names the columns")
        return
    for line, text in lines:
        cells = text.split("\t")
        if len(cells) == len(names):
            yield line, dict(zip(names, cells))
        elif text.strip():
            problem(
                line, "columns", f"{len(cells)} tab-separated columns, not {len(names)} as in the first line"
            )


def _of_json_lines(path: Path, problem: Callable[[int, str, str], None]) -> Iterator[Row]:
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            problem(line, "json", f"not JSON ({error.msg} at column {error.colno})")
            continue
        if not isinstance(row, dict):
            problem(line, "json", 'no object: {"sentence": ..., "label": ...} was expected')
            continue
        yield line, {key: one_line(value) if isinstance(value, str) else value for key, value in row.items()}


def _prepared(name: str, data_dir: str | Path | None) -> tuple[Any, str]:
    full, _, split = name.removeprefix("tfds:").partition(":")
    try:
        return open_set(full, data_dir), split or "train"
    except NoSuchSet as error:
        raise DataError(f"{name}: no such set or config: {error}") from error


def _of_set(name: str, data_dir: str | Path | None) -> Iterator[Row]:
    builder, split = _prepared(name, data_dir)
    features = builder.info.features
    if not set(features) & set(FIRST):
        raise DataError(
            f"tfds:{name_of(builder)} is no set of labelled texts: it has {', '.join(features)}, and no {FIRST[0]}"
        )
    data = split_of(builder, split)
    wanted = [key for key in (*FIRST, *SECOND, *LABEL) if key in features]
    return (
        (number, {key: as_text(example[key]) for key in wanted})
        for number, example in enumerate(in_order(data), 1)
    )
