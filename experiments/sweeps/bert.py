"""Pre-trained encoders under budgets of computation: figures 6 to 9 of Bapna et al. 2020, at the size of `masked_tiny`.

An encoder with gates beside plain ones of fewer layers, or narrower (D and F together, at a ratio of 4), each
pre-trained on all books of mono_en but Frankenstein, which is the development set. Then each is fine-tuned on SST-2,
CoLA and those questions of SQuAD 2.0 that have an answer (sst2, cola, squad2_small of the directory that --data or
FLAXNMT_DATA names), on MNLI where TFDS has it prepared, and the plain one also without any pre-training: from the same
parameters and vocabulary before the first update. Other learning rates are tried on the plain encoder, with and without
pre-training, with one seed; the one that the development set prefers is then run with all, so that what is compared
there is each at its best. All encoders under budgets have the same rate, and with the first seed the preferred one, too.
Scores are those of the test sets, which are development sets of GLUE, at the end of the training, where a plain model
is not chosen by one score and the one with gates by that of its full budget; for every budget, with the computation
used. It is that of all outputs of all layers, as in the paper; plain models compute less, since of their last layer
nothing but the first output is read where there are classes.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments import configs
from experiments.data import PLACE
from experiments.encoder_only_measures import of_labelled, of_masked
from experiments.tables import Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.ledger import Row

SEEDS = (1, 2, 3)
BOOKS = (
    "jack_sheppard",
    "moby_dick",
    "news_from_nowhere",
    "pride_and_prejudice",
    "sherlock_holmes",
    "tinyshakespeare",
)
TEXTS = (
    *("--train", *(f"{PLACE}/mono_en/{book}.txt.gz" for book in BOOKS)),
    *("--dev", f"{PLACE}/mono_en/frankenstein.txt.gz"),
)

PLAIN, GATED = "plain", "gated"
MODELS = {
    PLAIN: (),
    GATED: (
        *("--model.budget.encoder", "1", "0.75", "0.5", "0.25", "--model.budget.control-hidden", "8"),
        *("--model.budget.control-scale", "5", "--model.budget.no-normed-outputs"),
        *("--training.budget.count", "decided"),
    ),
    **{f"{layers} of 4 layers": ("--model.encoder.layers", str(layers)) for layers in (3, 2, 1)},
    **{
        f"width {width} of 128": (
            "--model.d-model",
            str(width),
            "--model.encoder.feed-forward",
            str(4 * width),
        )
        for width in (112, 88, 64)
    },
}

RATE, RATES = "3e-4", ("3e-4", "1e-4", "1e-3")
"""Of all trials, and those that are tried on the plain encoder."""
FALL = (
    *("--training.budget.begin", "200", "--training.budget.fall-steps", "800"),
    *("--training.budget.noise-steps", "800", "--training.budget.decide-from", "1600"),
)
"""Pre-training of gates: budgets and noise come in its first third, as noise does in the paper; in its last third gates
are decisions."""


def _gates(updates: int) -> tuple[str, ...]:
    """Fine-tuning of gates: a weight of the smaller loss, noise as it was when it had grown, decisions in the second half."""
    return (
        *("--training.budget.weight", "0.3", "--training.budget.noise-start", "5"),
        *("--training.budget.decide-from", str(updates // 2)),
    )


@dataclass(frozen=True)
class Task:
    """Attributes:
    files: training, development and test set.
    metric: by which it is usually judged.
    updates: of the training.
    batch_tokens: of an update.
    flags: the head, where it is not that of two classes.
    """

    files: tuple[str, str, str]
    metric: str
    updates: int
    batch_tokens: int = 1024
    flags: tuple[str, ...] = ()


def _files(folder: str, suffix: str) -> tuple[str, str, str]:
    return tuple(f"{PLACE}/{folder}/{split}.{suffix}.gz" for split in ("train", "dev", "test"))


TASKS = {
    "sst2": Task(_files("sst2", "tsv"), "accuracy", 3400),
    "cola": Task(_files("cola", "tsv"), "matthews", 800),
    "squad": Task(
        _files("squad2_small", "json"),
        "f1",
        1200,
        batch_tokens=2048,
        flags=("--model.head", "spans", "--data.answered"),
    ),
    "mnli": Task(
        ("tfds:glue/mnli:train[:98%]", "tfds:glue/mnli:train[98%:]", "tfds:glue/mnli:validation_matched"),
        "accuracy",
        1200,
        batch_tokens=2048,
        flags=("--model.classes", "3"),
    ),
}


def there() -> tuple[str, ...]:
    """The tasks whose data this machine has, or could have in the directory of the corpora."""
    prepared = Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser() / "glue" / "mnli"
    return tuple(name for name in TASKS if name != "mnli" or prepared.is_dir())


def _named(model: str) -> str:
    return model.replace(" ", "-")


def _pretraining(model: str, seed: int) -> Trial:
    return Trial(
        f"masked-{_named(model)}",
        "masked_tiny",
        (*TEXTS, *MODELS[model], *(FALL if model == GATED else ())),
        seed,
        (("task", "masked"), ("model", model), ("pretrained", "yes")),
    )


def _unlearned(seed: int) -> Trial:
    """The plain encoder and its vocabulary before the first update."""
    nothing = (
        *("--optimizer.schedule", "constant", "--optimizer.learning-rate", "0"),
        *("--max-steps", "1", "--training.evaluate-every", "1"),
    )
    settings = (("task", "masked"), ("model", PLAIN), ("pretrained", "no"))
    return Trial("masked-unlearned", "masked_tiny", (*TEXTS, *nothing), seed, settings)


def _finetuning(task: str, seed: int, model: str, pretrained: bool = True, rate: str = RATE) -> Trial:
    found = TASKS[task]
    name = _named(model) if pretrained else "unlearned"
    files = (
        word for split, file in zip(("train", "dev", "test"), found.files) for word in (f"--{split}", file)
    )
    settings = {"task": task, "model": model, "pretrained": "yes" if pretrained else "no", "rate": rate}
    return Trial(
        f"{task}-{name}" + ("" if rate == RATE else f"-rate-{rate}"),
        "finetune_tiny",
        (
            *files,
            *MODELS[model],
            *(_gates(found.updates) if model == GATED else ()),
            *("--training.metric", found.metric, *found.flags),
            *("--max-steps", str(found.updates), "--training.evaluate-every", str(found.updates // 2)),
            *("--training.average", "last", "--training.average-count", "1"),
            *("--data.batch-tokens", str(found.batch_tokens)),
            *("--optimizer.learning-rate", rate),
        ),
        seed,
        tuple(settings.items()),
        after=f"masked-{name}",
    )


def trials(tasks: tuple[str, ...]) -> tuple[Trial, ...]:
    """All trials of these tasks: first what pre-training is worth, with all seeds, then the other models."""
    found = []
    for seed in SEEDS:
        found += [_pretraining(PLAIN, seed), _unlearned(seed)]
        rates = RATES if seed == SEEDS[0] else (RATE,)
        found += [
            _finetuning(task, seed, PLAIN, pretrained, rate)
            for task in tasks
            for rate in rates
            for pretrained in (True, False)
        ]
    others = [model for model in MODELS if model != PLAIN]
    for seed in SEEDS:
        found += [_pretraining(model, seed) for model in others]
        found += [_finetuning(task, seed, model) for task in tasks for model in others]
    return tuple(found)


def elsewhere(rows: list[Row]) -> tuple[Trial, ...]:
    """Trials that were finished where there was more data: tables show them here, too."""
    finished = {(row["name"], row["seed"]) for row in rows}
    return tuple(trial for trial in trials(tuple(TASKS)) if (trial.name, trial.seed) in finished)


def preferred(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The rate whose development score is best with the first seed, by (task, pretrained); none until all are there."""
    found = defaultdict(dict)
    for row in rows:
        if (row["model"], row["seed"]) == (PLAIN, SEEDS[0]) and row["task"] in TASKS:
            found[row["task"], row["pretrained"]][row["rate"]] = row["dev"]
    return {key: max(scores, key=scores.get) for key, scores in found.items() if set(scores) == set(RATES)}


