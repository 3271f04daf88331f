"""From lines to lines: tokenise, decode or score in batches of few shapes, and put the order back."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxnmt.config import DecodingConfig
from flaxnmt.data.batches import EvaluationBatches, SortedBatches
from flaxnmt.data.documents import Document
from flaxnmt.data.shards import TokenArray
from flaxnmt.data.tokenizers import Tokenizer
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import find_budget
from flaxnmt.models.config import DecoderOnlyConfig
from flaxnmt.sharding import owned_rows, put_batch, use_mesh
from flaxnmt.translation import programs
from flaxnmt.translation.lines import Text
from flaxnmt.translation.search import BLANK, Hypothesis, Prefixes, Score, Search
from flaxnmt.translation.shapes import longest_of, most_outputs, square_plan
from flaxnmt.typing import Params


def budgeted(batch: dict[str, np.ndarray], place: int | None) -> dict[str, np.ndarray]:
    """The batch with a budget, by its place, for each example; as it is where none was asked for."""
    if place is None:
        return batch
    return batch | {"budget": np.full(len(batch["source"]), place, np.int32)}


class Translator:
    """A model with its parameters and vocabularies, ready to translate and to score.

    Attributes:
      by_document: whether a line is translated with what is around it.
      forces_context: whether prefixes are context, so that limits count what comes after them.
      model: a module with `start` and `step` (see `flaxnmt.decoding.cache.Step`).
      params: its parameters.
      vocabularies: source and target tokenizers.
      decoding: defaults of every option.
      mesh: the mesh on which the parameters lie; None for one device.
    """

    by_document = False
    forces_context = False

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
        jit, skip = partial(jax.jit, out_shardings=whole), decoding.skip
        self._beam = jit(partial(programs.search, model, skip=skip), static_argnames=programs.SEARCH_OPTIONS)
        self._sample = jit(partial(programs.draw, model, skip=skip), static_argnames=programs.DRAW_OPTIONS)
        self._score = jit(partial(programs.target_log_probs, model, skip=skip))

    def translate(self, lines: Sequence[str], **options) -> list[str]:
        """The best translation of each line; a blank line stays blank. Options as in `hypotheses`."""
        return [outputs[0].text for outputs in self.hypotheses(lines, **options)]

    def translate_documents(
        self, documents: Sequence[Document], wanted: Sequence[Sequence[int]] | None = None, **options
    ) -> list[list[str]]:
        """The best translation of each sentence of each document; a blank one stays blank. Options as in `hypotheses`.

        wanted: ascending indices of the sentences of each document to translate; the others are context alone.
        """
        asked = [range(len(document)) for document in documents] if wanted is None else wanted
        blank = [[not sentence.source.strip() for sentence in document] for document in documents]
        if any(map(any, blank)):
            wanted = [[i for i in each if not there[i]] for each, there in zip(asked, blank, strict=True)]
        outputs = iter(self.outputs(Text.of_documents(documents, wanted), **options))
        return [
            ["" if there[i] else next(outputs)[0].text for i in each]
            for each, there in zip(asked, blank, strict=True)
        ]

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
        paragraphs: bool = False,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
        **options,
    ) -> list[list[Hypothesis]]:
        """Up to `n_best` outputs a line, best first (or as drawn, with `sampling`); blank lines stay blank.

        Neither the batch size nor the order of the lines changes an output: limits are those of the line. To a
        model of documents a blank line is where a document ends.

        Args:
          lines: source lines.
          paragraphs: a blank line ends a paragraph, and two of them a document.
          prefixes: what the translation of each line must begin with.
          first_line: number of the first line in its input, by which samples are drawn and warnings name a line.
          options: `batch_size`, sentences decoded together, and those of `Search`: beam_size, length_penalty,
            n_best, min_length, max_length, sampling; and `budget`, of a model with gates: a share of the full
            computation, or one each of encoder and decoder, for which it was trained. Its largest by default.

        Raises:
          ConfigError: for an option out of its range, or a budget that the model was not trained for.
        """
        if prefixes is not None and len(prefixes) != len(lines):
            raise ConfigError(
                f"{len(prefixes)} prefixes for {len(lines)} lines: give one a line, empty where there is none"
            )
        text = Text.of_lines(lines, paragraphs, first_line)
        if prefixes is not None:
            prefixes = [prefixes[number - first_line] for number in text.numbers]
        results = [[BLANK] * options.get("n_best", 1)] * len(lines)
        for number, found in zip(text.numbers, self.outputs(text, prefixes, **options), strict=True):
            results[number - first_line] = found
        return results

    def outputs(
        self,
        text: Text,
        prefixes: Sequence[str] | None = None,
        batch_size: int | None = None,
        budget: float | Sequence[float] | None = None,
        **options,
    ) -> list[list[Hypothesis]]:
        """`hypotheses` of sentences none of which is blank; of those that are wanted."""
        search, place = self._search(**options), self._budget(budget)
        sources = TokenArray.from_lists(self.encode(self.vocabularies.source, text.sentences))
        starts = None if prefixes is None else self.vocabularies.target.encode(list(prefixes))
        forced = Prefixes(starts, None if search.beyond else search.max_length)
        batches = self.batches(sources, None, text, batch_size)
        found = [
            self._decode(
                budgeted(batches.batch(i), place),
                batches.indices(i),
                sources.lengths,
                text.numbers,
                forced,
                search,
            )
            for i in range(len(batches))
        ]
        return batches.restore(self._read(jax.device_get(hypotheses)) for hypotheses in found)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_size: int | None = None,
        paragraphs: bool = False,
        budget: float | Sequence[float] | None = None,
    ) -> list[Score]:
        """log p(target | source) of each pair of lines; a blank source or target is scored as it is.

        To a model of documents a line that is blank in the source is where a document ends, with `paragraphs` as
        in `hypotheses`, and its score is 0. `budget` as in `hypotheses`; each score says what it used.
        """
        self.check_lengths(sources, targets)
        text = Text.of_lines(sources, paragraphs) if self.by_document else Text.unbroken(sources)
        results = [Score(0.0, (), ())] * len(sources)
        found = self.scores(text, [targets[number - 1] for number in text.numbers], batch_size, budget)
        for number, score in zip(text.numbers, found, strict=True):
            results[number - 1] = score
        return results

    def score_documents(self, documents: Sequence[Document], **options) -> list[list[Score]]:
        """log p(target | source) of each sentence of each document, in its document; options `batch_size`, `budget`."""
        text = Text.of_documents(documents)
        targets = [sentence.target or "" for document in documents for sentence in document]
        scores = iter(self.scores(text, targets, **options))
        return [[next(scores) for _ in document] for document in documents]

    def log_probs(self, judged: Sequence[tuple[Document, int]], **options) -> list[float]:
        """log p(target | source) of sentence i of each document: a `Scorer` of contrastive evaluation.

        Options: `batch_size` and `budget`, as in `score`.
        """
        sentences = [document.sentences[index] for document, index in judged]
        text = Text.unbroken([sentence.source for sentence in sentences])
        scores = self.scores(text, [sentence.target for sentence in sentences], **options)
        return [score.log_prob for score in scores]

    def scores(
        self,
        text: Text,
        targets: Sequence[str],
        batch_size: int | None = None,
        budget: float | Sequence[float] | None = None,
    ) -> list[Score]:
        """Log-probability of the target of each sentence, of those that are wanted; targets are those of all."""
        place = self._budget(budget)
        source = TokenArray.from_lists(self.encode(self.vocabularies.source, text.sentences))
        target = self.encode(self.vocabularies.target, targets)
        batches = self.batches(source, TokenArray.from_lists(target), text, batch_size)
        outputs = []
        for index in range(len(batches)):
            batch = budgeted(batches.batch(index), place)
            with self._on_mesh():
                outputs.append(self._score(self.params, self._placed(batch)))
        pieces = self.vocabularies.target.pieces
        restored = batches.restore(
            list(zip(*map(np.asarray, found), strict=True)) for found in jax.device_get(outputs)
        )
        if text.wanted is not None:
            target = [target[i] for i in np.flatnonzero(text.wanted)]
        results = []
        for ids, (values, use) in zip(target, restored, strict=True):
            count = min(len(ids) + 1, len(values))
            tokens = tuple(pieces[i] for i in ids[: count - 1]) + ("</s>",)
            values = values[:count]
            results.append(Score(float(values.sum()), tuple(values.tolist()), tokens, tuple(use.tolist())))
        return results

    def encode(self, tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
        """Ids of what the model reads of each line."""
        return tokenizer.encode(list(lines))

    def batches(
        self, source: TokenArray, target: TokenArray | None, text: Text, batch_size: int | None
    ) -> SortedBatches:
        """Batches in which every sentence that is wanted stands once, in any order."""
        count = len(source) if text.wanted is None else int(text.wanted.sum())
        plan = square_plan(*self.rows(count, batch_size), longest=longest_of(self.model.config))
        return EvaluationBatches(source, target, plan, text.numbers, text.wanted)

    def rows(self, lines: int, batch_size: int | None) -> tuple[int, int]:
        """Sentences of a batch, the batch size or the power of two that holds fewer lines, and their divisor."""
        rows = self.decoding.batch_size if batch_size is None else batch_size
        if rows < 1:
            raise ConfigError(f"a batch size of {rows}: it must be at least 1")
        ways = 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        return min(rows, 1 << max(lines - 1, 0).bit_length()), ways

    @staticmethod
    def check_lengths(sources: Sequence[str], targets: Sequence[str]) -> None:
        """Raises ConfigError where there are not as many targets as sources."""
        if len(sources) != len(targets):
            raise ConfigError(f"{len(sources)} source and {len(targets)} target lines: they must be as many")

    def _decode(self, batch, members, lengths, numbers, forced: Prefixes, search: Search):
        """Hypotheses of the sentences `members` (-1: none) of one batch."""
        prefix, given = forced.of(members)
        longest = search.longest(batch["source"].shape[-1], prefix.shape[-1])
        limits = search.limits(lengths[members], given, longest)
        batch = batch | {
            "max_lengths": np.where(members >= 0, limits, 0).astype(np.int32),
            "min_lengths": search.least(given),
            "rows": np.where(members >= 0, numbers[members], 0).astype(np.int32),
            "prefix": prefix,
        }
        with self._on_mesh():
            batch = self._placed(batch)
            if search.sampling is None:
                return self._beam(
                    self.params, batch, max_length=longest, beam_size=search.beam_size, n_best=search.n_best,
                    length_penalty=search.length_penalty,
                )  # fmt: skip
            drawing = asdict(search.sampling)
            seed = drawing.pop("seed")
            return self._sample(
                self.params, batch, seed, max_length=longest, samples=search.n_best, **drawing
            )

    def _search(self, **options) -> Search:
        config = self.model.config
        places = {"positions": most_outputs(config), "after_source": isinstance(config, DecoderOnlyConfig)}
        return Search.of(self.decoding, beyond=self.forces_context, **places, **options)

    def _budget(self, budget: float | Sequence[float] | None) -> int | None:
        """Its place among the budgets of the model."""
        return None if budget is None else find_budget(self.model.config.budgets, budget)

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
                # Where a row has fewer outputs than were asked for, the rest are of no probability.
                if not n or found.lengths[b, n]
            ]
            for b in range(batch)
        ]
