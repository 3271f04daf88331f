"""What a budget costs in quality: the model with gates beside Transformers made smaller, Multi30k English-German.

One model for all budgets (encoder, decoder) against separately trained ones with fewer layers on both sides, fewer
decoder layers alone (figures 4 and 5 of Bapna et al. 2020), or narrower feed-forward networks; the parts m of a
feed-forward network (figure 12); noise that is constant from when budgets begin, before which gates are open and there
is none (figure 11); and the list of tricks: norms of gated outputs, a lower lowest budget, the size of the control
networks, one-sided loss, and a constraint for each sequence. What this size made us try beside them is in
`results/budget_pilots.md`. Measured on the test set, for every budget, of tricks for those that are equal on both
sides: BLEU, chrF, the share of the full computation that was used, and how much each gate lets through (figure 10). By
a paired bootstrap every budget of the model with gates is compared with the plain Transformer, and with its own full
budget; every smaller model with the gated one at a budget of no more work; and every trick with a gated model that is
trained as short, at the same budget on both sides. Computation is that on the reference, so that a model that writes
less does not count as cheaper. How far the development BLEU of the full budget falls from its best, at six points of a
training that is short, and of one three times as long, says what of that is seen here of runs that deteriorate. The
corpus lies in multi30k_en_de of the directory that --data or FLAXNMT_DATA names.

The size is one that two cores bear: the public recipe's layers with 4000 pieces, batches of 1024 tokens, which learn more
from as much computation than larger ones, and a rate that falls to nothing: 21600 updates for what the paper's claims rest
on, since models with gates learn more slowly and the claims are those of trained ones, with all seeds; then 7200 for its
tricks, with one.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

from experiments.data import MULTI30K, SHORT, multi30k, with_data
from experiments.measures import after_best, of_budgets
from experiments.tables import Difference, Row, Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read_source

SEEDS = (1, 2)


def _updates(count: int, dropout: float) -> tuple[str, ...]:
    return (
        *(*SHORT, "--data.batch-tokens", "1024", "--model.dropout", str(dropout)),
        *("--optimizer.schedule", "cosine", "--optimizer.learning-rate", "3e-3"),
        *("--max-steps", str(count), "--training.evaluate-every", str(count // 6)),
        *("--training.checkpoint-every", "100"),
    )


def fall(begin: int, end: int) -> tuple[str, ...]:
    """First the whole model is trained, then budgets come down from it; and what they and noise have pushed apart has to be
    trained as such, while the rate has not fallen to nothing."""
    return (
        *("--training.budget.begin", str(begin)),
        *("--training.budget.fall-steps", str(end), "--training.budget.noise-steps", str(end)),
    )


WHOLE, SHORTER = _updates(21600, dropout=0.2), _updates(7200, dropout=0.1)
"""Of the claims, and of the tricks."""

GATED = {"gated": fall(3600, 9000)}
REFERENCE = {"gated, shorter": ()}
"""With which tricks are compared."""

TRICKS = {
    "gated, m = 1": ("--model.budget.blocks", "1"),
    "gated, m = 2": ("--model.budget.blocks", "2"),
    "gated, m = 8": ("--model.budget.blocks", "8"),
    "gated, constant noise": ("--training.budget.noise-start", "5"),
    "gated, larger control networks": ("--model.budget.control-hidden", "32"),
    "gated, down to an eighth": (
        *("--model.budget.encoder", "1", "0.75", "0.5", "0.25", "0.125"),
        *("--model.budget.decoder", "1", "0.75", "0.5", "0.25", "0.125"),
    ),
    "gated, one-sided": ("--training.budget.no-two-sided",),
    "gated, each sequence": ("--training.budget.per-sequence",),
    "gated, normed outputs": ("--model.budget.normed-outputs",),
}
"""What the paper tries."""

PLAIN = {"plain": ()}


def reduced(feed_forward: int) -> dict[str, tuple[str, ...]]:
    """The smaller models, beside one of four layers whose feed-forward networks have this inner size."""
    layers = {
        f"{count} of 4 layers": (
            "--model.encoder.layers",
            str(count),
            "--model.decoder.layers",
            str(count),
        )
        for count in (3, 2, 1)
    }
    decoders = {f"{count} of 4 decoder layers": ("--model.decoder.layers", str(count)) for count in (3, 2, 1)}
    narrower = {
        f"feed-forward {size} of {feed_forward}": (
            *("--model.encoder.feed-forward", str(size)),
            *("--model.decoder.feed-forward", str(size)),
        )
        for size in (feed_forward // 2, feed_forward // 4)
    }
    return layers | decoders | narrower


REDUCED = reduced(256)


def _trials(
    *groups: tuple[str, dict[str, tuple[str, ...]], str | None],
    updates: tuple[str, ...],
    seeds: tuple[int, ...] = SEEDS,
) -> list[Trial]:
    """Of groups (configuration, flags by model, trial that they are compared with), for each seed in turn."""
    return [
        Trial(
            name.replace(",", "").replace(" ", "-"),
            config,
            (*MULTI30K, *updates, *flags),
            seed,
            (("model", name),),
            against=against,
        )
        for seed in seeds
        for config, models, against in groups
        for name, flags in models.items()
    ]


def _shorter(changes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Versions of the gated model: what follows takes the place of what stands before."""
    return {name: (*fall(1800, 3600), *flags) for name, flags in changes.items()}


def claims(
    gated: dict[str, tuple[str, ...]], smaller: dict[str, tuple[str, ...]], updates: tuple[str, ...]
) -> list[Trial]:
    """What the paper's claims rest on: the plain model, the one with gates, and the smaller ones."""
    return _trials(
        ("multi30k_en_de", PLAIN, None),
        ("cct_multi30k_en_de", gated, "plain"),
        ("multi30k_en_de", smaller, "gated"),
        updates=updates,
    )


