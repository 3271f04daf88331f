"""Labelled examples made of the generated corpus, and the files and sets that hold them."""

import json

from flaxnmt.data import discourse
from flaxnmt.data.labelled.examples import Answer, QuestionExample


def sentences(count: int, seed: int = 0) -> list[str]:
    """English sentences."""
    documents = (item.document for item in discourse.generate("train", count))
    return [pair.source for document in documents for pair in document][seed : seed + count]


def questions(count: int = 12) -> list[QuestionExample]:
    """Texts of eight sentences; every word of one of them in turn is the answer, and every fourth has none."""
    lines = sentences(8 * count)
    examples = []
    for number in range(count):
        context = " ".join(lines[8 * number : 8 * number + 8])
        words = context.split(" ")
        first = 7 * number % (len(words) - 2)
        start = len(" ".join([*words[:first], ""]))
        answers = [Answer(" ".join(words[first : first + size]), start) for size in (2, 1)]
        examples.append(
            QuestionExample(
                f"id{number}", f"Which {number}?", context, () if number % 4 == 3 else tuple(answers)
            )
        )
    return examples


def squad(examples: list[QuestionExample], indent: int | None = None) -> str:
    """The JSON of these questions, of version 2.0."""
    paragraphs = [
        {
            "context": example.context,
            "qas": [
                {
                    "id": example.id,
                    "question": example.question,
                    "answers": [{"text": each.text, "answer_start": each.start} for each in example.answers],
                    "is_impossible": not example.answers,
                    "plausible_answers": [{"text": "plausible", "answer_start": 0}],
                }
            ],
        }
        for example in examples
    ]
    return json.dumps({"version": "v2.0", "data": [{"title": "a", "paragraphs": paragraphs}]}, indent=indent)
