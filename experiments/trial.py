"""What a sweep is made of: trials, and what is measured of them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from experiments.tables import Shown
from flaxnmt.ledger import Row


@cache
def _recipe(config: str) -> dict:
    # Here, since those who only list trials need no model.
    from experiments import configs
    from flaxnmt.config_io import told

    return told(configs.load(config))


@dataclass(frozen=True)
class Trial:
    """One training and what is measured of it.

    Attributes:
      name: within its sweep, without the seed; a directory and a row carry it.
      config: of `experiments.configs`.
      options: flags of `experiments.train`; $FLAXNMT_DATA in them stands for the data directory.
      seed: of the training.
      settings: what distinguishes the trial, as columns of the table.
      after: name of the trial, of the same seed, from whose parameters it starts.
      against: name of the trial, of the same seed, with which it is compared when it is measured. Its translations
        are kept beside the ledger, so that its run directory is not needed.
      origin: the trial that `after` names, which its sweep fills in.
    """

    name: str
    config: str
    options: tuple[str, ...] = ()
    seed: int = 1
    settings: tuple[tuple[str, str | int | float], ...] = ()
    after: str | None = None
    against: str | None = None
    origin: "Trial | None" = None

    @property
    def directory(self) -> str:
        return f"{self.name}-seed{self.seed}"

    @property
    def start(self) -> str | None:
        """Directory of the run from which it starts."""
        return None if self.after is None else f"{self.after}-seed{self.seed}"

    @property
    def baseline(self) -> str | None:
        """Directory of the run with which it is compared."""
        return None if self.against is None else f"{self.against}-seed{self.seed}"

    @property
    def key(self) -> str:
        """Name, seed, and a hash of what is trained: a trial that is changed is another one, as is one that starts from it.

        What is trained is what its configuration says, and the options.
        """
        begins = self.after if self.origin is None else self.origin.key
        what = json.dumps([_recipe(self.config), self.options, self.seed, begins])
        return f"{self.directory}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"

    def command(self, runs: Path) -> list[str]:
        """Arguments of `python -m experiments.train`."""
        start = [] if self.start is None else ["--init-from", str(runs / self.start)]
        run = ["--run", str(runs / self.directory), "--seed", str(self.seed)]
        return [self.config, *run, *start, *self.options]


@dataclass(frozen=True)
class Sweep:
    """A set of trials and what is measured of them.

    Attributes:
      trials: in the order in which they are run.
      measure: of a finished run directory.
      tables: what `experiments.tables` shows of the ledger.
      following: trials that depend on what others have found, from the rows of the ledger so far.
      later: trials that are run behind those.
    """

    trials: tuple[Trial, ...]
    measure: Callable[[Path, Trial], dict]
    tables: tuple[Shown, ...] = ()
    following: Callable[[list[Row]], tuple[Trial, ...]] = lambda rows: ()
    later: tuple[Trial, ...] = ()

    def all(self, rows: list[Row]) -> tuple[Trial, ...]:
        """All trials, those that follow from these rows included; rows of trials as they were before a change do not count."""
        stated = (*self.trials, *self.later)
        rows = _current(rows, stated)
        rows = _current(rows, (*stated, *self.following(rows)))
        return tuple(_linked((*self.trials, *self.following(rows), *self.later)).values())


def _current(rows: list[Row], trials: Sequence[Trial]) -> list[Row]:
    """Rows of these trials as they are, and of those that are none of them."""
    keys, names = _linked(trials), {trial.name for trial in trials}
    return [row for row in rows if row["key"] in keys or row.get("name") not in names]


def _linked(trials: Sequence[Trial]) -> dict[str, Trial]:
    """Trials by their keys, each with the one from which it starts, behind which it stands."""
    found: dict[str, Trial] = {}
    origins: dict[str, Trial] = {}
    for trial in trials:
        linked = replace(trial, origin=origins.get(trial.start))
        # A trial that is there already keeps its place.
        origins[linked.directory] = found.setdefault(linked.key, linked)
    return found