TRIALS = (
    *claims(GATED, REDUCED, WHOLE),
    *_trials(
        ("cct_multi30k_en_de", _shorter(REFERENCE), None),
        ("cct_multi30k_en_de", _shorter(TRICKS), "gated-shorter"),
        updates=SHORTER,
        seeds=SEEDS[:1],
    ),
)


def measure(run: Path, trial: Trial) -> dict:
    source, target = (list(read_source(file)) for file in with_data(multi30k("test")))
    opened = open_run(run)
    budgets = opened.config.model.budgets
    if dict(trial.settings)["model"] in TRICKS:
        budgets = [budget for budget in budgets if len(set(budget)) == 1]
    return of_budgets(opened, source, target, budgets) | after_best(opened)


WITH_GATES = (*GATED, *REFERENCE, *TRICKS)
LEVEL = ("model", "encoder_budget", "decoder_budget")
COLUMNS = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "encoder used, %": lambda row: 100 * row["encoder_use"],
    "decoder used, %": lambda row: 100 * row["decoder_use"],
    "MFLOPs a sentence": lambda row: row["flops"] / 1e6,
    "and of logits": lambda row: row["logits_flops"] / 1e6,
    "seconds of decoding": "decoding_seconds",
}

BEYOND_BUDGET = {
    f"{side}, points": Difference(lambda row, side=side: 100 * (row[f"{side}_use"] - row[f"{side}_budget"]))
    for side in ("encoder", "decoder")
}
DIFFERENCES = {
    "BLEU over plain": Difference("against.bleu"),
    "p": "against.bleu_p",
    "BLEU over the full budget": Difference("of_full.bleu"),
    "p of it": "of_full.bleu_p",
}


def _of_same_budget(column: str) -> Callable[[Row], float | None]:
    """Of the reference at the same budget; none where it was not trained for that."""

    def found(row: Row) -> float | None:
        same = all(row[f"against.{side}_budget"] == row[f"{side}_budget"] for side in ("encoder", "decoder"))
        return row[f"against.{column}"] if same else None

    return found


OVER_SAME = {"BLEU over gated, shorter": Difference(_of_same_budget("bleu")), "p": _of_same_budget("bleu_p")}
OVER_GATED = {
    f"{name}{which}": column
    for which, place in (("", "against"), (", dearer", "against.dearer"))
    for name, column in {
        "encoder budget of gated": f"{place}.encoder_budget",
        "decoder budget of gated": f"{place}.decoder_budget",
        "MFLOPs of gated / own": lambda row, place=place: row[f"{place}.flops"] / row["flops"],
        "BLEU over gated": Difference(f"{place}.bleu"),
        "p": f"{place}.bleu_p",
    }.items()
}


KINDS_OF_GATES = {
    "attention": lambda gate: gate["block"] != "feed_forward" and gate["gate"] == "rows",
    "keys": lambda gate: gate["gate"] == "keys",
    "feed-forward": lambda gate: gate["block"] == "feed_forward",
}


def _open(stack: str, layer: int, kind: str) -> Callable[[Row], float | None]:
    """Percentage of tokens that the gates of a kind in a layer let through, mean over them."""

    def found(row: Row) -> float | None:
        gates = [gate for gate in row["gates"] if gate["stack"] == stack and gate["layer"] == layer]
        shares = [gate["on"] for gate in gates if KINDS_OF_GATES[kind](gate)]
        return 100 * statistics.mean(shares) if shares else None

    return found


def _by_token(stack: str) -> Callable[[Row], int]:
    """Gates that are open for some tokens and closed for others in a tenth of the lines or more."""
    return lambda row: sum(gate["stack"] == stack and gate["mixed"] >= 0.1 for gate in row["gates"])


LAYERS = range(4)
GATES = {
    f"{stack} {name}": column
    for stack in ("encoder", "decoder")
    for name, column in {
        **{f"{layer + 1}, {kind}": _open(stack, layer, kind) for layer in LAYERS for kind in KINDS_OF_GATES},
        "gates by token": _by_token(stack),
    }.items()
}
FALL = 1.0
"""BLEU below its best at the end of training, from which on a run counts as one that deteriorated."""


def _fallen(row: Row) -> float:
    return row["dev_best"] - row["dev_last"]


STABILITY = {
    "best development BLEU": "dev_best",
    "lost until the end": _fallen,
    f"runs that lost more than {FALL:g}, %": lambda row: 100.0 * (_fallen(row) > FALL),
}


def tables(smaller: dict[str, tuple[str, ...]]) -> tuple[Table, ...]:
    """What is shown of a ledger whose smaller models are these."""
    return (
        Table("Quality by budget", (*LEVEL, "devices"), COLUMNS),
        Table("Use beyond the budget, of each seed", (*LEVEL, "seed"), BEYOND_BUDGET, {"model": WITH_GATES}),
        Table("Differences, of each seed", (*LEVEL, "seed"), DIFFERENCES, {"model": tuple(GATED)}),
        Table(
            "Reduced models over the gated one, of each seed",
            ("model", "seed"),
            OVER_GATED,
            {"model": tuple(smaller)},
        ),
        Table(
            "Tricks over the gated model at the same budget, of each seed",
            (*LEVEL, "seed"),
            OVER_SAME,
            {"model": tuple(TRICKS)},
        ),
        Table("Percentage of tokens that gates let through", LEVEL, GATES, {"model": WITH_GATES}),
        Table("Deterioration after the best development score", ("model",), STABILITY, once=True),
    )


sweep = Sweep(TRIALS, measure, tables(REDUCED))
