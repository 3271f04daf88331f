"""What the choices inside of conditional attention are worth: the embedded corpus, three seeds.

The number t of sentences that a word selects, up to all; how a node of the tree is made of its children, and whether
a level keeps nodes by their own score or by that of their path; boundaries of sentences that are jittered, or cut at a
fixed length, in place of the true ones, the limit that Trankova et al. 2024 name. Each beside the sentence model
from which it starts, trees from the conditional model, with its time of training and of decoding.
"""

from pathlib import Path

from experiments.documents import measure as measure_run
from experiments.sweeps.documents import CORPUS, FEWER, START
from experiments.tables import CONTRASTIVE, TIME, Table
from experiments.trial import Sweep, Trial

SEEDS = (1, 2, 3)
SENTENCES = 16
"""In the longest document: t is at most this."""

T = (1, 2, 4, 8, SENTENCES)
MERGES = ("source2token", "multi_dimensional", "mean")
SELECT_BY = ("raw", "cumulative")
BOUNDARIES = ("jittered", "fixed")
BLIND = ("context", "conditional", "hierarchical")
"""Kinds of attention whose boundaries are taken away."""

USUAL = {"t": 4, "merge": "source2token", "by": "raw", "boundaries": "true"}


def _trial(seed: int, attention: str, **changes) -> Trial:
    chosen = USUAL | changes
    flags = (
        *("--model.document.layers", "sentence", attention, "--model.document.t", str(chosen["t"])),
        *("--model.document.merge", chosen["merge"], "--model.document.select-by", chosen["by"]),
        *("--data.boundaries", chosen["boundaries"]),
    )
    name = "-".join([attention, *(f"{name}-{value}" for name, value in changes.items())])
    settings = (("attention", attention), *chosen.items())
    start = START.get(attention, "sentence")
    return Trial(name, "discourse_document", (*CORPUS, *flags, *FEWER), seed, settings, after=start)


def _trials(seed: int) -> list[Trial]:
    trials = [Trial("sentence", "discourse_demo", CORPUS, seed, (("attention", "sentence"),))]
    trials += [_trial(seed, attention) for attention in BLIND]
    trials += [_trial(seed, "conditional", t=t) for t in T if t != USUAL["t"]]
    trials += [
        _trial(seed, "hierarchical", merge=merge, by=by)
        for merge in MERGES
        for by in SELECT_BY
        if (merge, by) != (USUAL["merge"], USUAL["by"])
    ]
    trials += [
        _trial(seed, attention, boundaries=boundaries) for attention in BLIND for boundaries in BOUNDARIES
    ]
    return trials


def measure(run: Path, trial: Trial) -> dict:
    return measure_run(run)


CONDITIONAL = {"attention": ("sentence", "conditional"), "boundaries": (None, "true")}
TREE = {"attention": ("sentence", "hierarchical"), "boundaries": (None, "true")}
ALL = {"t": (None, USUAL["t"]), "merge": (None, USUAL["merge"]), "by": (None, USUAL["by"])}

sweep = Sweep(
    tuple(trial for seed in SEEDS for trial in _trials(seed)),
    measure,
    tuple(
        Table(f"{title}: {what}", ("attention", *by), columns, where)
        for title, by, where in (
            ("Selected sentences", ("t",), CONDITIONAL),
            ("Merge and selection", ("merge", "by"), TREE),
            ("Boundaries", ("boundaries",), ALL),
        )
        for what, columns in (("contrastive accuracy", CONTRASTIVE), ("time", TIME))
    ),
)
