"""Where real corpora lie, a directory of this machine or of a bucket, which no configuration and no ledger says."""

import os
from collections.abc import Iterable
from pathlib import Path

from flaxnmt.data.readers import without_part
from flaxnmt.errors import ConfigError
from flaxnmt.remote import is_address

DATA = "FLAXNMT_DATA"
PLACE = f"${DATA}"
"""What stands for the directory in the options of a trial."""


def with_data(words: Iterable[str]) -> list[str]:
    """Words of a command line with the directory in place of `PLACE`.

    Raises:
      ConfigError: if it is not known, or a file in it is missing.
    """
    found = []
    for word in words:
        if PLACE in word:
            root = os.environ.get(DATA)
            if root is None:
                raise ConfigError(f"{word}: give --data DIR, or set {DATA}, to say where the corpora are")
            word = word.replace(PLACE, root)
            # A bucket says itself what it does not have.
            if not is_address(word) and not Path(without_part(word)).exists():
                raise ConfigError(f"{word} does not exist: give another --data DIR, or set {DATA}")
        found.append(word)
    return found


def multi30k(split: str) -> tuple[str, str]:
    """English and German of Multi30k, as `with_data` takes them."""
    return f"{PLACE}/multi30k_en_de/{split}.en.gz", f"{PLACE}/multi30k_en_de/{split}.de.gz"


MULTI30K = ("--train", *multi30k("train"), "--dev", *multi30k("dev"))
"""Options of a training on it."""

SHORT = (
    *("--data.tokenizer.vocab-size", "4000", "--training.accumulate", "1"),
    *("--model.dropout", "0.1", "--optimizer.warmup-steps", "400"),
)
"""What cuts the recipe of `multi30k_en_de` to a training of minutes: fewer pieces, half the batch, and what suits few
updates."""
