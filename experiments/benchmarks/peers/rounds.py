"""How a peer is driven: a round of measurements for every line of its standard input."""

import json
import os
import sys
from collections.abc import Callable


def serve(round_of: Callable[[], dict]) -> None:
    """Writes the result of each round as a line of JSON; whatever else is printed goes to standard error.

    One process serves all rounds, so that a peer is imported, built and warmed up once, as flaxnmt is.
    """
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for _ in sys.stdin:
            print(json.dumps(round_of()), file=results, flush=True)
