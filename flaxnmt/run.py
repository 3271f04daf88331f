"""A run, opened: its model, and what is done with it."""

import dataclasses
import json
import math
import os
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from flaxnmt import looking
from flaxnmt.checks.model import check_model
from flaxnmt.config import Config
from flaxnmt.data.boundaries import Boundaries
from flaxnmt.data.documents import Document
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.language.attention import of_text
from flaxnmt.language.causal import CausalReader
from flaxnmt.language.contextual import Contextual
from flaxnmt.language.gates import of_texts
from flaxnmt.language.labelled import LabelledReader
from flaxnmt.language.reader import Guess, Reader
from flaxnmt.models.config import DecoderOnlyConfig, EncoderOnlyConfig, Seq2SeqConfig, uses_splash
from flaxnmt.models.families import Model, example_inputs, module
from flaxnmt.run_directory import (
    LABELS,
    PARAMETERS,
    RECORD,
    TOKENIZER,
    load_vocabularies,
    local_run,
    read_config,
)
from flaxnmt.sharding import unbox
from flaxnmt.training.export import read_parameters
from flaxnmt.training.integrity import check_layout, layout
from flaxnmt.training.metrics import FILE as METRICS
from flaxnmt.training.metrics import read_metrics
from flaxnmt.translation.concatenation import ConcatenationTranslator
from flaxnmt.translation.documents import DocumentTranslator
from flaxnmt.translation.lines import Text, refuse_one
from flaxnmt.translation.search import Hypothesis, Score
from flaxnmt.translation.translator import Translator
from flaxnmt.typing import Params


def make_model(config: Config, vocabularies: Vocabularies) -> Model:
    """The module that a configuration describes, for these vocabularies.

    Raises:
      ConfigError: as `check_model`, or if vocabularies differ and embeddings are tied.
    """
    check_model(config)
    model = config.model
    if not vocabularies.shared:
        if not isinstance(model, Seq2SeqConfig):
            raise ConfigError("a model of one stack has one vocabulary: give a shared tokenizer")
        if model.tie == "all":
            raise ConfigError(
                "--model.tie all needs one vocabulary: give --model.tie target, or a shared tokenizer"
            )
    return module(model, vocabularies.source.vocab_size, vocabularies.target.vocab_size)


def make_translator(
    config: Config, model: Model, params: Params, vocabularies: Vocabularies, mesh: Mesh | None = None
) -> Translator:
    """What translates with this model: line by line, by documents, or line by line after the lines before."""
    parts, data = (model, params, vocabularies, config.decoding, mesh), config.data
    if config.model.is_document:
        boundaries = Boundaries(data.boundaries, config.training.seed)
        return DocumentTranslator(
            *parts, max_sentences=data.max_sentences, overlap=data.overlap, boundaries=boundaries
        )
    if data.previous:
        return ConcatenationTranslator(*parts, previous=data.previous, target_context=data.previous_target)
    return Translator(*parts)


