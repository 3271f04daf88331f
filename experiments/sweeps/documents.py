"""Which context models resolve what a sentence alone does not say: the embedded corpus, three seeds.

Every model of documents starts from the sentence model of its seed and is trained for as many updates, with batches of
one size; but those with a tree start from the one without, whose parameters they have, and have so twice as many updates:
to learn at once what is relevant and how a tree leads there takes it many times longer. Measured: contrastive accuracy by
phenomenon and distance, s-BLEU and d-BLEU, each with true, no, another document's and shuffled context.
"""

from pathlib import Path

from experiments.documents import measure as measure_run
from experiments.tables import BY_DISTANCE, CONTRASTIVE, CONTROLS, TIME, Table
from experiments.trial import Sweep, Trial
from flaxnmt.data.concatenation import BREAK

SEEDS = (1, 2, 3)

KINDS = {
    "conditional": ("--model.document.layers", "sentence", "conditional"),
    "hierarchical": ("--model.document.layers", "sentence", "hierarchical"),
    "hierarchical-multi-dimensional": (
        *("--model.document.layers", "sentence", "hierarchical"),
        *("--model.document.merge", "multi_dimensional"),
    ),
    "context": ("--model.document.layers", "sentence", "context", "--model.document.decoder-context"),
    "heads": ("--model.document.layers", "sentence", "heads"),
}

BREAK_KNOWN = ("--data.tokenizer.symbols", BREAK)
CONCATENATION = {
    "2-to-1": ("--data.previous", "1", "--data.batch-tokens", "4096"),
    "2-to-2": ("--data.previous", "1", "--data.previous-target", "--data.batch-tokens", "4096"),
}
"""They start from a sentence model whose vocabulary has the break; in batches of the size of the others'."""

CORPUS = ("--train", "discourse:train:24000")
"""So many documents that few are seen more than a few times: on 3000 the development loss rose again."""
UPDATES = ("--max-steps", "4000", "--optimizer.schedule", "cosine")
"""Of every model with context; after 2500 updates two of nine numbers of conditional attention were still below 95%."""
FEWER = ("--max-steps", "2500", "--optimizer.schedule", "cosine")
"""Of sweeps that compare choices of one model."""

START = {"hierarchical": "conditional", "hierarchical-multi-dimensional": "conditional"}


def _trials(seed: int) -> list[Trial]:
    trials = [
        Trial("sentence", "discourse_demo", CORPUS, seed),
        Trial("sentence-break", "discourse_demo", (*CORPUS, *BREAK_KNOWN), seed),
    ]
    trials += [
        Trial(
            name,
            "discourse_document",
            (*CORPUS, *flags, *UPDATES),
            seed,
            after=START.get(name, "sentence"),
        )
        for name, flags in KINDS.items()
    ]
    trials += [
        Trial(name, "discourse_demo", (*CORPUS, *flags, *UPDATES), seed, after="sentence-break")
        for name, flags in CONCATENATION.items()
    ]
    return trials


def measure(run: Path, trial: Trial) -> dict:
    return measure_run(run)


sweep = Sweep(
    tuple(trial for seed in SEEDS for trial in _trials(seed)),
    measure,
    (
        Table("Contrastive accuracy", ("name",), CONTRASTIVE),
        Table("Contrastive accuracy, of each seed", ("name", "seed"), CONTRASTIVE),
        Table("Phenomena by distance", ("name",), BY_DISTANCE),
        Table("Phenomena by distance, of each seed", ("name", "seed"), BY_DISTANCE),
        Table("Context controls", ("name",), CONTROLS),
        Table("Time", ("name",), TIME),
    ),
)
