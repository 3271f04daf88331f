"""Scores of classifiers by scikit-learn: accuracy, F1 and Matthews correlation, in per cent."""

from collections.abc import Sequence
from types import ModuleType

from flaxnmt.errors import ConfigError, DataError

METRICS = ("accuracy", "f1", "matthews")


def classification_scores(
    predictions: Sequence[int],
    labels: Sequence[int],
    *,
    metrics: Sequence[str] = METRICS,
    classes: int | None = None,
    marked: Sequence[int] | None = None,
) -> dict[str, float]:
    """Scores of predicted classes, in per cent; a prediction of -1 is none of them, and always wrong.

    accuracy: share of the right ones. f1: of class 1 where there are two classes, else the mean over all classes,
    each of the same weight; a class that is neither there nor predicted counts as 0; or of the classes `marked`, all of
    them together. matthews: correlation of
    predictions and labels (Matthews 1975, for more classes Gorodkin 2004), 0 where all predictions, or all labels, are
    the same.

    Args:
      classes: their number; the largest label or prediction plus one, and at least 2, if None.
      marked: those that are looked for, such as all labels of words but O.

    Raises:
      DataError: if there is nothing to score, or as many predictions as labels are not there.
      ConfigError: for an unknown metric, or without scikit-learn.
    """
    if not len(labels) or len(predictions) != len(labels):
        raise DataError(f"{len(predictions)} predictions for {len(labels)} labels: give one for each")
    library, count = _library(), classes or max(2, 1 + max(*predictions, *labels))
    if marked is not None:
        f1 = {"average": "micro", "labels": marked}
    else:
        # Of one class, since among two a prediction of neither is refused.
        f1 = {"average": "macro", "labels": [1] if count == 2 else range(count)}
    known = {
        "accuracy": lambda: library.accuracy_score(labels, predictions),
        "f1": lambda: library.f1_score(labels, predictions, zero_division=0.0, **f1),
        "matthews": lambda: library.matthews_corrcoef(labels, predictions),
    }
    if unknown := set(metrics) - set(known):
        raise ConfigError(f"unknown metric {min(unknown)!r}: choose from {', '.join(METRICS)}")
    return {name: 100 * float(known[name]()) for name in metrics}


def _library() -> ModuleType:
    try:
        import sklearn.metrics
    except ImportError as error:
        raise ConfigError(
            "scores of classifiers need scikit-learn: pip install 'flaxnmt[classification]'"
        ) from error
    return sklearn.metrics
