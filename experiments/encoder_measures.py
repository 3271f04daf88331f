"""What a sweep measures of an encoder alone: what it learned of texts, and scores of its labels, by budget."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from experiments.report import best_row
from experiments.tasks.labelled_sets import examples_of, make_set, names_of
from flaxnmt.models.config import BudgetConfig
from flaxnmt.models.flops import sequence_flops, source_flops
from flaxnmt.run import Run
from flaxnmt.training.masking import RATE
from flaxnmt.training.metrics import number

OF_TEXTS = "perplexity", "masked_accuracy"
OF_LABELS = "accuracy", "f1", "matthews", "exact_match"


def of_masked(run: Run) -> dict:
    """What a masked language model says of its development texts.

    Returns:
      {"rows": for each budget, or once for a model without, "budget", "perplexity", "masked_accuracy", "use": share of
      the full computation, "flops": of a sequence, logits and embeddings left out, "unigram_perplexity": of the same
      texts, "curve": [update, perplexity] of each evaluation}.
    """
    rows = [row for row in run.metrics if row["kind"] == "dev"]
    best = best_row(rows, "loss")
    return {
        "rows": _by_budget(run, best, OF_TEXTS, [run.config.data.max_length]),
        "unigram_perplexity": best["unigram_perplexity"],
        "curve": [[row["step"], row["perplexity"]] for row in rows],
    }


def of_labelled(run: Run) -> dict:
    """Scores on the test set of a run that classifies, of the parameters that were best on the development set.

    Returns:
      {"rows": for each budget, or once for a model without, "budget", the scores of the head in per cent, "use": share
      of the full computation, "flops": mean of a row, head and embeddings left out, "signature": of the scores}.
    """
    row = next(row for row in reversed(run.metrics) if row["kind"] == "test")
    scores = [name for name in OF_LABELS if name in row]
    return {
        "rows": _by_budget(run, row, scores, _lengths(run)),
        "signature": row[scores[0]]["signature"],
    }


def _by_budget(run: Run, row: dict, names: Sequence[str], lengths: Sequence[int]) -> list[dict]:
    full = full_flops(run, lengths)
    found = []
    for at in row.get("budgets", [{"budget": None, **row}]):
        use = at.get("use", 1.0)
        scores = {name: number(at, name) for name in names}
        found.append({"budget": at["budget"], **scores, "use": use, "flops": use * full})
    return found


def full_flops(run: Run, lengths: Sequence[int]) -> float:
    """Work of the encoder on a row, mean over rows of these lengths, without control networks and all gates open.

    Without gates the last layer computes no outputs that nothing is read off; with them it computes all.
    """
    model, head = run.config.model, run.config.model.head
    sizes, counts = np.unique(lengths, return_counts=True)

    def work(size: int) -> int:
        if model.budgets:
            return source_flops(dataclasses.replace(model, budget=BudgetConfig()), size)
        outputs = {"masked": math.ceil(RATE * size), "classes": 1}.get(head, size)
        return sequence_flops(model, 0, (1, size), outputs)

    return float(np.average([work(int(size)) for size in sizes], weights=counts))


def _lengths(run: Run) -> Sequence[int]:
    """Tokens of each row of the test set."""
    data, head = run.config.data, run.config.model.head
    names = names_of(head, data.train, data, run.config.model.classes)
    examples = examples_of(head, data.test, names, labelled=False)
    data = dataclasses.replace(data, labels=names)
    return make_set(head, examples, run.vocabularies.source, data, "test").rows.lengths
