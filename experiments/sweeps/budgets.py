"""What a budget costs in quality: the model with gates beside Transformers made smaller, Multi30k English-German.

One model for all budgets (encoder, decoder) against separately trained ones with fewer layers on both sides, fewer
decoder layers alone (figures 4 and 5 of Bapna et al. 2020), or narrower feed-forward networks; the parts m of a
feed-forward network (figure 12); noise that is constant (figure 11); and the list of tricks: a lower lowest budget,
the hidden size of the control networks, one-sided loss, a constraint for each sequence, and what a gate counts while
training. Measured on the test set, for every budget: BLEU, chrF, the share of the full computation that was used, and
how much each gate lets through (figure 10). By a paired bootstrap every budget of the model with gates is compared with
the plain Transformer, and with its own full budget; every smaller model with the gated one at a budget of no more work;
and every version of the gated one with it, budget by budget. How far the development BLEU of the full budget falls
from its best, at six points of a training that is short, says what of that is seen here of runs that deteriorate. The
corpus lies in multi30k_en_de of the directory that --data or FLAXNMT_DATA names.

The size is one that two cores bear: the public recipe's layers with 4000 pieces, batches of 4096 tokens, 1500 updates.
What the paper's claims rest on comes first, with all seeds; then its tricks.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

from experiments.data import SHORT, multi30k, with_data
from experiments.measures import after_best, of_budgets
from experiments.tables import Row, Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read_source

SEEDS = (1, 2)
UPDATES = (*SHORT, "--max-steps", "1500", "--training.evaluate-every", "250")
CORPUS = tuple(word for split in ("train", "dev", "test") for word in (f"--{split}", *multi30k(split)))

GATED = {"gated": ()}

TRICKS = {
    "gated, m = 1": ("--model.budget.blocks", "1"),
    "gated, m = 2": ("--model.budget.blocks", "2"),
    "gated, m = 8": ("--model.budget.blocks", "8"),
    "gated, constant noise": ("--training.budget.noise-start", "5"),
    "gated, down to an eighth": (
        *("--model.budget.encoder", "1", "0.75", "0.5", "0.25", "0.125"),
        *("--model.budget.decoder", "1", "0.75", "0.5", "0.25", "0.125"),
    ),
    "gated, larger control networks": ("--model.budget.control-hidden", "32"),
    "gated, counted in expectation": ("--training.budget.count", "expected"),
    "gated, one-sided": ("--training.budget.no-two-sided",),
    "gated, each sequence": ("--training.budget.per-sequence",),
}

PLAIN = {"plain": ()}

REDUCED = {
    **{
        f"{layers} of 4 layers": (
            "--model.encoder.layers",
            str(layers),
            "--model.decoder.layers",
            str(layers),
        )
        for layers in (3, 2, 1)
    },
    **{f"{layers} of 4 decoder layers": ("--model.decoder.layers", str(layers)) for layers in (3, 2, 1)},
    **{
        f"feed-forward {size} of 256": (
            *("--model.encoder.feed-forward", str(size)),
            *("--model.decoder.feed-forward", str(size)),
        )
        for size in (128, 64)
    },
}


def _trials(*groups: tuple[str, dict[str, tuple[str, ...]], str | None]) -> list[Trial]:
    """Of groups (configuration, flags by model, trial that they are compared with), for each seed in turn."""
    return [
        Trial(
            name.replace(",", "").replace(" ", "-"),
            config,
            (*CORPUS, *flags, *UPDATES),
            seed,
            (("model", name),),
            against=against,
        )
        for seed in SEEDS
        for config, models, against in groups
        for name, flags in models.items()
    ]


TRIALS = (
    *_trials(
        ("multi30k_en_de", PLAIN, None),
        ("cct_multi30k_en_de", GATED, "plain"),
        ("multi30k_en_de", REDUCED, "gated"),
    ),
    *_trials(("cct_multi30k_en_de", TRICKS, "gated")),
)


def measure(run: Path, trial: Trial) -> dict:
    source, target = (list(read_source(file)) for file in with_data(multi30k("test")))
    opened = open_run(run)
    return of_budgets(opened, source, target) | after_best(opened)


WITH_GATES = (*GATED, *TRICKS)
COMPARED = (*WITH_GATES, *REDUCED)
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
TESTS = {
    "BLEU over the baseline": "against.bleu",
    "p": "against.bleu_p",
    "MFLOPs of the baseline / own": lambda row: row["against.flops"] / row["flops"],
    "BLEU over the full budget": "of_full.bleu",
    "p of it": "of_full.bleu_p",
}


def _open(stack: str, layer: int) -> Callable[[Row], float | None]:
    """Percentage of tokens that the gates of a layer let through, mean over its gates."""

    def found(row: Row) -> float | None:
        shares = [gate["on"] for gate in row["gates"] if gate["stack"] == stack and gate["layer"] == layer]
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
        **{f"{layer + 1}, %": _open(stack, layer) for layer in LAYERS},
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
sweep = Sweep(
    TRIALS,
    measure,
    (
        Table("Quality by budget", LEVEL, COLUMNS),
        Table("Differences, of each seed", (*LEVEL, "seed"), TESTS, {"model": COMPARED}),
        Table("Tokens that the gates of each layer let through", LEVEL, GATES, {"model": WITH_GATES}),
        Table("Deterioration after the best development score", ("model",), STABILITY, once=True),
    ),
)
