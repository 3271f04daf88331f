"""One training on TPU slices: what both ways of launching it need to know, checked before anything is asked for."""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxnmt.errors import ConfigError
from tpu import names
from tpu.slices import Slice

if TYPE_CHECKING:
    from flaxnmt.config import Config

GIVEN = ("--run", "--processes", "--process", "--coordinator", "--expect-processes", "--expect-devices")
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
            raise ConfigError(
                f"{self.slice.name}: xpk has no {self.slice.generation.name}: leave --cluster out"
            )

    @property
    def workers(self) -> int:
        """Machines of all slices, each of which runs one process."""
        hosts = self.slice.hosts
        if self.place.cluster is not None:
            # A slice of one host of eight chips is two nodes there.
            hosts = math.ceil(self.slice.chips / self.slice.generation.chips_per_host)
        return hosts * self.slices

    @property
    def devices(self) -> int:
        """Devices of all slices."""
        return self.slice.devices * self.slices

    @property
    def state(self) -> str:
        """Folder of the bucket in which the machines say how they ended."""
        return state_of(self.bucket, self.name)


def state_of(bucket: str, name: str) -> str:
    """Folder in which the machines of a job say how they ended, and leave their logs."""
    return f"{bucket}/launch/{name}"


def with_training(job: Job, config: str, words: Sequence[str]) -> Job:
    """A job with the training as every machine of it runs it.

    Args:
      job: with its machines and its run directory.
      config: of `experiments.configs`.
      words: further flags of `experiments.train`, of the user.

    Raises:
      ConfigError: for flags that the launcher sets.
    """
    names.check_words(words)
    for word in words:
        # The training's parser takes --expect_devices for --expect-devices.
        if word.partition("=")[0].replace("_", "-") in GIVEN:
            raise ConfigError(
                f"{word}: the launcher sets {', '.join(GIVEN)}; --name and --bucket name the run directory"
            )
    found = ("--processes", "0", "--expect-processes", str(job.workers), "--expect-devices", str(job.devices))
    command = ("python", "-m", "experiments.train", config, "--run", job.run, *found, *words)
    return dataclasses.replace(job, command=command)


def check_training(job: Job) -> None:
    """Finds before the machines are asked for what would end the training in its first minute.

    Raises:
      ConfigError: for flags that the training does not understand, settings of which no model is made, files that no
        machine has, and a mesh that is not that of the slices.
    """
    # The training's own parser and checks, which load every configuration's parts.
    from experiments.arguments import parse
    from flaxnmt.checks.model import check_model
    from flaxnmt.checks.options import check_limits, check_ranges, check_used

    words = list(job.command[3:])
    if {"-h", "--help"} & set(words):
        raise ConfigError(f"python -m experiments.train {words[0]} --help lists the flags of the training")
    arguments = parse(words)
    config = arguments.resolved()
    check_limits(config.training)
    check_ranges(config)
    check_model(config)
    check_used(config)
    arguments.window()
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
    for split in ("train", "dev"):
        if not getattr(config.data, split):
            raise ConfigError(f"no --{split} corpus: give --{split} gs://... behind the --")
    check_mesh(config, job)


def check_mesh(config: "Config", job: Job) -> None:
    """Refuses a mesh that is not that of the slices, and rows that it cannot share.

    Raises:
      ConfigError: with what to change.
    """
    from flaxnmt.sharding import BRANCHES_APART, MESH_AXES, Rules, axes_of

    sizes = {axis: getattr(config.mesh, axis) for axis in MESH_AXES}
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ConfigError(f"mesh {sizes}: sizes are positive and at most one is -1")
    for axis in open_axes:
        sizes[axis] = max(1, job.devices // math.prod(size for size in sizes.values() if size != -1))
    said = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    if math.prod(sizes.values()) != job.devices:
        raise ConfigError(
            f"mesh {said} does not fit {job.devices} devices, which "
            f"{job.slices} x {job.slice.name} have: change --mesh.data, --mesh.fsdp or --mesh.model"
        )
    if sizes["data"] % job.slices:
        raise ConfigError(
            f"mesh {said}: {job.slices} slices share the data axis alone, so make --mesh.data a multiple of {job.slices}"
        )
    rules = BRANCHES_APART if config.mesh.branches else Rules()
    ways = math.prod(sizes[axis] for axis in axes_of(rules.batch))
    if config.data.rows_multiple % ways:
        raise ConfigError(
            f"batches of a multiple of {config.data.rows_multiple} rows do not divide by the {ways} devices "
            "that share them: make --data.rows-multiple a multiple of that, or take a smaller slice"
        )
