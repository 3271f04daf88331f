"""Trains a translation model: one command from two text files, or a set of documents, to a run directory.

    python -m experiments.train CONFIG --run DIR --train SRC TGT --dev SRC TGT [--section.field value ...]

The same command again continues the run. Exit codes: 0 finished, 2 a mistake to correct, 42 saved and left
because it was asked to stop (SIGTERM or Ctrl-C): start it again, 43 one of several processes did not come or was
lost, or a bucket does not answer any more: start all of them again.
"""

import argparse
import sys

from experiments.rendezvous import MistakeError, Place
from experiments.supervise import MISTAKE, supervise

JOIN_SECONDS, CLUSTER_SECONDS = 30.0, 300.0
"""Of processes that are started together; and where a cluster's service knows them, whose machines come one by one."""


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        several, place, seconds = cluster(argv)
    except MistakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    if several:
        return supervise([sys.executable, "-m", "experiments.process", *argv], place, seconds)
    # Loads JAX, which a parent does without.
    from experiments import process

    return process.main(argv)


def cluster(argv: list[str]) -> tuple[bool, Place | None, float]:
    """Whether this is one of several processes, its place (None: a cluster's service knows it), and seconds to join.

    Of the command line only what this takes is read; the rest is left to the process itself.

    Raises:
      MistakeError: for half of what is needed.
    """
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--coordinator", "--processes", "--process", "--join-seconds"):
        flags.add_argument(name, nargs="?")
    known, _ = flags.parse_known_args(argv)
    if {"-h", "--help"} & set(argv) or known.processes is None and known.process is known.coordinator is None:
        return False, None, JOIN_SECONDS
    if known.processes is None:
        raise MistakeError("--coordinator and --process belong to several processes: give --processes too")
    try:
        processes, process = int(known.processes), int(known.process or -1)
        seconds = joining(known.join_seconds and float(known.join_seconds), processes)
        if processes == 0:
            return True, None, seconds
        host, _, port = (known.coordinator or "").rpartition(":")
        place = Place(host, int(port), processes, process)
    except ValueError:
        place = None
    if (
        place is None
        or not place.host
        or not 0 < place.port < 1 << 16
        or not 0 <= place.process < place.processes
    ):
        count = known.processes if known.processes.isdecimal() else "N"
        last = int(count) - 1 if count.isdecimal() else "N - 1"
        raise MistakeError(f"{count} processes need --coordinator HOST:PORT and --process from 0 to {last}")
    return True, place, seconds


def joining(given: float | None, processes: int | None) -> float:
    """Seconds in which the processes of a run have to come, and each check of them has to end."""
    return given or (CLUSTER_SECONDS if processes == 0 else JOIN_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
