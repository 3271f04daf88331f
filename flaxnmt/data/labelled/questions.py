"""Questions whose answers are spans of a text: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), and sets like them.

A corpus is a JSON file in the form of SQuAD, gzip or not, or a prepared set of TensorFlow Datasets: `tfds:squad:train`,
`tfds:squad/v2.0:validation`. Every answer is looked up in its text.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from flaxnmt.data.files import Problem, Report, locate, read_lines, refuse
from flaxnmt.data.labelled.examples import Answer, QuestionExample
from flaxnmt.data.prepared_sets import NoSuchSet, as_written, in_order, name_of, open_set, split_of
from flaxnmt.errors import DataError

FORM = '{"data": [{"paragraphs": [{"context": ..., "qas": [{"id", "question", "answers"}]}]}]}'


def read_questions(
    name: str | Path,
    *,
    limit: int | None = None,
    data_dir: str | Path | None = None,
    report: Report = refuse,
) -> Iterator[QuestionExample]:
    """Questions in the order of the corpus, `limit` of them.

    Those of SQuAD 2.0 that are impossible have no answers; plausible ones are not read.

    Raises:
      DataError: at once for what is not there or is no set of questions, while reading for an answer that does not
        stand in its text where it says; another `report` than `refuse` collects the latter, and the question is left
        out.
    """
    if str(name).startswith("tfds:"):
        return islice(_of_set(str(name), data_dir, report), limit)
    return islice(_of_file(locate(name), report), limit)


def _checked(
    id: str,
    question: str,
    context: str,
    answers: list[Answer],
    path: str,
    line: Callable[[], int],
    report: Report,
) -> Iterator[QuestionExample]:
    """The question, unless something is wrong with it; only then the line is asked for."""
    for answer in answers:
        there = context[answer.start : answer.end]
        if answer.start < 0 or not answer.text or there != answer.text:
            message = (
                f"question {id}: the answer {answer.text!r} is not at character {answer.start} of its context, where "
                f"{there!r} stands"
            )
            report(Problem("answer", path, line(), message))
            return
    if not question.strip() or not context.strip():
        what = "context" if question.strip() else "question"
        report(Problem("blank", path, line(), f"question {id}: no {what}"))
        return
    yield QuestionExample(id, question, context, tuple(answers))


def _of_file(path: Path, report: Report) -> Iterator[QuestionExample]:
    text = "\n".join(read_lines(path))
    try:
        articles = json.loads(text)["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    answers = [] if entry.get("is_impossible") else entry["answers"]
                    found = [Answer(answer["text"], answer["answer_start"]) for answer in answers]
                    parts = entry["id"], entry["question"], paragraph["context"]
                    yield from _checked(
                        *parts, found, str(path), partial(_line_of, entry["id"], text), report
                    )
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno})") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a set of questions like SQuAD ({error}): {FORM} was expected") from None


def _line_of(id: str, text: str) -> int:
    """The line of a JSON file where the name of a question stands."""
    return 1 + text.count("\n", 0, max(text.find(json.dumps(id)), 0))


def _of_set(name: str, data_dir: str | Path | None, report: Report) -> Iterator[QuestionExample]:
    full, _, split = name.removeprefix("tfds:").partition(":")
    try:
        builder = open_set(full, data_dir)
    except NoSuchSet as error:
        raise DataError(f"{name}: no such set or config: {error}") from error
    if missing := {"question", "context", "answers"} - set(builder.info.features):
        raise DataError(
            f"tfds:{name_of(builder)} is no set of questions: it has no {', '.join(sorted(missing))}"
        )
    return _questions(split_of(builder, split or "train"), name, report)


def _questions(data: Any, name: str, report: Report) -> Iterator[QuestionExample]:
    for number, example in enumerate(in_order(data), 1):
        id, question, context = (as_written(example[key]) for key in ("id", "question", "context"))
        given = () if example.get("is_impossible", False) else example["answers"]
        texts, starts = (given["text"], given["answer_start"]) if given else ((), ())
        answers = [Answer(as_written(text), int(start)) for text, start in zip(texts, starts)]
        yield from _checked(id, question, context, answers, name, partial(int, number), report)
