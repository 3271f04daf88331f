"""Which positions a model of documents needs: the embedded corpus, three seeds.

None, the word's place in the text, the same with a break token at the end of each sentence, and the places of word,
sentence and paragraph (Trankova et al. 2024, section 1), counted from the beginning of the text or of the unit, and with
the features of each level rolled, so that no two places look alike; under attention within the sentence, over the whole
document, and conditional. Forms of address are what paragraphs decide: whom the speaker talks to holds for the paragraph
in which it is said.

A model without positions starts from a sentence model without any, on either side; the others start from the usual
one, and what differs is the source. Break tokens are seen by the encoder where they are named, and nowhere else.
"""

from pathlib import Path

from experiments.documents import measure as measure_run
from experiments.sweeps.documents import CORPUS, FEWER
from experiments.tables import CONTRASTIVE, TIME, Table
from experiments.trial import Sweep, Trial

SEEDS = (1, 2, 3)
PLAIN = ("--model.document.no-roll-levels",)
NO_BREAKS = ("--model.document.no-sentence-ends",)
NONE = ("--model.positions", "none")
WORD = ("--model.document.levels", "word", "--model.document.count", "sequence")
LEVELS = ("--model.document.levels", "word", "sentence", "paragraph")

POSITIONS = {
    "none": (*NONE, *NO_BREAKS),
    "one level": (*WORD, *NO_BREAKS),
    "one level, breaks": WORD,
    "levels": (*LEVELS, "--model.document.count", "sequence", *PLAIN, *NO_BREAKS),
    "levels, by unit": (*LEVELS, "--model.document.count", "unit", *PLAIN, *NO_BREAKS),
    "levels, by unit, rolled": (*LEVELS, "--model.document.count", "unit", *NO_BREAKS),
}
ATTENTION = {
    "sentence": ("sentence",),
    "document": ("sentence", "document"),
    "conditional": ("sentence", "conditional"),
}


def _trials(seed: int) -> list[Trial]:
    base = (("attention", "sentence"), ("positions", "sentence model"))
    trials = [
        Trial("base", "discourse_demo", CORPUS, seed, base),
        Trial(
            "base-none",
            "discourse_demo",
            (*CORPUS, *NONE),
            seed,
            (base[0], ("positions", "sentence model, none")),
        ),
    ]
    for positions, flags in POSITIONS.items():
        for attention, layers in ATTENTION.items():
            trials.append(
                Trial(
                    f"{attention}-{positions.replace(', ', '-').replace(' ', '-')}",
                    "discourse_document",
                    (*CORPUS, "--model.document.layers", *layers, *flags, *FEWER),
                    seed,
                    (("attention", attention), ("positions", positions)),
                    after="base-none" if positions == "none" else "base",
                )
            )
    return trials


def measure(run: Path, trial: Trial) -> dict:
    return measure_run(run)


BY = ("attention", "positions")
sweep = Sweep(
    tuple(trial for seed in SEEDS for trial in _trials(seed)),
    measure,
    (Table("Contrastive accuracy", BY, CONTRASTIVE), Table("Time", BY, TIME)),
)
