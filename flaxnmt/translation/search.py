"""What is asked of a search, and what it returns for a line."""

from dataclasses import dataclass

import numpy as np

from flaxnmt.config import DecodingConfig
from flaxnmt.data.shards import TokenArray
from flaxnmt.errors import ConfigError
from flaxnmt.typing import Int


@dataclass(frozen=True)
class Hypothesis:
    """One output of a line.

    Attributes:
      text: detokenised.
      score: log-probability with the length penalty applied.
      log_prob: sum of the log-probabilities of its tokens, end symbol included; natural logarithm.
      tokens: its pieces, without the end symbol.
    """

    text: str
    score: float
    log_prob: float
    tokens: tuple[str, ...]


BLANK = Hypothesis("", 0.0, 0.0, ())
"""The output of a blank line."""


@dataclass(frozen=True)
class Score:
    """Log-probability of a given target, in all and per token (end symbol last).

    `use`: of a model with gates, the shares of their full computation that encoder and decoder used; of a document,
    those of the whole document.
    """

    log_prob: float
    token_log_probs: tuple[float, ...]
    tokens: tuple[str, ...]
    use: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sampling:
    """Draw tokens in place of searching for the best.

    Raises:
      ConfigError: for a seed that is no number of 31 bits.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.seed < 1 << 31:
            raise ConfigError(f"--seed {self.seed}: give one from 0 to {(1 << 31) - 1}")


MOST = 1 << 16
"""Tokens that an output may be told to have."""


def check_length_penalty(alpha: float) -> None:
    """Refuses an exponent by which scores are no numbers any more.

    Raises:
      ConfigError: with the flag.
    """
    if not -10 <= alpha <= 10:
        raise ConfigError(f"--length-penalty {alpha:g}: give one from -10 to 10, such as 0.6")


@dataclass(frozen=True)
class Search:
    """Options of a search; lengths count tokens with the end symbol.

    Attributes:
      beam_size: hypotheses kept a line; 1 is greedy.
      length_penalty: alpha of Wu et al. 2016.
      n_best: outputs a line, at most the beam size.
      min_length: fewest tokens of an output.
      max_length: most tokens of an output; None: factor times the source length and extra, and a prefix on top.
      factor, extra: see `max_length`.
      sampling: draw `n_best` samples in place of searching.
      beyond: whether a prefix is context, so that lengths count what comes after it.
      positions: tokens that an output can have, end symbol and prefix included, whatever else is said; None: any number.
      after_source: whether the source stands in front of them.
    """

    beam_size: int
    length_penalty: float
    n_best: int
    min_length: int
    max_length: int | None
    factor: float
    extra: int
    sampling: Sampling | None
    beyond: bool = False
    positions: int | None = None
    after_source: bool = False

    @classmethod
    def of(
        cls,
        defaults: DecodingConfig,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        min_length: int | None = None,
        max_length: int | None = None,
        sampling: Sampling | None = None,
        **places,
    ) -> "Search":
        """The options given, and a run's defaults for the others; `places` are `beyond` and what follows it.

        Raises:
          ConfigError: for a number below 1, and for more outputs than hypotheses.
        """
        beam_size = defaults.beam_size if beam_size is None else beam_size
        numbers = {"--beam-size": beam_size, "--n-best": n_best, "--max-length": max_length}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise ConfigError(f"{name} {number}: it must be at least 1")
        for name, number in {"--min-length": min_length, "--max-length": max_length}.items():
            if number is not None and not 0 <= number <= MOST:
                raise ConfigError(f"{name} {number}: give at most {MOST}, and not less than 0")
        if length_penalty is not None:
            check_length_penalty(length_penalty)
        if sampling is None and n_best > beam_size:
            raise ConfigError(
                f"{n_best} best of a beam of {beam_size}: make --beam-size at least as large as --n-best"
            )
        return cls(
            beam_size,
            defaults.length_penalty if length_penalty is None else length_penalty,
            n_best,
            defaults.min_length if min_length is None else min_length,
            max_length,
            defaults.max_length_factor,
            defaults.max_length_extra,
            sampling,
            **places,
        )

    def longest(self, source: int, prefix: int) -> int:
        """Most tokens of any output of a batch whose sources are padded to `source`, prefixes to `prefix`."""
        if self.max_length is not None:
            longest = self.max_length + self.beyond * prefix
        else:
            longest = int(self.factor * source) + self.extra + prefix
        return longest if self.positions is None else min(longest, self.positions)

    def limits(
        self, lengths: Int[np.ndarray, "..."], given: Int[np.ndarray, "..."], longest: int
    ) -> Int[np.ndarray, "..."]:
        """Most tokens of each output, by the length of its source and of its prefix: nothing else of its batch."""
        if self.max_length is not None:
            own = np.broadcast_to(self.max_length + self.beyond * given, lengths.shape)
        else:
            own = (lengths * self.factor).astype(np.int32) + self.extra + given
        if self.positions is not None:
            # The end symbol of a source is no input behind which an output stands.
            own = np.minimum(own, self.positions - self.after_source * (lengths - 1))
        return np.minimum(own, longest).astype(np.int32)

    def least(self, given: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Fewest tokens of each output, by the length of its prefix."""
        return (self.min_length + self.beyond * given).astype(np.int32)


class Prefixes:
    """Tokens that each output must begin with, padded to one width for all batches.

    Raises:
      ConfigError: where one leaves no room for a token of `max_length`, the end symbol included.
    """

    def __init__(self, ids: list[list[int]] | None, max_length: int | None):
        most = max(map(len, ids or ()), default=0)
        if max_length is not None and most >= max_length:
            raise ConfigError(
                f"--max-length {max_length} has no room behind the {most} tokens that an output is to begin with: "
                f"give at least {most + 1}"
            )
        self.tokens = None if ids is None else TokenArray.from_lists(ids)
        longest = 0 if ids is None else int(max([1, *(self.tokens.lengths - 1)]))
        # Every width is a program of its own, and each wave of a document would have another one.
        self.width = longest and max(1 << (longest - 1).bit_length(), 8)

    def of(self, members: Int[np.ndarray, "*B"]) -> tuple[Int[np.ndarray, "*B P"], Int[np.ndarray, "*B"]]:
        """Ids of these sentences (-1: none), padded with 0, and how many each has."""
        if self.tokens is None:
            return np.zeros((*members.shape, 0), np.int32), np.zeros(members.shape, np.int32)
        flat = members.ravel()
        given = np.where(flat >= 0, self.tokens.lengths[flat] - 1, 0)
        ids = self.tokens.padded(flat, self.width + 1)[:, : self.width]
        ids = np.where(np.arange(self.width) < given[:, None], ids, 0).astype(np.int32)
        return ids.reshape(*members.shape, self.width), given.reshape(members.shape)
