"""What a sweep measures of an encoder alone: what it learned of texts, and scores of its labels, by budget."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from experiments.report import best_row
from experiments.tasks.labelled_sets import examples_of, make_set, names_of
from flaxnmt.data.labelled.examples import TextExample
from flaxnmt.models.config import BudgetConfig, EncoderOnlyConfig
from flaxnmt.models.flops import sequence_flops, source_flops
from flaxnmt.run import Run
from flaxnmt.training.masking import RATE
from flaxnmt.training.metrics import number

OF_TEXTS = "perplexity", "masked_accuracy"
OF_LABELS = "accuracy", "f1", "matthews", "exact_match"


def of_masked(run: Run, full: EncoderOnlyConfig) -> dict:
    """What a masked language model says of its development texts.

    Args:
      full: the model whose work is the full one.

    Returns:
      {"rows": for each budget, or once for a model without, "budget", "perplexity", "masked_accuracy" and `work`,
      "unigram_perplexity": of the same texts, "curve": [update, perplexity] of each evaluation}.
    """
    rows = [row for row in run.metrics if row["kind"] == "dev"]
    best = best_row(rows, "loss")
    return {
        "rows": _by_budget(run, best, OF_TEXTS, work(run, full, [run.config.data.max_length])),
        "unigram_perplexity": best["unigram_perplexity"],
        "curve": [[row["step"], row["perplexity"]] for row in rows],
    }


def of_labelled(run: Run, full: EncoderOnlyConfig) -> dict:
    """Scores on the test set of a run that classifies, of the parameters at its end.

    Args:
      full: the model whose work is the full one.

    Returns:
      {"rows": for each budget, or once for a model without, "budget", the scores of the head in per cent and `work`,
      "dev": the score by which the run was judged, on the development set, of the same parameters, "commonest":
      accuracy in per cent of the class that is the commonest in training, of a set of classes, "signature"}.
    """
    ends = {row["kind"]: row for row in run.metrics if row["kind"] in ("average", "test")}
    scores = [name for name in OF_LABELS if name in ends["test"]]
    data, head = run.config.data, run.config.model.head
    names = names_of(head, data.train, data, run.config.model.classes)
    data = dataclasses.replace(data, labels=names)
    examples = examples_of(head, data.test, names, labelled=False, answered=data.answered)
    lengths = make_set(head, examples, run.vocabularies.source, data, "test").rows.lengths
    found = {
        "rows": _by_budget(run, ends["test"], scores, work(run, full, lengths)),
        "dev": number(ends["average"], run.config.training.metric),
        "signature": ends["test"][scores[0]]["signature"],
    }
    if head == "classes":
        found["commonest"] = _commonest(examples_of(head, data.train, names), examples)
    return found


def work(run: Run, full: EncoderOnlyConfig, lengths: Sequence[int]) -> dict[str, float]:
    """FLOPs of the encoder on a row, mean over rows of these lengths, without control networks and all gates open.

    Returns:
      {"flops": of all outputs of all layers, as Bapna et al. 2020 count, "computed_flops": of what is computed, since
      without gates the last layer leaves out what nothing is read off, "share": of `flops` those of the full model}.
    """
    model, head = run.config.model, run.config.model.head
    sizes, counts = np.unique(lengths, return_counts=True)

    def mean(flops) -> float:
        return float(np.average([flops(int(size)) for size in sizes], weights=counts))

    def every(model: EncoderOnlyConfig) -> float:
        return mean(lambda size: source_flops(dataclasses.replace(model, budget=BudgetConfig()), size))

    def computed(size: int) -> int:
        outputs = {"masked": math.ceil(RATE * size), "classes": 1}.get(head, size)
        return sequence_flops(model, 0, (1, size), outputs)

    flops = every(model)
    return {
        "flops": flops,
        "computed_flops": flops if model.budgets else mean(computed),
        "share": flops / every(full),
    }


def _by_budget(run: Run, row: dict, names: Sequence[str], full: dict[str, float]) -> list[dict]:
    found = []
    for at in row.get("budgets", [{"budget": None, **row}]):
        use = at.get("use", 1.0)
        scores = {name: number(at, name) for name in names}
        found.append(
            {"budget": at["budget"], **scores, **{name: use * value for name, value in full.items()}}
        )
    return found


def _commonest(train: Sequence[TextExample], test: Sequence[TextExample]) -> float:
    """Per cent of a test set that has the commonest label of the training set."""
    ((label, _),) = Counter(example.label for example in train).most_common(1)
    said = [example.label for example in test if example.label is not None]
    return 100 * said.count(label) / len(said)
