"""A decoder alone beside encoder and decoder, with as many parameters: Multi30k English-German, two seeds.

Source, delimiter and target are one sequence for a decoder alone (Liu et al. 2018), whose source words see those before
them, or each other. Ten of its layers have the parameters of four encoder and four decoder layers. All are trained for
as many updates of as many target tokens, at the rate of the recipe, which was made for encoder and decoder, and at half
of it. Measured on the test set, and compared with encoder and decoder at the same rate by a paired bootstrap. The corpus
lies in multi30k_en_de of the directory that --data or FLAXNMT_DATA names.
"""

from pathlib import Path

from experiments.data import MULTI30K, SHORT, multi30k, with_data
from experiments.measures import of_lines
from experiments.tables import AGAINST, Difference, Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read_source

SEEDS = (1, 2)
UPDATES = (
    *("--max-steps", "1000", "--training.evaluate-every", "1000"),
    *("--training.metric", "loss", "--training.evaluate-translations", "0"),
)
RATES = ("5e-3", "2.5e-3")
BASELINE = "encoder and decoder"
FAMILIES = {
    BASELINE: ("multi30k_en_de",),
    "decoder alone": ("decoder_multi30k_en_de", "--model.prefix", "causal"),
    "decoder alone, source sees itself": ("decoder_multi30k_en_de", "--model.prefix", "bidirectional"),
}


def _name(family: str, rate: str) -> str:
    name = family.replace(",", "").replace(" ", "-")
    return name if rate == RATES[0] else f"{name}-rate-{rate}"


def _trial(family: str, rate: str, seed: int) -> Trial:
    config, *flags = FAMILIES[family]
    return Trial(
        _name(family, rate),
        config,
        (*MULTI30K, *SHORT, *flags, *UPDATES, "--optimizer.learning-rate", rate),
        seed,
        (("model", family), ("rate", rate)),
        against=None if family == BASELINE else _name(BASELINE, rate),
    )


def measure(run: Path, trial: Trial) -> dict:
    source, target = (list(read_source(file)) for file in with_data(multi30k("test")))
    return of_lines(open_run(run), source, target)


COLUMNS = {
    "parameters, millions": lambda row: row["parameters"] / 1e6,
    "BLEU": "bleu",
    "chrF": "chrf",
    "BLEU over encoder and decoder": Difference("against.bleu"),
    "GFLOPs of 128 and 128 tokens": "gflops",
    "ms an update": lambda row: 1000 * row["update_seconds"],
    "seconds of decoding": "decoding_seconds",
}
OTHERS = tuple(family for family in FAMILIES if family != BASELINE)

sweep = Sweep(
    tuple(_trial(family, rate, seed) for rate in RATES for seed in SEEDS for family in FAMILIES),
    measure,
    (
        Table("Families", ("model", "rate"), COLUMNS),
        Table(
            "Over encoder and decoder, of each seed", ("model", "rate", "seed"), AGAINST, {"model": OTHERS}
        ),
    ),
)