def following(rows: list[Row]) -> tuple[Trial, ...]:
    """Preferred rates with the other seeds, and of all models, and what was finished elsewhere."""
    rates = preferred(rows)
    again = (
        _finetuning(task, seed, PLAIN, pretrained == "yes", rate)
        for (task, pretrained), rate in rates.items()
        for seed in SEEDS[1:]
    )
    others = (
        _finetuning(task, SEEDS[0], model, rate=rate)
        for (task, pretrained), rate in rates.items()
        for model in MODELS
        if pretrained == "yes" and model != PLAIN
    )
    return (*again, *others, *elsewhere(rows))


def measure(run: Path, trial: Trial) -> dict:
    measured = of_masked if dict(trial.settings)["task"] == "masked" else of_labelled
    return measured(open_run(run), configs.load("masked_tiny").model)


USED = {
    "used, %": lambda row: 100 * row["share"],
    "MFLOPs": lambda row: row["flops"] / 1e6,
    "computed": lambda row: row["computed_flops"] / 1e6,
}
SCORES = {"accuracy": "accuracy", "Matthews": "matthews", "F1": "f1", "exact match": "exact_match"}


@dataclass(frozen=True)
class AtPreferredRates:
    """A table of fine-tuning at the rate that the development set prefers of the plain encoder, with or without pre-training.

    Attributes:
      table: of trials with any rate.
    """

    table: Table

    @property
    def title(self) -> str:
        return f"{self.table.title}, the rate that the development set prefers"

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Markdown; nothing where no task has all rates."""
        rates, tuned = preferred(rows), [row for row in rows if row["task"] in TASKS]
        best = [row for row in tuned if rates.get((row["task"], row["pretrained"])) == row["rate"]]
        return replace(self.table, title=self.title).lines(best)


def _under_budgets(task: str, title: str, **where: str) -> Table:
    columns = {**SCORES, "accuracy of the commonest class": "commonest", **USED}
    return Table(title, ("model", "budget"), columns, {"task": task, "pretrained": "yes", **where})


HEADINGS = {
    "mnli": "MNLI (figure 6)",
    "sst2": "SST-2 (figure 7)",
    "cola": "CoLA (figure 8)",
    "squad": "SQuAD (figure 9)",
}
TABLES = (
    Table(
        "Masked language models",
        ("model", "pretrained", "budget"),
        {
            "perplexity": "perplexity",
            "of unigrams": "unigram_perplexity",
            "right, %": lambda row: 100 * row["masked_accuracy"],
            **USED,
        },
        {"task": "masked"},
    ),
    *(_under_budgets(task, title, rate=RATE) for task, title in HEADINGS.items()),
    *(AtPreferredRates(_under_budgets(task, title)) for task, title in HEADINGS.items()),
    Table(
        "With and without pre-training, one rate",
        ("task", "pretrained"),
        SCORES,
        {"model": PLAIN, "rate": RATE, "task": tuple(TASKS)},
    ),
    AtPreferredRates(
        Table("With and without pre-training", ("task", "pretrained", "rate"), SCORES, {"model": PLAIN})
    ),
    Table(
        "Learning rates on the development sets, one seed",
        ("task", "pretrained", "rate"),
        {"score": "dev"},
        {"model": PLAIN, "task": tuple(TASKS), "seed": SEEDS[0]},
    ),
)
sweep = Sweep(trials(there()), measure, TABLES, following)
