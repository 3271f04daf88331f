"""Pictures of the sweep `bert`, from the table of its ledger: figures 6 to 9 of Bapna et al. 2020, and pre-training.

A table is a data frame with a row for each trial and each of its budgets (`flaxnmt.open_sweep(PATH).table`). Trials
are chosen by patterns of their names, as `--only` of the sweep does. Nothing is drawn that is not in the table.
"""

import pandas
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.plots.common import LEFT_OUT, chosen, command, finish

GATED, PLAIN, LAYERS, WIDTH, UNLEARNED = "gated", "plain", "?-of-?-layers", "width-*-of-???", "unlearned"
TASKS = {
    "mnli": ("MNLI (figure 6)", "accuracy", "accuracy, %"),
    "sst2": ("SST-2 (figure 7)", "accuracy", "accuracy, %"),
    "cola": ("CoLA (figure 8)", "matthews", "Matthews correlation, %"),
    "squad": ("SQuAD (figure 9)", "f1", "F1, %"),
}
"""Title, score and its name."""

STYLES = {
    GATED: ("one model, all budgets", dict(color="C0", marker="o")),
    LAYERS: ("fewer layers", dict(color="C1", marker="s", linestyle="--")),
    WIDTH: ("narrower", dict(color="C2", marker="^", linestyle="--")),
}


def named(task: str, *models: str) -> list[str]:
    """Patterns of the trials of a task, of `masked` those of the pre-training."""
    return [f"{task}-{model}" for model in models]


def pending(table: pandas.DataFrame, *patterns: str) -> str:
    """One line with the commands that make the trials of which the table has none; empty where nothing is missing."""
    commands = [command("bert", pattern) for pattern in patterns if chosen(table, pattern).empty]
    return f"{LEFT_OUT}: {', '.join(commands)}" if commands else ""


def draw_task(table: pandas.DataFrame, task: str) -> Figure:
    """The score of a task against computation: one model with gates, and plain ones made smaller (figures 6 to 9)."""
    title, score, name = TASKS[task]
    figure, axes = plt.subplots(figsize=(5.8, 4.2), layout="constrained")
    _against_computation(axes, table, task, score)
    axes.set_ylabel(name)
    finish(axes, title, "MFLOPs an example")
    return figure


def draw_pretraining(table: pandas.DataFrame) -> Figure:
    """Perplexity of masked tokens: over the updates of the plain and gated models, and against computation."""
    figure, (curves, computation) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    for model, color in ((PLAIN, "C3"), (GATED, "C0")):
        runs = chosen(table, *named("masked", model)).drop_duplicates("seed")
        for place, curve in enumerate(runs["curve"]):
            steps, values = zip(*curve)
            curves.plot(steps, values, color=color, marker=".", alpha=0.7, label="_" if place else model)
    unigrams = chosen(table, "masked-*")["unigram_perplexity"].mean()
    curves.axhline(unigrams, color="0.5", linestyle=":", label="unigrams")
    curves.set_yscale("log")
    curves.set_ylabel("perplexity")
    finish(curves, "Pre-training", "updates")
    _against_computation(computation, table, "masked", "perplexity")
    finish(computation, "At its end", "MFLOPs a sequence")
    return figure


def draw_gain(table: pandas.DataFrame) -> Figure:
    """The score of each task with and without pre-training, means over seeds."""
    figure, axes = plt.subplots(figsize=(5.8, 4.2), layout="constrained")
    tasks = [task for task in TASKS if not chosen(table, *named(task, UNLEARNED)).empty]
    for shift, model, label in ((-0.2, UNLEARNED, "without pre-training"), (0.2, PLAIN, "with")):
        found = [chosen(table, *named(task, model))[TASKS[task][1]] for task in tasks]
        places = [place + shift for place in range(len(tasks))]
        means, spread = [rows.mean() for rows in found], [rows.std() for rows in found]
        axes.bar(places, means, 0.4, yerr=spread, capsize=3, label=label)
    axes.set_xticks(range(len(tasks)), [f"{TASKS[task][0].split()[0]}\n{TASKS[task][2]}" for task in tasks])
    finish(axes, "Pre-training", "")
    return figure


def points(rows: pandas.DataFrame, value: str) -> pandas.DataFrame:
    """Mean and standard deviation over seeds, for each trial and budget, from the least computation up.

    Returns:
      columns `mflops`, `mean`, `std`; the last is NaN for a single seed.
    """
    # Baselines have no budgets.
    groups = rows.groupby(["name", "budget"], dropna=False)
    found = groups[value].agg(["mean", "std"]).assign(mflops=groups["flops"].mean() / 1e6)
    return found.sort_values("mflops")


def _against_computation(axes: Axes, table: pandas.DataFrame, task: str, value: str) -> None:
    plain = chosen(table, *named(task, PLAIN))
    for model, (label, style) in STYLES.items():
        rows = chosen(table, *named(task, model))
        if not rows.empty:
            _curve(
                axes, rows if model == GATED else pandas.concat([plain, rows]), value, label=label, **style
            )
    _curve(axes, plain, value, label="plain", color="C3", marker="D", linestyle="")


def _curve(axes: Axes, rows: pandas.DataFrame, value: str, **style) -> None:
    found = points(rows, value)
    axes.errorbar(found["mflops"], found["mean"], found["std"], capsize=3, **style)
