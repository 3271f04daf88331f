"""What is shown of the sweep `encoders`: tables 2 to 7 and 9 of Hu et al. 2023, and what was measured beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import get_args

from experiments.encoder_sets import (
    ALL,
    ALONE,
    CHOICE,
    COUPLES,
    DEEP,
    DEEPER,
    ENRICHED,
    GATED,
    GROWN,
    PAPER,
    PARTNERS,
    SEEDS,
    SHALLOWER,
    SINGLE,
    SIZES,
    TWICE,
    mean_scores,
    measured_order,
    orders_of_seeds,
)
from experiments.report import table as markdown
from experiments.synergy import Base, mutual, synergy
from experiments.tables import Difference, Least, Table
from flaxnmt.ledger import Row


def _encoders(*groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(" ".join(encoders) for group in groups for encoders in group)


QUALITY = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "BLEU over Base": Difference("against.bleu"),
    "chrF over Base": Difference("against.chrf"),
    "parameters, millions": lambda row: row["parameters"] / 1e6,
}
TESTS = {
    "BLEU over Base": Difference("against.bleu"),
    "p": "against.bleu_p",
    "chrF over Base": Difference("against.chrf"),
    "p of it": "against.chrf_p",
}
TRAINING = {
    "pairs trained on": "training_pairs",
    "updates": "steps",
    "epochs": "epochs",
    "development BLEU": CHOICE,
    "update of the least development loss": "best_step",
    "of the most BLEU of 200 lines": "best_step_bleu",
}
COSTS = {
    "parameters, millions": lambda row: row["parameters"] / 1e6,
    "GFLOPs at 128 tokens": "gflops",
    "minutes of training": Least("minutes"),
    "ms an update": Least(lambda row: 1000 * row["update_seconds"]),
    "seconds of decoding": Least("decoding_seconds"),
    "peak memory of the process, GiB": lambda row: row["peak_memory"] / 2**30,
}
BUDGETS = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "BLEU over the sum": Difference("against.bleu"),
    "encoder used, %": lambda row: 100 * row["encoder_use"],
    "seconds of decoding": "decoding_seconds",
}
MULTI30K = {"corpus": "multi30k_en_de"}
WHOLE = MULTI30K | {"pairs": ALL, "variant": "sum"}
SUMS = tuple(
    dict.fromkeys(
        encoders
        for size in range(1, len(PAPER) + 1)
        for among in (PAPER, PARTNERS)
        for encoders in combinations(among, size)
    )
)
"""Any different ones; growth, in whatever order, is among them."""
COMBINING = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "BLEU over the sum": Difference("against.bleu"),
    "p": "against.bleu_p",
    "chrF over the sum": Difference("against.chrf"),
    "p of it": "against.chrf_p",
}


def _table(
    title: str, *groups: Sequence[Sequence[str]], by: tuple[str, ...] = (), columns=QUALITY, where=WHOLE
) -> Table:
    return Table(title, (*by, "encoders"), columns, where | {"encoders": _encoders(*groups)})


@dataclass(frozen=True)
class Synergies:
    """What each encoder of a pair gains from the other, in both readings, and the order of growth that follows (table 6).

    Attributes:
      title: its heading.
    """

    title: str

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Markdown; nothing where no pair was measured."""
        rows = [row for row in rows if CHOICE in row]
        scores, readings = mean_scores(rows), get_args(Base)

        def found(one: str, other: str) -> list[str | None]:
            gains = (
                (synergy(scores, one, other, base), synergy(scores, other, one, base))
                + (mutual(scores, one, other, base),)
                for base in readings
            )
            return [None if gain is None else f"{gain:+.2f}" for three in gains for gain in three]

        pairs = [(one, other, *found(one, other)) for one, other in COUPLES]
        heads = [f"{gain}, {base}" for base in readings for gain in ("first", "second", "sum")]
        measured = [pair for pair in pairs if any(value is not None for value in pair[2:])]
        orders = {base: order for base in readings if (order := measured_order(rows, base)) is not None}
        return markdown(("first", "second", *heads), measured) + [
            f"\nOrder of growth on the development set, {base}: {', '.join(order)}"
            + "".join(
                f"; by seed {seed} alone: {', '.join(alone)}"
                for seed, alone in zip(SEEDS, orders_of_seeds(rows, base))
            )
            for base, order in orders.items()
        ]


TABLES = (
    _table("One encoder (table 2)", SINGLE, DEEP),
    _table(
        "All corpora (table 3)",
        (*SUMS, *DEEPER, *(encoders[1:] for encoders in DEEPER)),
        by=("corpus",),
        where={"pairs": tuple(SIZES.values()), "variant": "sum"},
    ),
    _table("Base and another encoder, by depth (table 4)", DEEPER),
    _table("The same encoder twice (table 5)", ALONE, TWICE),
    _table("Pairs (table 6)", ALONE, COUPLES),
    Synergies("Synergy of pairs, BLEU, Static Expansion with 12 layers (table 6)"),
    _table("One to five encoders, in the order of the paper (table 7)", GROWN, by=("count",)),
    _table("The same with an LSTM of 6 layers", SHALLOWER, by=("count",)),
    _table("All sums of different encoders that were measured", SUMS, by=("count",)),
    _table("By size of the corpus", ALONE, GROWN, by=("pairs",), where=MULTI30K | {"variant": "sum"}),
    Table(
        "Other ways to combine, of each seed",
        ("encoders", "variant", "seed"),
        COMBINING,
        {"variant": ("weighted", "gated", "norm of the sum")},
    ),
    Table(
        "Other enrichments of Static Expansion, of each seed",
        ("encoders", "variant", "seed"),
        COMBINING,
        {"variant": tuple(ENRICHED)},
    ),
    Table("Gated branches", ("encoders", "variant", "encoder_budget"), BUDGETS, {"variant": GATED}),
    Table(
        "Differences from Base, of each seed",
        ("corpus", "pairs", "encoders", "seed"),
        TESTS,
        {"variant": "sum"},
    ),
    Table(
        "Differences of gated branches from the sum, of each seed",
        ("encoders", "variant", "encoder_budget", "seed"),
        COMBINING,
        {"variant": GATED},
    ),
    Table("Training", ("corpus", "pairs", "encoders"), TRAINING, {"variant": "sum"}),
    _table("Costs (table 9)", SINGLE, DEEP, GROWN, columns=COSTS, by=("devices", "host")),
)
