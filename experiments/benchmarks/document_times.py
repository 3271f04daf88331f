"""Time of training and of translation of models of documents, beside that of the sentence model, on quiet cores.

The trials of a sweep on the embedded corpus, one seed, trained by the training command for a few updates, one after the
other, with nothing beside them; twice, the second time in reverse order. Translation is of the test documents, by beam
search, to one forced length, since what such models say means nothing. The sweeps' own tables have the times of whole
trainings, with whatever ran beside them.

    python -m experiments.benchmarks.document_times --sweeps document_choices document_positions
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import jax

from experiments import sweep as sweeps
from experiments.benchmarks import common
from experiments.benchmarks.training_commands import run, steady
from experiments.documents import TEST
from experiments.sweeps.documents import CORPUS
from experiments.trial import Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read
from flaxnmt.errors import ConfigError

PROGRAMS = "programs"
"""Where compiled programs are kept for the next round, beside the runs."""


@dataclass(frozen=True)
class Options:
    """Benchmark of training and translating documents."""

    sweeps: tuple[str, ...] = ("document_choices",)
    """Sweeps on the embedded corpus."""
    only: tuple[str, ...] = ("*",)
    """Trials whose name matches one of these patterns; the sentence model is always there."""
    corpus: str = "discourse:train:2400"
    updates: int = 24
    every: int = 4
    """Updates in an interval; those in which something is compiled do not count."""
    length: int = 12
    """Tokens of every translation."""
    repetitions: int = 3
    """Timed translations of the test documents."""
    rounds: int = 2
    cores: int = 2
    results: Path = common.RESULTS


def trials(name: str, only: tuple[str, ...]) -> list[Trial]:
    """Of the first seed, the sentence model first.

    Raises:
      ConfigError: none matches, or the sweep is not on the embedded corpus.
    """
    of_seed = [trial for trial in sweeps.load(name).trials if trial.seed == 1]
    if any(trial.options[: len(CORPUS)] != CORPUS for trial in of_seed):
        raise ConfigError(f"sweep {name} is not on the embedded corpus")
    first = next(trial for trial in of_seed if trial.config == "discourse_demo")
    chosen = [trial for trial in of_seed if any(fnmatch(trial.name, pattern) for pattern in only)]
    if not chosen:
        raise ConfigError(
            f"no trial of {name} matches {' '.join(only)}: there are {', '.join(t.name for t in of_seed)}"
        )
    return [first, *(trial for trial in chosen if trial != first)]


def measure(trial: Trial, options: Options, directory: Path) -> dict:
    """Target tokens per second of training, of each steady interval; seconds of each translation; padding."""
    sets = (CORPUS[0], options.corpus, "--dev", "discourse:dev:4", "--test", "discourse:test:4")
    flags = {
        "max-steps": options.updates,
        "optimizer.warmup-steps": 1,
        "training.log-every": options.every,
        "training.evaluate-every": options.updates,
        "training.evaluate-translations": 0,
        "training.metric": "loss",
        "training.average": "none",
    }
    limits = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "experiments.train", trial.config, "--run", str(directory)]
    environment = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(directory.parent / PROGRAMS)}
    run([*command, *sets, *trial.options[len(CORPUS) :], *limits], environment)
    intervals = steady(directory)
    if not intervals:
        raise ConfigError(f"{trial.name}: something was compiled in every interval, give more --updates")
    opened, documents = open_run(directory), list(read(*TEST))

    def translate() -> float:
        start = time.perf_counter()
        opened.translate_documents(documents, min_length=options.length, max_length=options.length)
        return time.perf_counter() - start

    translate()
    return {
        "rates": [row["target_tokens_per_second"] for row in intervals],
        "padding": [row["padding"] for row in intervals],
        "seconds": [translate() for _ in range(options.repetitions)],
    }


def compare(name: str, options: Options, directory: Path) -> list[dict]:
    """A row for each trial: medians over all rounds, and as multiples of the first."""
    chosen = trials(name, options.only)
    counter = iter(range(len(chosen) * options.rounds))

    def system(trial: Trial) -> Callable[[], dict]:
        return lambda: measure(trial, options, directory / f"{name}-{next(counter)}")

    rounds = common.interleave({trial.name: system(trial) for trial in chosen}, options.rounds)

    def median(results: list[dict], field: str) -> float:
        return statistics.median(value for result in results for value in result[field])

    rows = [
        {
            "name": trial.name,
            **{field: median(rounds[trial.name], field) for field in ("rates", "padding", "seconds")},
        }
        for trial in chosen
    ]
    first = rows[0]
    return [
        row
        | {
            "training": first["rates"] / row["rates"],
            "translation": row["seconds"] / first["seconds"],
        }
        for row in rows
    ]


def describe(name: str, rows: list[dict]) -> str:
    """The section of a sweep."""
    header = (
        "trial",
        "target tokens/s",
        "padding, %",
        "time of a target token, sentence model = 1",
        "translation, s",
        "translation, sentence model = 1",
    )
    lines = [
        (
            row["name"],
            row["rates"],
            f"{100 * row['padding']:.0f}",
            row["training"],
            row["seconds"],
            row["translation"],
        )
        for row in rows
    ]
    return f"## {name}\n\n{common.table(header, lines)}"


def main(options: Options) -> None:
    common.prepare(options.cores)
    with tempfile.TemporaryDirectory() as directory:
        jax.config.update("jax_compilation_cache_dir", f"{directory}/{PROGRAMS}")
        found = {name: compare(name, options, Path(directory)) for name in options.sweeps}
    machine = common.machine()
    conditions = (
        f"{machine['cpu']}, {options.cores} cores; medians of {options.rounds} rounds in which the models take turns, of "
        f"intervals of {options.every} updates in {options.updates} of about 4096 tokens with padding, and of "
        f"{options.repetitions} translations of the test documents to {options.length} tokens a sentence."
    )
    text = "\n\n".join([conditions, *(describe(name, rows) for name, rows in found.items())])
    print(text)
    row = {"options": common.settings(options), "machine": machine, "sweeps": found}
    common.write_results("document_times", "Time of models of documents", text, row, options.results)


if __name__ == "__main__":
    common.run(main, Options, __doc__)