class Run:
    """A run directory opened for reading. Everything is loaded when first asked for.

    Parameters stay NumPy arrays and nothing touches a device until something is translated or scored.

    Attributes:
      name: the directory as it was given, maybe an address such as gs://bucket/directory.
      directory: where its files are on this machine.
      config: its configuration.
    """

    def __init__(self, directory: str | os.PathLike):
        self.name = os.fspath(directory)
        self.directory = local_run(directory)
        self.config = read_config(self.directory)

    def __repr__(self) -> str:
        return f"Run({self.name!r})"

    @property
    def metrics(self) -> list[dict]:
        """Rows of `metrics.jsonl` (see `flaxnmt.training.metrics`)."""
        return read_metrics(local_run(self.name, METRICS))

    @property
    def record(self) -> dict:
        """Command, versions, devices, parameter count and data of the run."""
        path = local_run(self.name, RECORD) / RECORD
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @cached_property
    def vocabularies(self) -> Vocabularies:
        return load_vocabularies(local_run(self.name, TOKENIZER), self.config)

    @cached_property
    def params(self) -> dict[str, Any]:
        """The exported parameters, as NumPy arrays."""
        return read_parameters(local_run(self.name, PARAMETERS) / PARAMETERS)

    @cached_property
    def model(self) -> Model:
        """The module; without a TPU it computes by itself what a kernel for TPUs does."""
        config = self.config
        if uses_splash(config.model) and jax.default_backend() != "tpu":
            document = dataclasses.replace(config.model.document, kernel="xla")
            config = config.replace(model=dataclasses.replace(config.model, document=document))
        return make_model(config, self.vocabularies)

    @cached_property
    def _placed(self) -> Params:
        """The parameters on the default device.

        Raises:
          RunError: if they are those of another configuration or vocabulary.
        """
        made = jax.eval_shape(self.model.init, jax.random.key(0), *example_inputs(self.config.model, 1))
        expected = layout(unbox(made["params"]))
        check_layout(layout(self.params), expected, f"{self.name}: {PARAMETERS}")
        return jax.device_put(self.params)

    @cached_property
    def translator(self) -> Translator:
        """Parameters on the default device and the compiled functions.

        Raises:
          ConfigError: for an encoder alone, which writes nothing, and a model of texts, which reads no source.
        """
        if isinstance(self.config.model, EncoderOnlyConfig):
            raise ConfigError(
                f"{self.name} is an encoder alone: it writes and scores no text; what it has is fill_mask, classify, "
                "label, answer, embed and contextual"
            )
        if self._continues_texts:
            raise ConfigError(
                f"{self.name} is a model of texts, which translates nothing: what it has is complete, perplexity and "
                "contextual"
            )
        return self._writer

    @cached_property
    def _writer(self) -> Translator:
        return make_translator(self.config, self.model, self._placed, self.vocabularies)

    @cached_property
    def reader(self) -> Reader | CausalReader:
        """Of a model of one stack: parameters on the default device and the compiled functions.

        Raises:
          ConfigError: for a model of two stacks, or of documents.
        """
        model = self.config.model
        if isinstance(model, Seq2SeqConfig) or model.is_document:
            kind = "a model of documents" if model.is_document else "an encoder with a decoder"
            raise ConfigError(
                f"{self.name} is {kind}: texts are read by an encoder alone, or a decoder alone"
            )
        parts = self.model, self._placed, self.vocabularies.source, self.config.decoding.skip
        return (CausalReader if isinstance(model, DecoderOnlyConfig) else Reader)(*parts)

    @cached_property
    def _labelled(self) -> LabelledReader:
        self._check_encoder()
        path = local_run(self.name, LABELS) / LABELS
        labels = tuple(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else ()
        data = dataclasses.replace(self.config.data, labels=labels)
        return LabelledReader(
            self.model, self._placed, self.vocabularies.source, data, self.config.decoding.skip
        )

    @property
    def _encoder(self) -> Reader:
        self._check_encoder()
        return self.reader

    def _check_encoder(self) -> None:
        if not isinstance(self.config.model, EncoderOnlyConfig):
            raise ConfigError(
                f"{self.name} is no encoder alone: it fills no masks, embeds and classifies no texts, labels no words and "
                "answers no questions"
            )

    def fill_mask(
        self, texts: list[str], top: int = 5, budget: float | None = None
    ) -> list[list[list[Guess]]]:
        """The likeliest pieces for each [MASK] of each text (`flaxnmt.language.reader`), at a budget of the model."""
        return self._encoder.fill_mask(texts, top, budget)

    def embed(self, texts: list[str], pool: str = "mean", budget: float | None = None) -> np.ndarray:
        """A vector a text, [texts, D], of an encoder alone, at a budget of the model."""
        return self._encoder.embed(texts, pool, budget)

    def classify(
        self, texts: list[str], seconds: list[str] | None = None, budget: float | None = None
    ) -> list[tuple[str, float]]:
        """The class of each text, or pair of texts, and how likely it is; at a budget of the model, if it has some."""
        return self._labelled.classify(texts, seconds, budget)

    def label(self, texts: list[str], budget: float | None = None) -> list[list[tuple[str, str | None]]]:
        """The words of each text with their labels, at a budget of the model; None of a word that is cut off."""
        return self._labelled.label(texts, budget)

    def answer(
        self,
        questions: list[str],
        contexts: list[str],
        threshold: float | None = None,
        budget: float | None = None,
    ) -> list[str]:
        """The part of each context that answers the question about it, at a budget of the model.

        With a `threshold`, 0 in SQuAD 2.0, it is empty where no answer is better by more than that.
        """
        return self._labelled.answer(questions, contexts, threshold, budget)

    def contextual(self, texts: list[str], budget: float | None = None) -> list[Contextual]:
        """Embeddings of every token of each text in every layer [layers, L, D], of an encoder or a decoder alone.

        A decoder alone that translates reads each text as a source. Gates keep to a budget of the model.
        """
        return self.reader.contextual(texts, budget)

    @property
    def _translates(self) -> bool:
        model = self.config.model
        return isinstance(model, Seq2SeqConfig) or (
            isinstance(model, DecoderOnlyConfig) and model.task == "translation"
        )

    @property
    def _continues_texts(self) -> bool:
        model = self.config.model
        return isinstance(model, DecoderOnlyConfig) and model.task == "language"

    def _check_language(self) -> None:
        if not self._continues_texts:
            raise ConfigError(
                f"{self.name} is no model of texts: a decoder alone, trained with --model.task language, "
                "completes texts and has a perplexity"
            )

    def complete(self, texts: list[str], max_length: int = 64, **options) -> list[str]:
        """The texts with what a model of texts goes on with; options as in `hypotheses`, such as `sampling`.

        max_length: most tokens, those given and the end included.

        Raises:
          ConfigError: as `hypotheses`, and for `n_best`, since each text is completed once.
        """
        self._check_language()
        refuse_one(texts)
        if options.get("n_best", 1) != 1:
            raise ConfigError(
                "each text is completed once: leave n_best out, and draw with sampling for others"
            )
        nothing, tokenizer = Text.unbroken([""] * len(texts)), self.vocabularies.source
        found = self._writer.outputs(nothing, texts, max_length=max_length, **options)
        read = tokenizer.decode(tokenizer.encode(texts))
        return [
            text.rstrip() + outputs[0].text.removeprefix(begun)
            for text, begun, outputs in zip(texts, read, found)
        ]

    def perplexity(self, texts: list[str], budget: float | None = None) -> float:
        """Perplexity a token of texts, each by itself, under a model of texts; the end of a text is a token.

        Gates keep to a budget of the model, its largest if None.
        """
        self._check_language()
        refuse_one(texts)
        if not texts:
            raise DataError("no texts: a perplexity is that of one at least")
        scores = self._writer.score([""] * len(texts), texts, budget=budget)
        count = sum(len(score.tokens) for score in scores)
        return math.exp(-sum(score.log_prob for score in scores) / count)

    def translate(self, lines: list[str], **options) -> list[str]:
        """The best translation of each line (options: `Translator.hypotheses`)."""
        return self.translator.translate(lines, **options)

    def translate_documents(
        self, documents: list[Document], wanted: list[tuple[int, ...]] | None = None, **options
    ) -> list[list[str]]:
        """The best translation of each sentence of each document, or of those `wanted`, by their indices.

        A blank sentence stays blank. Options: `Translator.hypotheses`.
        """
        return self.translator.translate_documents(documents, wanted, **options)

    def log_probs(self, judged: list[tuple[Document, int]], **options) -> list[float]:
        """Log-probability of the target of sentence i of each document, in its document (`Translator.log_probs`)."""
        return self.translator.log_probs(judged, **options)

    def hypotheses(self, lines: list[str], **options) -> list[list[Hypothesis]]:
        """The best outputs of each line with their scores (options: `Translator.hypotheses`)."""
        return self.translator.hypotheses(lines, **options)

    def score(self, source: list[str], target: list[str], **options) -> list[Score]:
        """Log-probability of each target line given its source line (options: `Translator.score`)."""
        return self.translator.score(source, target, **options)

    def attention(
        self,
        source: str | Document,
        target: str | None = None,
        budget: float | tuple[float, ...] | None = None,
    ) -> dict[str, Any]:
        """What the model looks at while it reads one sentence and writes its translation, or reads a text or document.

        See `flaxnmt.looking`: `of_sentence` for a line, with its translation (the model's own where none is
        given), `of_document` for a document; and `flaxnmt.language.attention`: `of_text` for a text, which a model
        that does not translate reads. With gates at a budget of the model, its largest if None.
        """
        if isinstance(source, Document) and isinstance(self.config.model, Seq2SeqConfig):
            return looking.of_document(self.translator, source, budget)
        if isinstance(source, Document):
            raise ConfigError(f"{self.name} is a model of one stack: ask for the attention of a text")
        if self._translates:
            target = self.translate([source], budget=budget)[0] if target is None else target
            return looking.of_sentence(self.translator, source, target, budget)
        if target is not None:
            raise ConfigError(f"{self.name} does not translate: ask for the attention of one text")
        return of_text(self.reader, source, budget)

    def gates(
        self,
        source: list[str] | list[Document],
        target: list[str] | list[list[str]] | None = None,
        budget: float | tuple[float, ...] | None = None,
    ) -> list[dict[str, Any]]:
        """How much each gate lets through for these lines or documents and their translations.

        See `flaxnmt.looking.of_gates`. Of a model that does not translate, for these texts
        (`flaxnmt.language.gates.of_texts`).
        """
        if self._translates:
            if target is None:
                raise ConfigError(f"{self.name} translates: give the translations of the lines, too")
            return looking.of_gates(self.translator, source, target, budget)
        if target is not None:
            raise ConfigError(f"{self.name} does not translate: ask for the gates of texts alone")
        return of_texts(self.reader, source, budget)
