"""Exact match and F1 of answers to questions, as SQuAD defines them (Rajpurkar et al. 2016, 2018).

Answers are compared in lower case, without ASCII punctuation, the articles a, an and the, and superfluous space. Of
several right answers the one with the best score counts. No answer is an empty text, and right if there is none.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from flaxnmt.data.labelled.examples import QuestionExample
from flaxnmt.errors import DataError

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """An answer as it is compared."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(WITHOUT_PUNCTUATION)).split())


def exact_match(predicted: str, right: str) -> float:
    """1 if both are the same once normalised, else 0."""
    return float(normalise(predicted) == normalise(right))


def word_f1(predicted: str, right: str) -> float:
    """F1 of the words of two answers, with their counts; of one that has no words, 1 if the other has none, too."""
    words, wanted = normalise(predicted).split(), normalise(right).split()
    if not words or not wanted:
        return float(words == wanted)
    shared = (Counter(words) & Counter(wanted)).total()
    return 2 * shared / (len(words) + len(wanted))


def answer_scores(predictions: Mapping[str, str], examples: Sequence[QuestionExample]) -> dict[str, float]:
    """Scores of a prediction for each question, by its id, in per cent.

    Returns:
      {"exact", "f1", "questions"} and, where some questions have answers and some have none, those of either kind
      as "exact_answerable", "f1_answerable", "exact_unanswerable", "f1_unanswerable".

    Raises:
      DataError: if there are no questions, or one has no prediction.
    """
    if not examples:
        raise DataError("nothing to score: there are no questions")
    missing = next((example.id for example in examples if example.id not in predictions), None)
    if missing is not None:
        raise DataError(f"question {missing} has no prediction: give an empty one where there is no answer")
    groups: dict[str, list[tuple[float, float]]] = {"": []}
    for example in examples:
        # An answer of nothing but articles and punctuation is none to compare with.
        right = [answer.text for answer in example.answers if normalise(answer.text)] or [""]
        predicted = predictions[example.id]
        found = tuple(max(score(predicted, text) for text in right) for score in (exact_match, word_f1))
        for group in ("", "_answerable" if example.answers else "_unanswerable"):
            groups.setdefault(group, []).append(found)
    if len(groups) == 2:
        groups = {"": groups[""]}
    return {
        f"{name}{group}": 100 * sum(scores) / len(scores)
        for group, found in groups.items()
        for name, scores in zip(("exact", "f1"), zip(*found))
    } | {"questions": len(examples)}
