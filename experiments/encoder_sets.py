"""Encoders that the sweep `encoders` puts together, and what it chooses by: synergy measured on the development set."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from experiments.synergy import Base, Encoders, Scores, canonical, growth
from flaxnmt.ledger import Row
from flaxnmt.models.config import GROWTH

SEEDS = (1, 2)
PAPER = tuple(f"{kind}:{layers}" for kind, layers in GROWTH.items())
"""Base, Static Expansion, LSTM, ConvS2S and FNet with the layers that they have beside others."""

PARTNERS = tuple("lstm:6" if encoder == "lstm:18" else encoder for encoder in PAPER)
"""Those whose synergy is measured. 18 LSTMs without skip connections learn nothing by themselves in as many updates, whatever
their beginning (`results/encoder_synergy.md`): what they gain from others would be that they failed alone."""

BASE = PAPER[:1]
DEPTHS = (3, 6, 12, 18)
ALL = 29000
PAIRS = (3000, 7000, 15000, ALL)
SIZES = {"multi30k_en_de": ALL, "lowres_gn_es": 25000, "bible_en_vi": 28218}
"""Pairs of the whole training set."""

OTHERS = ("lowres_gn_es", "bible_en_vi")
CHOICE = "dev_bleu"
"""By which combinations are chosen."""


def trial_name(encoders: Sequence[str], pairs: int = ALL, corpus: str = "multi30k_en_de") -> str:
    """Name of the trials whose branches are summed."""
    size = "" if pairs == ALL else f"-{pairs}"
    return f"{corpus}{size}-{'+'.join(encoders).replace(':', '')}"


def grown(order: Sequence[str]) -> list[tuple[str, ...]]:
    """The first one, two, and so on of an order, each written in the order of the paper."""
    kinds = [encoder.split(":")[0] for encoder in PAPER]
    return [
        tuple(sorted(order[:count], key=lambda encoder: kinds.index(encoder.split(":")[0])))
        for count in range(1, len(order) + 1)
    ]


SINGLE = tuple((f"{kind}:6",) for kind in GROWTH)
DEEP = (("lstm:18",),)
"""What does not learn alone."""
ALONE = tuple((encoder,) for encoder in PARTNERS)
TWICE = tuple((encoder, encoder) for encoder in PARTNERS)
COUPLES = tuple((one, other) for place, one in enumerate(PARTNERS) for other in PARTNERS[place + 1 :])
DEEPER = tuple((*BASE, f"{kind}:{depth}") for kind in tuple(GROWTH)[1:] for depth in DEPTHS)
GROWN = tuple(grown(PAPER))
SHALLOWER = tuple(grown(PARTNERS))
"""The order of the paper with the LSTM whose synergy is measured, beside the order that follows from it."""

GATED = ("budgets", "decided budgets")
"""Ways to train gated branches."""

BY_LENGTH = ("--model.encoder.expansion.by-length",)
"""The enrichment of Static Expansion divided by the length of the sequence."""

ENRICHED = {
    "enrichment as published": (),
    "one set of vectors": (*BY_LENGTH, "--model.encoder.expansion.enrichment", "shared_vectors"),
}
"""Static Expansion without what it has in all other trials, and in the other reading of its equation..."""
WITH_EXPANSION = (("static_expansion:6",), PAPER[1:2], PAPER[:2])
"""...alone and beside Base."""


def mean_scores(rows: Sequence[Row], metric: str = "bleu") -> Scores:
    """Means over seeds by encoders, of the whole of Multi30k and plain sums."""
    found = defaultdict(list)
    for row in rows:
        if (row["corpus"], row["pairs"], row["variant"]) == ("multi30k_en_de", ALL, "sum"):
            found[canonical(row["encoders"].split())].append(row[metric])
    return {encoders: statistics.mean(values) for encoders, values in found.items()}


def orders_of_seeds(rows: Sequence[Row], base: Base = "single") -> list[list[str] | None]:
    """Growth by the synergy of each seed on the development set; None where a pair is missing."""
    scores = (mean_scores([row for row in rows if row["seed"] == seed], CHOICE) for seed in SEEDS)
    return [growth(one, PARTNERS, base) for one in scores]


def measured_order(rows: Sequence[Row], base: Base = "single") -> list[str] | None:
    """Growth by the synergy measured on the development set, means over seeds; None until every seed has all pairs."""
    if None in orders_of_seeds(rows, base):
        return None
    return growth(mean_scores(rows, CHOICE), PARTNERS, base)


def best_of(rows: Sequence[Row], among: Sequence[Encoders]) -> Encoders | None:
    """Of these sums the best on the development set, means over seeds; None until every seed has all of them."""
    for seed in SEEDS:
        scores = mean_scores([row for row in rows if row["seed"] == seed], CHOICE)
        if not all(canonical(encoders) in scores for encoders in among):
            return None
    scores = mean_scores(rows, CHOICE)
    return max(among, key=lambda encoders: scores[canonical(encoders)])
