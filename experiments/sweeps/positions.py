"""How position is told, and what it is worth beyond the lengths of training: Multi30k English-German, two seeds.

Every kind that `--model.positions` has, absolute, relative and none, at the size of `encoders_tiny` with four layers of
self-attention on each side. Trained on the shortest four fifths of the corpus, pairs of at most 22 tokens on both
sides; measured on the test set, on its pairs within that length and on those beyond, a sixth of it, and compared with
sinusoidal positions by a paired bootstrap. The corpus lies in multi30k_en_de of the directory that --data or
FLAXNMT_DATA names.
"""

from pathlib import Path
from typing import get_args, get_type_hints

from experiments.data import MULTI30K, multi30k, with_data
from experiments.measures import by_length, of_lines
from experiments.tables import AGAINST, Difference, Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read_source
from flaxnmt.models.config import Seq2SeqConfig

SEEDS = (1, 2)
KINDS = get_args(get_type_hints(Seq2SeqConfig)["positions"])
BASELINE = "sinusoidal"
OPTIONS = (
    *("--model.encoder.branches", "attention:4", "--model.decoder.layers", "4"),
    *("--data.max-length", "22"),
)


def _trial(kind: str, seed: int) -> Trial:
    return Trial(
        kind,
        "encoders_tiny",
        (
            *MULTI30K,
            *("--model.positions", kind, *OPTIONS),
        ),
        seed,
        (("positions", kind),),
        against=None if kind == BASELINE else BASELINE,
    )


def measure(run: Path, trial: Trial) -> dict:
    source, target = (list(read_source(file)) for file in with_data(multi30k("test")))
    opened = open_run(run)
    return of_lines(opened, source, target) | by_length(opened, source, target)


COLUMNS = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "BLEU over sinusoidal": Difference("against.bleu"),
    "BLEU within": "within.bleu",
    "BLEU beyond": "beyond.bleu",
    "chrF within": "within.chrf",
    "chrF beyond": "beyond.chrf",
    "length beyond, % of the reference's": lambda row: 100 * row["beyond.length_ratio"],
    "parameters, millions": lambda row: row["parameters"] / 1e6,
    "ms an update": lambda row: 1000 * row["update_seconds"],
    "seconds of decoding": "decoding_seconds",
}

OTHERS = tuple(kind for kind in KINDS if kind != BASELINE)

sweep = Sweep(
    tuple(_trial(kind, seed) for seed in SEEDS for kind in KINDS),
    measure,
    (
        Table("Positions, within the lengths of training and beyond", ("positions",), COLUMNS),
        Table("Over sinusoidal, of each seed", ("positions", "seed"), AGAINST, {"positions": OTHERS}),
    ),
)
