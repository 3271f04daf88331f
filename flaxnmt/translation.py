"""From lines to lines: tokenise, decode or score in batches of few shapes, and put the order back."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxnmt.config import DecodingConfig
from flaxnmt.data.batches import EvaluationBatches
from flaxnmt.data.buckets import Bucket, BucketPlan
from flaxnmt.data.shards import TokenArray
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.decoding.beam import beam_search
from flaxnmt.decoding.sampling import sample
from flaxnmt.decoding.scoring import token_log_probs
from flaxnmt.errors import ConfigError
from flaxnmt.models.seq2seq import PAD
from flaxnmt.sharding import owned_rows, put_batch, use_mesh
from flaxnmt.typing import Params

LONGEST = 1024
"""Tokens at which a source or target line is cut, with a warning; lengths double from 8 up to here."""

LENGTHS = tuple(8 * 2**power for power in range(8))

FULL = 64
"""Tokens up to which a batch has as many rows as its batch size."""


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


@dataclass(frozen=True)
class Score:
    """Log-probability of a given target, in all and per token (end symbol last)."""

    log_prob: float
    token_log_probs: tuple[float, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Sampling:
    """Draw tokens in place of searching for the best."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


def square_plan(rows: int, multiple: int = 1) -> BucketPlan:
    """Shapes for lines of any length up to `LONGEST`, sources and targets alike.

    `rows` rows up to `FULL` tokens and fewer beyond, so that one long line takes no more memory than a batch of
    short ones; always in `multiple`s, the devices that share a batch.
    """

    def fitting(length: int) -> int:
        return -(-max(rows * FULL // max(length, FULL), 1) // multiple) * multiple

    return BucketPlan(tuple(Bucket(length, length, fitting(length)) for length in LENGTHS), LONGEST)


class Translator:
    """A model with its parameters and vocabularies, ready to translate and to score.

    Attributes:
      model: a module with `start` and `step` (see `flaxnmt.decoding.cache.Step`).
      params: its parameters.
      vocabularies: source and target tokenizers.
      decoding: defaults of every option.
      mesh: the mesh on which the parameters lie; None for one device.
    """

    def __init__(
        self,
        model: Any,
        params: Params,
        vocabularies: Vocabularies,
        decoding: DecodingConfig = DecodingConfig(),
        mesh: Mesh | None = None,
    ):
        self.model, self.params, self.vocabularies = model, params, vocabularies
        self.decoding, self.mesh = decoding, mesh
        whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        jit = partial(jax.jit, out_shardings=whole)
        self._beam = jit(
            self._beam_search, static_argnames=("max_length", "beam_size", "n_best", "length_penalty")
        )
        self._sample = jit(
            self._draw, static_argnames=("max_length", "samples", "temperature", "top_k", "top_p")
        )
        self._score = jit(self._token_log_probs)

    def translate(self, lines: Sequence[str], **options) -> list[str]:
        """The best translation of each line; a blank line stays blank. Options as in `hypotheses`."""
        return [outputs[0].text for outputs in self.hypotheses(lines, **options)]

    def stream(self, blocks: Iterable[Sequence[str]], **options) -> Iterator[list[Hypothesis]]:
        """`hypotheses` of lines that come in blocks, each as soon as its block is there; of any number of lines."""
        first_line = 1
        for block in blocks:
            yield from self.hypotheses(block, first_line=first_line, **options)
            first_line += len(block)

    def hypotheses(
        self,
        lines: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        batch_size: int | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        first_line: int = 1,
    ) -> list[list[Hypothesis]]:
        """Up to `n_best` outputs a line, best first (or as drawn, with `sampling`).

        Neither the batch size nor the order of the lines changes an output: limits are those of the line.

        Args:
          lines: source lines; blank ones are not decoded.
          beam_size: hypotheses kept a line; 1 is greedy.
          length_penalty: alpha of Wu et al. 2016.
          n_best: outputs a line, at most the beam size.
          batch_size: lines decoded together.
          min_length: fewest tokens of an output, end symbol included.
          max_length: most tokens of an output, end symbol included; by default it follows the source length,
            and a prefix comes on top.
          prefixes: what the translation of each line must begin with.
          sampling: draw `n_best` samples in place of searching.
          first_line: number of the first line in its input, by which samples are drawn and warnings name a line.

        Raises:
          ConfigError: for an option out of its range.
        """
        decoding = self.decoding
        beam_size = decoding.beam_size if beam_size is None else beam_size
        penalty = decoding.length_penalty if length_penalty is None else length_penalty
        shortest = decoding.min_length if min_length is None else min_length
        if sampling is None and n_best > beam_size > 0:
            raise ConfigError(
                f"{n_best} best of a beam of {beam_size}: make --beam-size at least as large as --n-best"
            )
        if prefixes is not None and len(prefixes) != len(lines):
            raise ConfigError(
                f"{len(prefixes)} prefixes for {len(lines)} lines: give one a line, empty where there is none"
            )
        filled = [i for i, line in enumerate(lines) if line.strip()]
        sources = TokenArray.from_lists(self.vocabularies.source.encode([lines[i] for i in filled]))
        starts = self.vocabularies.target.encode([prefixes[i] for i in filled]) if prefixes else None
        numbers = np.asarray(filled, np.int64) + first_line
        batches = EvaluationBatches(sources, None, self._plan(len(filled), batch_size), numbers)
        outputs = []
        for index in range(len(batches)):
            shape, members = batches.shape(index), batches.indices(index)
            prefix, given = self._prefix(starts, members, max_length)
            longest = (
                int(decoding.max_length_factor * shape.source) + decoding.max_length_extra + prefix.shape[1]
            )
            longest = longest if max_length is None else max_length
            cut = (sources.lengths[members] * decoding.max_length_factor).astype(
                np.int32
            ) + decoding.max_length_extra
            limits = np.where(
                members >= 0, np.minimum(cut + given, longest) if max_length is None else longest, 0
            )
            batch = {
                "source": batches.batch(index)["source"],
                "max_lengths": limits.astype(np.int32),
                "min_lengths": np.full(len(members), shortest, np.int32),
                "rows": np.where(members >= 0, numbers[members], 0).astype(np.int32),
                "prefix": prefix,
            }
            with self._on_mesh():
                batch = self._placed(batch)
                if sampling is None:
                    found = self._beam(
                        self.params,
                        batch,
                        max_length=longest,
                        beam_size=beam_size,
                        n_best=n_best,
                        length_penalty=penalty,
                    )
                else:
                    found = self._sample(
                        self.params, batch, sampling.seed, max_length=longest, samples=n_best,
                        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
                    )  # fmt: skip
            outputs.append(found)
        restored = batches.restore(self._read(jax.device_get(found)) for found in outputs)
        blank = [Hypothesis("", 0.0, 0.0, ())] * n_best
        results = [blank] * len(lines)
        for i, hypotheses in zip(filled, restored, strict=True):
            results[i] = hypotheses
        return results

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int | None = None
    ) -> list[Score]:
        """log p(target | source) of each pair of lines; a blank source or target is scored as it is."""
        if len(sources) != len(targets):
            raise ConfigError(f"{len(sources)} source and {len(targets)} target lines: they must be as many")
        source, target = (
            self.vocabularies.source.encode(list(sources)),
            self.vocabularies.target.encode(list(targets)),
        )
        plan = self._plan(len(sources), batch_size)
        batches = EvaluationBatches(TokenArray.from_lists(source), TokenArray.from_lists(target), plan)
        outputs = []
        for batch in batches:
            with self._on_mesh():
                outputs.append(self._score(self.params, self._placed(batch)))
        pieces = self.vocabularies.target.pieces
        restored = batches.restore(np.asarray(found) for found in outputs)
        results = []
        for ids, values in zip(target, restored, strict=True):
            count = min(len(ids) + 1, len(values))
            tokens = tuple(pieces[i] for i in ids[: count - 1]) + ("</s>",)
            results.append(Score(float(values[:count].sum()), tuple(values[:count].tolist()), tokens))
        return results

    def _beam_search(self, params, batch, *, max_length, beam_size, n_best, length_penalty):
        step, cache = self._start(params, batch["source"], beam_size, max_length)
        return beam_search(
            step, cache, batch["max_lengths"], max_length=max_length, beam_size=beam_size, n_best=n_best,
            length_penalty=length_penalty, min_lengths=batch["min_lengths"], prefix=batch["prefix"],
        )  # fmt: skip

    def _draw(self, params, batch, seed, *, max_length, samples, temperature, top_k, top_p):
        step, cache = self._start(params, batch["source"], samples, max_length)
        return sample(
            step, cache, jax.random.key(seed), batch["rows"], batch["max_lengths"], max_length=max_length,
            samples=samples, temperature=temperature, top_k=top_k, top_p=top_p,
            min_lengths=batch["min_lengths"], prefix=batch["prefix"],
        )  # fmt: skip

    def _start(self, params, source, beams, max_length):
        variables = {"params": params}
        cache = self.model.apply(variables, source, beams, max_length, method="start")
        return partial(self.model.apply, variables, method="step"), cache

    def _token_log_probs(self, params, batch):
        logits = self.model.apply({"params": params}, batch["source"], batch["target"])
        return token_log_probs(logits, batch["target"], batch["target"] != PAD)

    def _plan(self, lines: int, batch_size: int | None) -> BucketPlan:
        """Shapes with as many rows as the batch size, or the power of two that holds fewer lines."""
        rows = self.decoding.batch_size if batch_size is None else batch_size
        if rows < 1:
            raise ConfigError(f"a batch size of {rows}: it must be at least 1")
        ways = 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        return square_plan(min(rows, 1 << max(lines - 1, 0).bit_length()), ways)

    @staticmethod
    def _prefix(starts, members, max_length) -> tuple[np.ndarray, np.ndarray]:
        """Forced ids of the rows of a batch, padded to one width for all batches, and how many each row has."""
        if starts is None:
            return np.zeros((len(members), 0), np.int32), np.zeros(len(members), np.int32)
        prefixes = TokenArray.from_lists(ids[:max_length] for ids in starts)
        width = max(int(prefixes.lengths.max()) - 1, 1)
        given = np.where(members >= 0, prefixes.lengths[members] - 1, 0)
        ids = prefixes.padded(members, width + 1)[:, :width]
        return np.where(np.arange(width) < given[:, None], ids, 0).astype(np.int32), given

    def _on_mesh(self):
        return use_mesh(self.mesh) if self.mesh is not None else contextlib.nullcontext()

    def _placed(self, batch):
        if self.mesh is None:
            return batch
        rows = owned_rows(len(batch["source"]), self.mesh)
        return put_batch({name: values[rows] for name, values in batch.items()}, self.mesh)

    def _read(self, found) -> list[list[Hypothesis]]:
        """Hypotheses of each row of a batch."""
        pieces, decode = self.vocabularies.target.pieces, self.vocabularies.target.decode
        batch, count = found.lengths.shape
        ids = [
            found.tokens[b, n, : max(found.lengths[b, n] - 1, 0)].tolist()
            for b in range(batch)
            for n in range(count)
        ]
        texts = decode(ids)
        return [
            [
                Hypothesis(
                    texts[b * count + n],
                    float(found.scores[b, n]),
                    float(found.log_probs[b, n]),
                    tuple(pieces[i] for i in ids[b * count + n]),
                )
                for n in range(count)
            ]
            for b in range(batch)
        ]
