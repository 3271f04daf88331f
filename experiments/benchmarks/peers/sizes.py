"""Model sizes and the form of a measurement: what the peers and flaxnmt must have in common.

Runs in the peers' environment, so it imports the standard library alone.
"""

import statistics
from dataclasses import dataclass

PAD, UNK, BOS, EOS = range(4)
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
ADAM_BETAS = (0.9, 0.98)
ADAM_EPSILON = 1e-9
LEARNING_RATE = 1e-4
DROPOUT_SITES = (
    "embeddings + positions",
    "attention weights",
    "inner activation of feed-forward networks",
    "output of every sub-layer",
)


@dataclass(frozen=True)
class Size:
    """A Transformer with `layers` encoder and as many decoder layers and one embedding table for all uses."""

    layers: int
    d_model: int
    heads: int
    feed_forward: int
    vocabulary: int = 8000


SIZES = {"tiny": Size(1, 32, 2, 64, 120), "small": Size(3, 256, 4, 1024), "base": Size(6, 512, 8, 2048)}
"""`tiny` is for tests of the scripts themselves."""


def summary(seconds: list[float], tokens: list[int]) -> dict:
    """Speed of repeated work: repetition i made tokens[i] tokens in seconds[i] seconds."""
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": statistics.median(n / s for n, s in zip(tokens, seconds, strict=True)),
        "tokens_per_second_total": sum(tokens) / sum(seconds),
    }
