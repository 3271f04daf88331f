"""Which encoders help each other: tables 2 to 7 of Hu et al. 2023, and gain against the size of the corpus.

At the size of `encoders_tiny`, in small batches of which there are more. On Multi30k English-German: each encoder alone
(table 2), beside Base with 3 to 18 layers (4), beside itself (5), all pairs (6; the LSTM with 6 layers in place of the
paper's 18, which learn nothing alone here), one to five encoders in the paper's order, with the paper's LSTM and with that
of 6 layers, and in the order of the measured synergy (7), Base to Quintuple on 3000, 7000 and 15000 pairs and on all, Base
and Dual with gated branches at four budgets, whose gates are soft to the end of training or decisions in its last sixth,
gates in place of the sum, and one norm behind it, with and without learned weights. Base, Dual and the best combination of
Multi30k on Guarani-Spanish and on Bible English-Vietnamese, whose sentences are longer and need more updates; there also what
that combination sums, alone, and there and on the smaller corpora the encoder that is the best by itself. All trials of a
corpus have as many updates. The enrichment of Static Expansion is divided by the length of the sequence: without that it
learns far more slowly here, by a pilot on the development set. Alone and in Dual it is measured without that, too, and in the
other reading of its equation. Measured on the test set, compared with Base by a paired bootstrap; the order of growth, in
either reading of synergy, the best combination and the best encoder are chosen on the development set.

The corpora lie in multi30k_en_de, lowres_gn_es and bible_en_vi of the directory that --data or FLAXNMT_DATA names.
Guarani has no test set: its development set is the test set, and the end of the training set stands in for it, 11 of whose
1032 pairs are among those before. Of these 25000 pairs 13475 are different ones: most stand there twice.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from experiments.data import PLACE, with_data
from experiments.encoder_sets import (
    ALL,
    ALONE,
    BASE,
    BY_LENGTH,
    CHOICE,
    COUPLES,
    DEEP,
    DEEPER,
    ENRICHED,
    GATED,
    GROWN,
    OTHERS,
    PAIRS,
    PAPER,
    SEEDS,
    SHALLOWER,
    SINGLE,
    SIZES,
    TWICE,
    WITH_EXPANSION,
    best_of,
    grown,
    measured_order,
    trial_name,
)
from experiments.encoder_tables import TABLES
from experiments.measures import of_budgets, of_lines
from experiments.synergy import Base
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read
from flaxnmt.evaluation.scores import evaluate
from flaxnmt.ledger import Row


def _length(updates: int, max_length: int, buckets: int) -> tuple[str, ...]:
    return (
        *("--max-steps", str(updates), "--training.evaluate-every", str(updates // 6)),
        *("--data.max-length", str(max_length), "--data.buckets", str(buckets)),
        *("--data.batch-tokens", "1024", "--training.evaluate-translations", "200"),
        *("--optimizer.learning-rate", "3e-3", "--optimizer.warmup-steps", "400"),
    )


LENGTHS = {
    "multi30k_en_de": _length(2400, max_length=64, buckets=4),
    # At 64 tokens a sixth of Guarani's pairs would be left out, and a third of their words.
    "lowres_gn_es": _length(4800, max_length=128, buckets=5),
    "bible_en_vi": _length(4800, max_length=128, buckets=5),
}


def _parallel(corpus: str, split: str, sides: tuple[str, str], part: str = "") -> tuple[str, ...]:
    return tuple(f"{PLACE}/{corpus}/{split}.{side}.gz{part}" for side in sides)


def _files(corpus: str, pairs: int = ALL) -> dict[str, tuple[str, ...]]:
    """Files of training, development and test set."""
    if corpus == "bible_en_vi":
        return {split: (f"{PLACE}/{corpus}/{split}.jsonl.gz",) for split in ("train", "dev", "test")}
    if corpus == "lowres_gn_es":
        sides = ("gn", "es")
        return {
            "train": _parallel(corpus, "train", sides, f"[:{SIZES[corpus]}]"),
            "dev": _parallel(corpus, "train", sides, f"[{SIZES[corpus]}:]"),
            "test": _parallel(corpus, "dev", sides),
        }
    sides = ("en", "de")
    part = "" if pairs == ALL else f"[:{pairs}]"
    return {
        "train": _parallel(corpus, "train", sides, part),
        **{split: _parallel(corpus, split, sides) for split in ("dev", "test")},
    }


def _trial(
    encoders: Sequence[str],
    seed: int,
    corpus: str = "multi30k_en_de",
    pairs: int = ALL,
    variant: str = "sum",
    flags: tuple[str, ...] = (),
    expansion: tuple[str, ...] = BY_LENGTH,
) -> Trial:
    files = _files(corpus, pairs)
    settings = {
        "corpus": corpus,
        "pairs": pairs if corpus == "multi30k_en_de" else SIZES[corpus],
        "encoders": " ".join(encoders),
        "count": len(encoders),
        "variant": variant,
    }
    name = trial_name(encoders, pairs, corpus)
    # Other ways to combine, and to enrich, are compared with the sum.
    other = trial_name(BASE, pairs, corpus) if variant == "sum" else name
    expands = any(encoder.startswith("static_expansion") for encoder in encoders)
    return Trial(
        name if variant == "sum" else f"{name}-{variant.replace(' ', '-')}",
        "encoders_tiny",
        (
            *(word for split in ("train", "dev") for word in (f"--{split}", *files[split])),
            *("--model.encoder.branches", *encoders),
            *LENGTHS[corpus],
            *(expansion if expands else ()),
            *flags,
        ),
        seed,
        tuple(settings.items()),
        against=None if name == other and variant == "sum" else other,
    )


COMBINED = {
    # Behind a norm of each branch weights would be factors of its scale.
    "weighted": ("--model.encoder.combine", "weighted", "--model.encoder.final-norm", "sum"),
    "gated": ("--model.encoder.combine", "gated"),
    "norm of the sum": ("--model.encoder.final-norm", "sum"),
    "budgets": (
        *("--model.budget.encoder", "1", "0.75", "0.5", "0.25", "--model.budget.control-hidden", "8"),
        *("--model.budget.control-scale", "5", "--model.budget.no-normed-outputs"),
        *("--training.budget.begin", "600", "--training.budget.fall-steps", "1200"),
        *("--training.budget.noise-steps", "1200", "--training.budget.count", "decided"),
        *("--training.budget.full-share", "0.25", "--training.budget.weight", "0.35"),
        *("--training.budget.normaliser", "squared"),
    ),
}
# Gates that are soft to the end keep to their budgets in training, and may decide otherwise in inference.
COMBINED["decided budgets"] = (*COMBINED["budgets"], "--training.budget.decide-from", "2000")


def _trials() -> tuple[Trial, ...]:
    """What matters most, and what the order of growth is chosen by, for each seed in turn: a sweep may take days."""
    groups = (BASE, *SINGLE, *ALONE, *DEEP), (*COUPLES, *GROWN, *SHALLOWER), TWICE, DEEPER
    trials = (_trial(encoders, seed) for group in groups for seed in SEEDS for encoders in group)
    # Some belong to several tables.
    return tuple(dict.fromkeys(trials))


def _later() -> tuple[Trial, ...]:
    """Other corpora, smaller ones, other ways to enrich and to combine."""
    trials = [_trial(encoders, seed, corpus) for corpus in OTHERS for seed in SEEDS for encoders in GROWN[:2]]
    trials += [
        _trial(encoders, seed, pairs=pairs) for pairs in PAIRS[:-1] for seed in SEEDS for encoders in GROWN
    ]
    trials += [
        _trial(encoders, seed, variant=name, expansion=flags)
        for name, flags in ENRICHED.items()
        for seed in SEEDS
        for encoders in WITH_EXPANSION
    ]
    trials += [
        _trial(encoders, seed, variant=name, flags=COMBINED[name])
        for name in GATED
        for seed in SEEDS
        for encoders in GROWN[:2]
    ]
    trials += [
        _trial(PAPER[:2], seed, variant=name, flags=COMBINED[name])
        for name in ("weighted", "gated", "norm of the sum")
        for seed in SEEDS
    ]
    return tuple(trials)


def following(rows: Sequence[Row]) -> tuple[Trial, ...]:
    """Growth by the measured synergy; on all corpora the best sum of different encoders, what it sums and the best encoder,
    alone, the latter on smaller ones, too: what a sum gains over Base may be what one of its encoders has by itself."""
    whole = [row for row in rows if CHOICE in row]
    orders = [order for base in get_args(Base) if (order := measured_order(whole, base)) is not None]
    by_rule = list(dict.fromkeys(encoders for order in orders for encoders in grown(order)[1:]))
    trials = [_trial(encoders, seed) for seed in SEEDS for encoders in by_rule]
    if len(orders) == len(get_args(Base)):
        sums = dict.fromkeys((*COUPLES, *GROWN[1:], *SHALLOWER[1:], *DEEPER, *by_rule))
        best, alone = best_of(whole, list(sums)), best_of(whole, ALONE)
        if None not in (best, alone):
            # Behind that with which they are compared, whatever a command that continues has yet to do.
            parts = ((encoder,) for encoder in best)
            trials += [
                _trial(encoders, seed, corpus)
                for encoders in dict.fromkeys((BASE, best, alone, *parts))
                for corpus in SIZES
                for seed in SEEDS
            ]
            trials += [
                _trial(encoders, seed, pairs=pairs)
                for pairs in PAIRS[:-1]
                for seed in SEEDS
                for encoders in (BASE, alone)
            ]
    return tuple(trials)


def _lines(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Sources and targets of a corpus."""
    sentences = [sentence for document in read(*with_data(files)) for sentence in document]
    return tuple([getattr(sentence, side) for sentence in sentences] for side in ("source", "target"))


def measure(run: Path, trial: Trial) -> dict:
    settings = dict(trial.settings)
    files = _files(settings["corpus"], settings["pairs"])
    source, target = _lines(files["test"])
    opened = open_run(run)
    if opened.config.model.budgets:
        return of_budgets(opened, source, target)
    row = of_lines(opened, source, target)
    source, target = _lines(files["dev"])
    curve = [
        [row["step"], row["loss"], row["bleu"]["score"]] for row in opened.metrics if row["kind"] == "dev"
    ]
    return row | {
        CHOICE: evaluate(opened.translate(source), target, metrics=("bleu",))["bleu"]["score"],
        "curve": curve,
        "best_step": min(curve, key=lambda at: at[1])[0],
        "best_step_bleu": max(curve, key=lambda at: at[2])[0],
    }


sweep = Sweep(
    _trials(),
    measure,
    TABLES,
    following,
    _later(),
)
