"""Options that the verbs of the launcher share: which job, and which machines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import DisallowNone

from experiments import configs
from flaxnmt.errors import ConfigError
from tpu import names
from tpu.command import Runner
from tpu.engines import Gke, Queued
from tpu.environment import environment
from tpu.job import Job, Place, check_training, with_training
from tpu.slices import parse_slice

Text = DisallowNone[str | None]


@dataclass(frozen=True)
class Where:
    """Which job."""

    config: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    """Configuration of the training, of `experiments.configs`."""
    name: Text = None
    """Of the queued resource or workload, and of its run directory; that of the configuration, with hyphens, if not
    given."""
    project: Text = None
    """Google Cloud project; that of `gcloud config` if not given."""
    zone: Text = None
    """Zone of the TPU or the cluster; that of `gcloud config` if not given."""
    cluster: Text = None
    """Cluster of GKE, made with xpk; without one the job is a queued resource of Cloud TPU."""
    dry_run: bool = False
    """Print the commands and files, and run nothing."""
    debug: bool = False
    """Show tracebacks."""

    @property
    def job_name(self) -> str:
        if self.name is not None:
            return names.check_name("--name", self.name)
        # Configurations have no hyphens, so that no two of them come to one name.
        return names.slug(self.config.replace("_", "-"))

    def check_config(self) -> None:
        """Refuses a name of no configuration, where the job is called like it.

        Raises:
          ConfigError: with the nearest name.
        """
        if self.name is None:
            configs.load(self.config)

    @property
    def place(self) -> Place:
        return Place(self.project, self.zone, self.cluster)

    @property
    def runner(self) -> Runner:
        return Runner(self.dry_run, lambda line: print(line, flush=True))

    @property
    def engine(self) -> Queued | Gke:
        return Queued(self.runner) if self.cluster is None else Gke(self.runner)

    def check_queued(self, flag: str, given: object) -> None:
        """Refuses an option that means nothing on a cluster.

        Raises:
          ConfigError: where it is given with one.
        """
        if given and self.cluster is not None:
            raise ConfigError(f"{flag} is of queued resources: leave it out with --cluster")


@dataclass(frozen=True, kw_only=True)
class Machines(Where):
    """Which machines."""

    slice: str
    """Such as v5e-16, v5p-128 or v4-64, as Google Cloud names it."""
    bucket: str
    """gs://BUCKET or gs://BUCKET/FOLDER, for run directories, compiled programs and how trainings ended."""
    image: str
    """Container with flaxnmt, made from tpu/Dockerfile: HOST/PATH:TAG or HOST/PATH@sha256:DIGEST."""
    slices: int = 1
    """Joined by the data centre network."""
    topology: Text = None
    """Shape of the slice where it is not the usual one, such as 4x4x12; GKE only."""
    spot: bool = False
    """Cheaper machines that may be taken away at any time."""
    reserved: bool = False
    """Machines of a reservation; queued resources only."""
    service_account: Text = None
    """As whom the machines read and write the bucket; that of Compute Engine if not given. Queued resources only."""
    runtime_version: Text = None
    """Of the machines' system, where it is not the usual one of the generation; queued resources only."""
    valid_until_duration: Text = None
    """How long to wait in the queue, such as 6h; without end if not given. Queued resources only."""
    internal_ips: bool = False
    """Machines without addresses in the internet; the network needs Private Google Access, and what reaches them by ssh
    (logs, run, watch and its restarts) is to be started inside it. Queued resources only."""
    env: tuple[str, ...] = ()
    """Further environment variables of the training, NAME=VALUE each; everyone on the machines can read them."""
    restarts: int = 50
    """How often a training that was preempted may be started again."""

    def engine_for(self, manifest: Path | None = None) -> Queued | Gke:
        """What starts trainings, as often as these options allow."""
        if self.cluster is None:
            return Queued(self.runner, self.restarts)
        return Gke(self.runner, self.restarts, manifest)

    def job(self, name: str, run: str) -> Job:
        """The job of this name on these machines, without a training yet.

        Raises:
          ConfigError: for anything that would be refused later.
        """
        slice_, bucket = parse_slice(self.slice, self.topology), names.check_bucket(self.bucket)
        if self.topology is not None and self.cluster is None:
            raise ConfigError("--topology: queued resources have the usual shape of a slice; give --cluster")
        if self.restarts < 0:
            raise ConfigError(f"--restarts {self.restarts}: at least 0")
        for flag in (
            "reserved",
            "service_account",
            "runtime_version",
            "valid_until_duration",
            "internal_ips",
        ):
            self.check_queued(f"--{flag.replace('_', '-')}", getattr(self, flag))
        variables = environment(slice_.generation, bucket, names.check_variables(self.env))
        return Job(
            name=name,
            place=self.place,
            slice=slice_,
            slices=self.slices,
            bucket=bucket,
            run=run,
            image=self.image,
            command=(),
            environment=variables,
            spot=self.spot,
            reserved=self.reserved,
            service_account=self.service_account,
            runtime=self.runtime_version,
            valid_for=self.valid_until_duration,
            internal=self.internal_ips,
        )

    def training(self, words: list[str]) -> Job:
        """The job of CONFIG with further flags of the training.

        Raises:
          ConfigError: also for what the training would refuse in its first minute.
        """
        run = f"{names.check_bucket(self.bucket)}/runs/{self.job_name}"
        job = with_training(self.job(self.job_name, run), self.config, words)
        check_training(job)
        return job
