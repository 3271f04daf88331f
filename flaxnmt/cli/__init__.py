"""The `flaxnmt` command: translate, score, evaluate, contrast and check-data."""

import sys

import tyro

from flaxnmt.cli.check_data import CheckData
from flaxnmt.cli.contrast import Contrast
from flaxnmt.cli.evaluate import Evaluate
from flaxnmt.cli.score import Score
from flaxnmt.cli.translate import Translate
from flaxnmt.commands import guarded, parsed, quiet
from flaxnmt.errors import ConfigError

COMMANDS = {
    "translate": Translate,
    "score": Score,
    "evaluate": Evaluate,
    "contrast": Contrast,
    "check-data": CheckData,
}


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `flaxnmt` command; its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return guarded(lambda: run(argv), debug="--debug" in argv[1:])


def run(argv: list[str]) -> int:
    """Runs one command line.

    Raises:
      UserError: for whatever the user can correct.
    """
    from flaxnmt.config_io import nearest
    from flaxnmt.runtime import keep_freed_memory

    first = argv[0] if argv else ""
    if first not in (*COMMANDS, "-h", "--help"):
        said = f"no command {first!r}{nearest(first, COMMANDS)}" if first else "no command"
        raise ConfigError(
            f"{said}: give {', '.join(COMMANDS)}, and its options behind it; --help says what they do"
        )

    def read():
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="flaxnmt",
            description="Neural machine translation in JAX and Flax.",
            args=argv,
            config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff),
        )

    command = parsed(read, argv)
    quiet()
    keep_freed_memory()
    return command()
