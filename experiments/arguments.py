"""What the command line of a training says."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import DisallowNone

from experiments import configs, train
from experiments.preflight import Expected
from flaxnmt.commands import parsed
from flaxnmt.config import Config
from flaxnmt.errors import ConfigError

Files = Annotated[DisallowNone[tuple[str, ...] | None], tyro.conf.arg(metavar="SRC [TGT]")]


@dataclass(frozen=True)
class Arguments:
    run: str
    """Run directory, or the address of one, such as gs://bucket/directory; an existing one is continued."""
    train: Files = None
    """Training corpus: source and target files, a document file, tfds:NAME or discourse."""
    dev: Files = None
    """Development corpus."""
    test: Files = None
    """Test corpus, scored once at the end."""
    max_steps: DisallowNone[int | None] = None
    """Updates."""
    max_epochs: DisallowNone[int | None] = None
    """Passes over the training corpus."""
    max_minutes: DisallowNone[float | None] = None
    """Wall minutes, all continuations of the run together."""
    seed: DisallowNone[int | None] = None
    """Of initialisation, data order and dropout."""
    init_from: DisallowNone[str | None] = None
    """A run, or the address of one, whose parameters the first update starts from, where names agree, and whose
    vocabulary is used."""
    coordinator: DisallowNone[str | None] = None
    """HOST:PORT of the first process, for several processes without a cluster's service."""
    processes: DisallowNone[int | None] = None
    """How many processes the run has; 0 asks the cluster's own service (TPU pods, Slurm, Kubernetes)."""
    process: DisallowNone[int | None] = None
    """Which of them this is, from 0."""
    expect_processes: DisallowNone[int | None] = None
    """How many the cluster's service should find; a host that sees itself alone would train for itself."""
    expect_devices: DisallowNone[int | None] = None
    """The same of all devices."""
    join_seconds: DisallowNone[float | None] = None
    """Time in which all processes have to come, and each check of them has to end; 30, or 300 with --processes 0."""
    compilation_cache: DisallowNone[str | None] = None
    """Directory, or gs:// address, that keeps compiled programs for the next start."""
    profile: DisallowNone[str | None] = None
    """FIRST:LAST, updates of which the first process writes a trace into the run directory."""
    debug: bool = False
    """Show tracebacks."""
    config: Annotated[Config, tyro.conf.arg(name="")] = tyro.MISSING

    def resolved(self) -> Config:
        """The configuration with the short flags in place."""
        config = self.config
        paths = {name: getattr(self, name) for name in ("train", "dev", "test")}
        data = dataclasses.replace(
            config.data, **{name: value for name, value in paths.items() if value is not None}
        )
        limits = {name: getattr(self, name) for name in ("max_steps", "max_epochs", "max_minutes", "seed")}
        given = {name: value for name, value in limits.items() if value is not None}
        return config.replace(data=data, training=dataclasses.replace(config.training, **given))

    def expected(self) -> Expected:
        """How many processes and devices a run of several should have."""
        if self.expect_processes is not None:
            return Expected("--expect-processes", self.expect_processes, self.expect_devices)
        return Expected("--processes", self.processes or 0, self.expect_devices)

    def joining(self) -> float:
        """Seconds in which all processes have to come, and each check of them has to end."""
        return train.joining(self.join_seconds, self.processes)

    def window(self) -> tuple[int, int] | None:
        """First and last update of the profile.

        Raises:
          ConfigError: if there are no such updates.
        """
        if self.profile is None:
            return None
        first, _, last = self.profile.partition(":")
        if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
            raise ConfigError(f"--profile {self.profile}: give FIRST:LAST, such as 100:110")
        return int(first), int(last)


def parse(argv: list[str]) -> Arguments:
    """Arguments from a command line whose first word names a configuration."""
    if not argv or argv[0].startswith("-"):
        listing = "\n".join(f"  {name}" for name in configs.names())
        print(
            f"{train.__doc__}\nConfigurations:\n{listing}\n\nAll fields: python -m experiments.train CONFIG --help"
        )
        raise SystemExit(0 if argv[:1] in (["-h"], ["--help"]) else 2)
    config = configs.load(argv[0])

    def read() -> Arguments:
        return tyro.cli(
            Arguments,
            args=argv[1:],
            default=Arguments(run=tyro.MISSING, config=config),
            config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
            prog=f"python -m experiments.train {argv[0]}",
            description=configs.describe(argv[0]),
        )

    return parsed(read, argv)
