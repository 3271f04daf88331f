"""Before a training of several processes begins: are all there, on the same versions, and do they reach the same things?

What is wrong is said in one line by every process. What hangs ends after a time limit, with a line, too.
"""

import contextlib
import json
import os
import platform
import socket
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.record import versions
from experiments.supervise import LOST, ON
from flaxnmt.config import Config
from flaxnmt.config_io import to_dict
from flaxnmt.data.files import locate
from flaxnmt.data.readers import without_part
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.models.config import EncoderOnlyConfig
from flaxnmt.remote import check_file, is_address

HEARTBEAT = 15
"""Seconds after which JAX takes a silent process for lost; the others end soon after."""
MESSAGE = 1 << 14
"""Bytes of what processes tell each other."""
APPEARS = 5.0
"""Seconds that a file of another host may need to be seen."""
PROBE = ".reached"
CONFIGURATION = "the configuration"


def join(coordinator: str | None, processes: int, process: int | None, seconds: float) -> None:
    """Makes this process one of several; 0 processes are as many as a cluster's service says."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with time_limit(seconds, "finding the other processes"):
        try:
            jax.distributed.initialize(
                coordinator,
                processes or None,
                process,
                # JAX ends the process without a word for a person, so the limit above comes first.
                initialization_timeout=int(seconds) + 30,
                heartbeat_timeout_seconds=HEARTBEAT,
            )
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the processes of the run did not find each other ({str(error).splitlines()[0]})"
            ) from error


@dataclass(frozen=True)
class Expected:
    """How many there should be.

    Attributes:
      flag: which says how many processes.
      processes: 0 takes as many as there are.
      devices: of all processes; None takes as many as there are.
    """

    flag: str
    processes: int
    devices: int | None


def corpora(config: Config, first: bool) -> list[tuple[str, ...]]:
    """What a process reads: the training corpus too where it tokenises it for all, or where each reads labels itself."""
    data, model = config.data, config.model
    labelled = isinstance(model, EncoderOnlyConfig) and model.head != "masked"
    return [*([data.train] if first or labelled else []), data.dev, data.test]


def preflight(config: Config, directory: Path | epath.Path, expected: Expected, seconds: float) -> None:
    """Checks what all processes stand on; the same outcome in each of them.

    Raises:
      ConfigError: with the first thing that is wrong, and where.
    """
    wrong = miscounted(jax.devices(), jax.process_count(), expected)
    if wrong:
        raise ConfigError(wrong)
    with time_limit(seconds, "adding one number from each device"):
        total = sum_of_ones()
    if total != jax.device_count():
        raise ConfigError(
            f"the sum of a one from each of {jax.device_count()} devices is {total}: "
            "the network between them does not work"
        )
    first = jax.process_index() == 0
    own = {"host": socket.gethostname(), **standing(config), "problem": None}
    probe = directory / PROBE
    reaches = f"that {directory} and the corpora are reached"
    # The others wait for an answer as long: what hangs here must be named before they give up.
    with time_limit(seconds / 2, f"reaching {directory} and the corpora", f"see {reaches}"):
        if first:
            own["problem"] = refused(directory, lambda: write_probe(probe))
        own["problem"] = own["problem"] or next(filter(None, map(unreachable, corpora(config, first))), None)
    with time_limit(seconds, "comparing versions"):
        told = exchange(own)
    hosts = [facts.pop("host") for facts in told]
    wrong = first_problem(told, hosts) or differing(told, hosts)
    if wrong is None:
        mine = directory / f"{PROBE}-{jax.process_index()}"
        with time_limit(seconds / 2, f"reaching {directory}", f"see {reaches}"):
            own = {"problem": refused(directory, lambda: reach(probe, mine))}
        with time_limit(seconds, "looking for the run directory"):
            wrong = first_problem(exchange(own), hosts)
    if first:
        with contextlib.suppress(OSError):
            probe.unlink()
    if wrong:
        raise ConfigError(wrong)


ALIVE = "see whether every process of the run is alive and reaches the others by the network"


@contextlib.contextmanager
def time_limit(seconds: float, what: str, advice: str = ALIVE) -> Iterator[None]:
    """Ends this process with a line if what is inside hangs, since nothing can interrupt a collective."""

    def end() -> None:
        print(
            f"error: {what} did not end within {seconds:g} s: {advice}, then {ON}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(LOST)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def miscounted(devices: Sequence[jax.Device], processes: int, expected: Expected) -> str | None:
    """What is wrong with the numbers of processes and devices."""
    if expected.processes and processes != expected.processes:
        return (
            f"{expected.flag} {expected.processes}, and the cluster has {processes}: start all hosts, or give the number "
            "that there are"
        )
    if expected.devices is not None and len(devices) != expected.devices:
        return (
            f"--expect-devices {expected.devices}, and there are {len(devices)}: see whether every host has its chips and "
            "nothing else uses them, or give the number that there are"
        )
    counts = Counter(device.process_index for device in devices)
    odd = next((process for process in range(processes) if counts[process] != counts[0]), None)
    if odd is None:
        return None
    return (
        f"process {odd} has {counts[odd]} devices and process 0 has {counts[0]}: each must have the same number, "
        "so see what else runs there, or restart its host"
    )


def sum_of_ones() -> int:
    """A one from each device, added over all of them."""
    mesh = Mesh(np.asarray(jax.devices()), ("all",))
    ones = jax.make_array_from_callback(
        (jax.device_count(),), NamedSharding(mesh, PartitionSpec("all")), lambda _: np.ones(1, np.int32)
    )
    return int(jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(ones))


def standing(config: Config) -> dict[str, str]:
    """What must be the same everywhere: versions, and the configuration."""
    text = json.dumps(to_dict(config), sort_keys=True)
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **versions(), CONFIGURATION: format(zlib.crc32(text.encode()), "08x")}


def differing(told: list[dict], hosts: list[str]) -> str | None:
    """The first thing that a process has otherwise than the first process."""
    for process, facts in enumerate(told):
        for name, value in told[0].items():
            if facts[name] != value:
                here, there = (f"process {i} on {hosts[i]} has" for i in (process, 0))
                if name == CONFIGURATION:
                    return f"{here} another configuration than process 0: give all processes the same command"
                return f"{here} {name} {facts[name]} and {there} {value}: install the same on all hosts"
    return None


def first_problem(told: list[dict], hosts: list[str]) -> str | None:
    """The first thing that a process could not do."""
    found = [(i, facts["problem"]) for i, facts in enumerate(told) if facts["problem"]]
    return f"process {found[0][0]} on {hosts[found[0][0]]}: {found[0][1]}" if found else None


def exchange(facts: dict) -> list[dict]:
    """What each process says, in all of them."""
    text = json.dumps(facts).encode()
    mine = np.zeros(MESSAGE, np.uint8)
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    return [json.loads(bytes(row).rstrip(b"\0")) for row in multihost_utils.process_allgather(mine)]


def refused(directory: Path | epath.Path, action: Callable[[], None]) -> str | None:
    """What the system says against an action in the run directory."""
    try:
        action()
    # Libraries of clouds raise errors of their own, and the other processes wait for an answer.
    except Exception as error:
        said = getattr(error, "strerror", None) or error
        return f"{directory} is not a run directory that all hosts share and write to ({said})"
    return None


def write_probe(probe: Path | epath.Path) -> None:
    """Leaves a file that the other hosts look for."""
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.write_text("")


def reach(probe: Path | epath.Path, mine: Path | epath.Path) -> None:
    """Looks for the file of the first process, and writes another one."""
    deadline = time.monotonic() + APPEARS
    while not probe.exists():
        if time.monotonic() > deadline:
            raise OSError("what process 0 writes there is not seen")
        time.sleep(0.1)
    mine.write_text("")
    mine.unlink()


def unreachable(corpus: Sequence[str] | None) -> str | None:
    """What is wrong with the files of a corpus, if it has any; its lines are read later."""
    for name in map(without_part, corpus or ()):
        if name.partition(":")[0] not in ("tfds", "discourse"):
            try:
                # What lies on a bucket is copied once it is read, outside of any time limit.
                (check_file if is_address(name) else locate)(name)
            except DataError as error:
                return str(error)
    return None
