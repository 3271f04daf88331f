"""What is measured of a model of documents: contrastive accuracy and BLEU, with its context and without.

    python -m experiments.documents RUN [RUN ...] [--sets N]

prints a table of contrastive accuracy on the embedded corpus, a line for each run and kind of context.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments.measures import scores, speed
from experiments.report import table as markdown
from experiments.tables import FAR
from flaxnmt import open_run
from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.data.discourse import MAX_DISTANCE, PHENOMENA, contrastive
from flaxnmt.data.readers import read
from flaxnmt.errors import ConfigError
from flaxnmt.evaluation.contrastive import from_discourse
from flaxnmt.evaluation.controls import compare_contrastive_controls
from flaxnmt.run import Run
from flaxnmt.runtime import keep_freed_memory

CONTRASTIVE_SETS = 720
"""Closed sets, twenty for each phenomenon and distance: 2400 examples."""

FEWEST_SETS = len(PHENOMENA) * MAX_DISTANCE
"""As many have each phenomenon at each distance once."""

TEST = ("discourse:test:60",)


def contrastive_accuracy(run: Run, sets: int = CONTRASTIVE_SETS) -> dict:
    """Accuracy on the closed sets of the embedded corpus under every control.

    Returns:
      {control: {"all", phenomenon names, "by_distance": {distance: accuracy}, "by_phenomenon_and_distance",
      "examples"}}, per cent; the results of `evaluation.contrastive.accuracy` in few words.
    """
    examples = [from_discourse(example) for example in contrastive("test", sets)]
    found = compare_contrastive_controls(run.log_probs, examples)
    return {kind: _brief(table) for kind, table in found.items()}


def _brief(table: dict) -> dict:
    return {
        "all": table["overall"]["accuracy"],
        **{name: cell["accuracy"] for name, cell in table["by_phenomenon"].items()},
        "by_distance": _accuracies(table["by_distance"]),
        "by_phenomenon_and_distance": {
            name: _accuracies(cells) for name, cells in table["by_phenomenon_and_distance"].items()
        },
        "examples": table["overall"]["total"],
    }


def _accuracies(cells: dict) -> dict:
    return {name: cell["accuracy"] for name, cell in cells.items()}


def measure(directory: Path, sets: int = CONTRASTIVE_SETS) -> dict:
    """What sweeps on the embedded corpus say of a run: contrastive accuracy, BLEU under the controls, time."""
    run, documents = open_run(directory), list(read(*TEST))
    return {
        "contrastive": contrastive_accuracy(run, sets),
        "scores": scores(run, documents),
        "speed": speed(run, documents),
    }


@dataclass(frozen=True)
class Arguments:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories, of models of sentences or of documents."""
    sets: int = 360
    """Closed contrastive sets; a multiple of 36 has every phenomenon at every distance equally often."""
    debug: bool = False
    """Show tracebacks."""


def table(runs: dict[str, dict]) -> str:
    """Markdown of `contrastive_accuracy` of each run: phenomena, distances in sentences, all."""
    first = next(iter(next(iter(runs.values())).values()))
    phenomena = [name for name in first if name in PHENOMENA]
    head = ("run", "context", *phenomena, *(f"distance {name}" for name, _ in FAR), "all")
    lines = []
    for run, kinds in runs.items():
        for kind, cells in kinds.items():
            distances = [sum(cells["by_distance"][str(d)] for d in group) / len(group) for _, group in FAR]
            values = [*(cells[name] for name in phenomena), *distances, cells["all"]]
            lines.append((run, kind, *(f"{value:.1f}" for value in values)))
    return "\n".join(markdown(head, lines))


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv

    def run() -> int:
        prog = "python -m experiments.documents"
        arguments = parsed(lambda: tyro.cli(Arguments, args=argv, prog=prog, description=__doc__), argv)
        if not arguments.runs:
            raise ConfigError("no run: give one or more run directories")
        if arguments.sets < FEWEST_SETS:
            raise ConfigError(
                f"--sets {arguments.sets}: the table has a place for every phenomenon at every distance, give at least "
                f"{FEWEST_SETS}"
            )
        quiet()
        keep_freed_memory()
        found = {str(path): contrastive_accuracy(open_run(path), arguments.sets) for path in arguments.runs}
        count = next(iter(found[str(arguments.runs[0])].values()))["examples"]
        print(f"\nContrastive accuracy, per cent of {count} examples; without the context 50 is chance.\n")
        print(table(found))
        return 0

    return guarded(run, debug="--debug" in argv)


if __name__ == "__main__":
    sys.exit(main())
