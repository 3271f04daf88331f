"""Five ways to cut text into tokens, at the size of `encoders_tiny`: Multi30k English-German, two seeds.

Words, characters, BPE, unigram and WordPiece, each with a joint vocabulary of at most 4000 pieces; characters need far
fewer, and words would need more, so that some of them are unknown. All are trained for as many updates of as many
tokens, of which a sentence of characters has four times more: a model of characters sees fewer sentences, and has a
second training of four times as many updates. Words are what stands between spaces, punctuation included. Measured on
the test set, and compared with BPE by a paired bootstrap. The corpus lies in multi30k_en_de of the directory that
--data or FLAXNMT_DATA names.
"""

from pathlib import Path
from typing import get_args

from experiments.data import MULTI30K, multi30k, with_data
from experiments.measures import of_lines, of_tokens
from experiments.tables import AGAINST, Difference, Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.config import TokenizerKind
from flaxnmt.data.readers import read_source

SEEDS = (1, 2)
KINDS = get_args(TokenizerKind)
BASELINE = "bpe"
# No pair of this corpus is left out, even as characters.
OPTIONS = ("--data.tokenizer.vocab-size", "4000", "--data.max-length", "256")


LONGER = {"char": ("--max-steps", "2400", "--training.evaluate-every", "2400")}
"""Further trainings, which see about as many sentences as one of pieces."""


def _trial(kind: str, seed: int, longer: tuple[str, ...] = ()) -> Trial:
    return Trial(
        f"{kind}-longer" if longer else kind,
        "encoders_tiny",
        (
            *MULTI30K,
            *("--data.tokenizer.kind", kind, *OPTIONS, *longer),
        ),
        seed,
        (("tokens", f"{kind}, longer" if longer else kind),),
        against=None if kind == BASELINE else BASELINE,
    )


def measure(run: Path, trial: Trial) -> dict:
    source, target = (list(read_source(file)) for file in with_data(multi30k("test")))
    opened = open_run(run)
    return of_tokens(opened, source, target) | of_lines(opened, source, target)


COLUMNS = {
    "vocabulary": "vocabulary",
    "tokens a source sentence": "source_tokens",
    "tokens a target sentence": "target_tokens",
    "unknown, %": lambda row: 100 * row["unknown"],
    "BLEU": "bleu",
    "chrF": "chrf",
    "BLEU over BPE": Difference("against.bleu"),
    "epochs": "epochs",
    "parameters, millions": lambda row: row["parameters"] / 1e6,
    "minutes of training": "minutes",
    "seconds of decoding": "decoding_seconds",
}

OTHERS = (*(kind for kind in KINDS if kind != BASELINE), *(f"{kind}, longer" for kind in LONGER))

sweep = Sweep(
    (
        *(_trial(kind, seed) for seed in SEEDS for kind in KINDS),
        *(_trial(kind, seed, longer) for seed in SEEDS for kind, longer in LONGER.items()),
    ),
    measure,
    (
        Table("Tokens", ("tokens",), COLUMNS),
        Table("Over BPE, of each seed", ("tokens", "seed"), AGAINST, {"tokens": OTHERS}),
    ),
)
