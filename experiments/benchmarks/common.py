"""What the benchmarks share: inputs, peers as subprocesses, rounds that interleave the systems, results."""

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import jax
import numpy as np
import tyro

from experiments import host
from experiments.benchmarks.peers.sizes import EOS, Size
from experiments.tables import RESULTS
from flaxnmt.commands import guarded
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.runtime import keep_freed_memory

PEERS = Path(__file__).parent / "peers"
PEERS_PYTHON = Path(".venv-peers/bin/python")
NOTICED = 5.0
"""Seconds of a round from which on something is said of it."""


def prepare(cores: int) -> None:
    """Before JAX starts: this process, on CPU, and its children keep to so many cores; freed memory is kept, as in commands.

    Threads that have allocated before that would go on giving it back, and every step would fault its pages in again.
    """
    jax.config.update("jax_platforms", "cpu")
    own = sorted(os.sched_getaffinity(0))
    if len(own) < cores:
        raise ConfigError(f"the benchmark wants {cores} cores, this process has {len(own)}: give --cores")
    os.sched_setaffinity(0, own[:cores])
    keep_freed_memory()


def random_ids(rows: int, length: int, size: Size, seed: int, fill: float = 1.0) -> np.ndarray:
    """Padded sentences [rows, length] with eos, of fill * length to length tokens; the first is full."""
    random = np.random.default_rng(seed)
    ids = random.integers(EOS + 1, size.vocabulary, (rows, length), dtype=np.int32)
    lengths = random.integers(max(1, round(fill * length)), length + 1, rows)
    lengths[0] = length
    ids[np.arange(rows), lengths - 1] = EOS
    return np.where(np.arange(length) < lengths[:, None], ids, 0)


class Peer:
    """A script of `PEERS` in the peers' environment: a call is a round, and the `with` block ends it.

    It starts with its first round, so that it does not work beside others, and takes part in all of them.

    Raises:
      ConfigError: there is no such environment.
    """

    def __init__(self, python: Path, script: str, arguments: dict):
        if not python.exists():
            raise ConfigError(
                f"no peers at {python}: run `make bench-peers-env`, or give --peers with no names"
            )
        parts = (str(part) for pair in arguments.items() for part in pair)
        self._command = [str(python), str(PEERS / script), *parts]
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "Peer":
        self._errors = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_) -> None:
        with self._errors:
            if self._process is not None:
                # Its input ends, and so does the peer.
                self._process.communicate()

    def __call__(self) -> dict:
        """What it measures; RunError with its last line of error where it fails."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")
        if answer := self._process.stdout.readline():
            return json.loads(answer)
        self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise RunError(f"peer `{' '.join(self._command)}` failed: {last}")


def interleave(systems: dict[str, Callable[[], dict]], rounds: int) -> dict[str, list[dict]]:
    """Results of every system in every round; each second round runs in reverse order.

    A line on standard error says of each round that takes a while how long each system was at it.
    """
    results: dict[str, list[dict]] = {name: [] for name in systems}
    for number in range(rounds):
        taken = {}
        for name in list(systems) if number % 2 == 0 else list(reversed(systems)):
            start = time.perf_counter()
            results[name].append(systems[name]())
            taken[name] = time.perf_counter() - start
        if sum(taken.values()) > NOTICED:
            words = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items())
            print(f"round {number + 1} of {rounds}: {words}", file=sys.stderr, flush=True)
    return results


def speeds(results: Sequence[dict], cycle: int = 1) -> list[float]:
    """Tokens per second of every `cycle` repetitions in a row (a pass over the batches), over all rounds."""
    rates = []
    for result in results:
        for start in range(0, len(result["seconds"]) - cycle + 1, cycle):
            span = slice(start, start + cycle)
            rates.append(sum(result["tokens"][span]) / sum(result["seconds"][span]))
    return rates


def compare(rounds: dict[str, list[dict]], cycle: int = 1) -> dict:
    """Median speed of every system over all rounds, its range, and how many times faster flaxnmt is."""
    rates = {name: speeds(results, cycle) for name, results in rounds.items()}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "tokens_per_second": medians,
        "range": {name: [min(values), max(values)] for name, values in rates.items()},
        "ratio": {name: medians["flaxnmt"] / median for name, median in medians.items()},
        "parameters": {name: results[0]["parameters"] for name, results in rounds.items()},
        "versions": {name: results[0].get("versions", {}) for name, results in rounds.items()},
    }


def compare_table(row: dict, names: dict[str, str], unit: str = "target tokens/s") -> str:
    """`compare` as a Markdown table; the unit is that of speeds."""

    def versions(name: str) -> str:
        return ", ".join(f"{package} {version}" for package, version in row["versions"][name].items())

    lines = [
        (
            names[name],
            versions(name) or "this commit",
            row["parameters"][name],
            speed,
            "{:.0f} to {:.0f}".format(*row["range"][name]),
            row["ratio"][name],
        )
        for name, speed in row["tokens_per_second"].items()
    ]
    return table(("system", "versions", "parameters", unit, "range", "flaxnmt / system"), lines)


def run(main: Callable[..., None], options: type, description: str) -> None:
    """The command of a benchmark; a mistake that its user can correct is one line."""
    chosen = tyro.cli(options, description=description)
    sys.exit(guarded(lambda: main(chosen) or 0, debug=False))


def machine() -> dict:
    """Where and with what a number was measured."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": host.cpu(),
        "cores": len(host.cores()),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A Markdown table; floats with three significant digits, or whole from a hundred on."""

    def cell(value) -> str:
        if isinstance(value, float):
            return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return str(value)

    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def settings(options) -> dict:
    """Options of a benchmark for its row of results, without paths."""

    def is_path(value) -> bool:
        return isinstance(value, Path) or (isinstance(value, tuple) and any(map(is_path, value)))

    return {name: value for name, value in asdict(options).items() if not is_path(value)}


def write_results(name: str, title: str, text: str, row: dict, directory: Path = RESULTS) -> None:
    """`name`.md with the latest table, and one more line in benchmarks.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.md").write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
    with (directory / "benchmarks.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"benchmark": name, **row}) + "\n")
