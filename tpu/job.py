"""One training on TPU slices: what both ways of launching it need to know, checked before anything is asked for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flaxnmt.errors import ConfigError
from tpu import names
from tpu.slices import Slice

GIVEN = ("--run", "--processes", "--process", "--coordinator")
"""Flags of the training that the launcher sets."""


@dataclass(frozen=True)
class Place:
    """Where a job is.

    Attributes:
      project: of Google Cloud; that of gcloud's configuration if not given.
      zone: of the TPU, or of the cluster; that of gcloud's configuration if not given.
      cluster: of GKE; without one the job is a queued resource of Cloud TPU.
    """

    project: str | None = None
    zone: str | None = None
    cluster: str | None = None

    def __post_init__(self):
        if self.project is not None:
            names.check_project(self.project)
        if self.zone is not None:
            names.check_zone(self.zone)
        if self.cluster is not None:
            names.check_name("--cluster", self.cluster)

    @property
    def flags(self) -> list[str]:
        """As gcloud and xpk take them."""
        given = {"--project": self.project, "--zone": self.zone}
        return [f"{flag}={value}" for flag, value in given.items() if value is not None]


@dataclass(frozen=True)
class Job:
    """A training and the machines for it.

    Attributes:
      name: of the queued resource or the workload.
      place: see `Place`.
      slice: one of them.
      slices: how many, joined by the data centre network.
      bucket: gs://BUCKET or gs://BUCKET/FOLDER.
      run: the run directory, in the bucket.
      image: the container, of one version.
      command: argument list of the training.
      environment: variables of the training.
      spot: machines that may be taken away at any time, for a lower price.
      reserved: machines of a reservation.
      service_account: as whom the machines read and write the bucket.
      runtime: version of the machines' system, where it is not the usual one.
      valid_for: how long to wait in the queue, such as 6h.
      internal: machines without addresses in the internet.
    """

    name: str
    place: Place
    slice: Slice
    slices: int
    bucket: str
    run: str
    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    spot: bool = False
    reserved: bool = False
    service_account: str | None = None
    runtime: str | None = None
    valid_for: str | None = None
    internal: bool = False

    def __post_init__(self):
        names.check_name("--name", self.name)
        names.check_image(self.image)
        names.check_words(self.command)
        if self.slices < 1:
            raise ConfigError(f"--slices {self.slices}: at least 1")
        if self.spot and self.reserved:
            raise ConfigError("--spot and --reserved: choose one of them")
        if self.service_account is not None:
            names.check_account(self.service_account)
        if self.runtime is not None:
            names.check_name("--runtime-version", self.runtime)
        if self.valid_for is not None:
            names.check_duration(self.valid_for)
        if self.place.cluster is None and self.slice.generation.runtime is None:
            raise ConfigError(
                f"{self.slice.name} is to be had on GKE only: give --cluster, and see tpu/README.md on clusters"
            )
        if self.place.cluster is not None and self.slice.generation.gke is None:
            raise ConfigError(f"{self.slice.name} is not to be had on GKE: leave --cluster out")

    @property
    def workers(self) -> int:
        """Machines of all slices, each of which runs one process."""
        return self.slice.hosts * self.slices

    @property
    def state(self) -> str:
        """Folder of the bucket in which the machines say how they ended."""
        return state_of(self.bucket, self.name)


def state_of(bucket: str, name: str) -> str:
    """Folder in which the machines of a job say how they ended, and leave their logs."""
    return f"{bucket}/launch/{name}"


def training_command(config: str, run: str, words: Sequence[str]) -> tuple[str, ...]:
    """The training as every machine runs it.

    Args:
      config: of `experiments.configs`.
      run: the run directory, in the bucket.
      words: further flags of `experiments.train`, of the user.

    Raises:
      ConfigError: for flags that it does not have, and those that the launcher sets.
    """
    names.check_words(words)
    for word in words:
        if word.partition("=")[0] in GIVEN:
            raise ConfigError(
                f"{word}: the launcher sets {', '.join(GIVEN)}; --name and --bucket name the run directory"
            )
    return ("python", "-m", "experiments.train", config, "--run", run, "--processes", "0", *words)


def check_training(command: Sequence[str], slice_: Slice, slices: int) -> None:
    """Finds before the machines are asked for what would end the training in its first minute.

    Raises:
      ConfigError: for flags that the training does not understand, files that no machine has, and a mesh that is not
        that of the slices.
    """
    # The training's own parser, which loads every configuration's parts.
    from experiments.arguments import parse

    words = list(command[3:])
    if {"-h", "--help"} & set(words):
        raise ConfigError(f"python -m experiments.train {words[0]} --help lists the flags of the training")
    arguments = parse(words)
    config = arguments.resolved()
    tokenizer = config.data.tokenizer
    given = [
        (f"--{split}", path) for split in ("train", "dev", "test") for path in getattr(config.data, split)
    ]
    given += [
        ("--init-from", arguments.init_from),
        ("--data.tokenizer.source-model", tokenizer.source_model),
        ("--data.tokenizer.target-model", tokenizer.target_model),
    ]
    for flag, path in given:
        if path is not None and not re.match(r"gs://[a-z0-9]|/|tfds:|discourse(:|$)", path):
            raise ConfigError(
                f"{flag} {path}: machines in the cloud do not have it; copy it to the bucket and give gs://..., "
                "or the absolute path of a file in the image"
            )
    mesh, devices = config.mesh, slice_.devices * slices
    data = max(1, devices // (mesh.fsdp * mesh.model)) if mesh.data == -1 else mesh.data
    if data * mesh.fsdp * mesh.model != devices:
        raise ConfigError(
            f"mesh data {data} x fsdp {mesh.fsdp} x model {mesh.model} does not fit {devices} devices, which "
            f"{slices} x {slice_.name} have: change --mesh.data, --mesh.fsdp or --mesh.model"
        )
    if config.data.rows_multiple % (data * mesh.fsdp):
        raise ConfigError(
            f"batches of a multiple of {config.data.rows_multiple} rows do not divide by the {data * mesh.fsdp} devices "
            "that share them: make --data.rows-multiple a multiple of that, or take a smaller slice"
        )
