"""A run directory, which describes itself: what a training leaves behind and what inference starts from.

config.json       the resolved configuration
run.json          command, versions, devices, mesh, parameter count, tokenizer hash, data
tokenizer/        the vocabularies
data/             the tokenised corpora
metrics.jsonl     losses, speeds, scores
checkpoints/      what training continues from
parameters.npz    what inference uses
dev.txt, test.txt translations of the last evaluation and of the test set
report.md, curves.png
"""

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from flaxnmt import looking
from flaxnmt.config import Config
from flaxnmt.config_io import from_dict, to_dict
from flaxnmt.data.boundaries import Boundaries
from flaxnmt.data.concatenation import Breaks
from flaxnmt.data.documents import Document
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.models import build
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.training.export import read_parameters
from flaxnmt.training.metrics import read_metrics
from flaxnmt.translation.concatenation import ConcatenationTranslator
from flaxnmt.translation.documents import DocumentTranslator
from flaxnmt.translation.search import Hypothesis, Score
from flaxnmt.translation.translator import Translator
from flaxnmt.typing import Params

CONFIG, RECORD, TOKENIZER, PARAMETERS = "config.json", "run.json", "tokenizer", "parameters.npz"
CHECKPOINTS = "checkpoints"


def write_json(path: Path, content: Any) -> None:
    """Writes a file that is whole or not there at all."""
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_config(directory: Path) -> Config:
    """The configuration of a run.

    Raises:
      RunError: if the directory is missing, is no run, or its configuration cannot be read.
    """
    path = Path(directory) / CONFIG
    if not Path(directory).is_dir():
        raise RunError(f"{directory}: no such run directory; train one with python -m experiments.train")
    if not path.exists():
        raise RunError(
            f"{directory}: no {CONFIG} in it, so it is no run directory or training never started there"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no object in it")
        return from_dict(Config, content, f"{path}: config")
    except (ValueError, TypeError) as error:
        raise RunError(f"{path}: not a whole configuration ({error}); restore it or train again") from None


def make_model(config: Config, vocabularies: Vocabularies) -> Seq2Seq:
    """The module that a configuration describes, for these vocabularies.

    Raises:
      ConfigError: as `check_model`, or if vocabularies differ and embeddings are tied.
    """
    check_model(config)
    if config.model.tie == "all" and not vocabularies.shared:
        raise ConfigError(
            "--model.tie all needs one vocabulary: give --model.tie target, or a shared tokenizer"
        )
    return Seq2Seq(config.model, vocabularies.source.vocab_size, vocabularies.target.vocab_size)


def check_model(config: Config) -> None:
    """Refuses what no vocabulary makes a model of.

    Raises:
      ConfigError: if the heads of an attention do not divide the model dimension, a rate of dropout is none, or
        the branches of an encoder or the parts of a model of documents do not fit together.
    """
    model = config.model
    heads = {
        "encoder.attention.heads": model.encoder.attention.heads,
        "decoder.attention.heads": model.decoder.attention.heads,
    }
    if model.is_document:
        heads["document.context-heads"] = model.document.context_heads
    for name, count in heads.items():
        if count < 1 or model.d_model % count:
            raise ConfigError(f"{count} heads do not divide d_model {model.d_model}: change --model.{name}")
    for name in ("dropout", "attention_dropout", "hidden_dropout"):
        rate = getattr(model, name)
        if rate is not None and not 0 <= rate < 1:
            raise ConfigError(f"--model.{name} {rate}: a rate of dropout is at least 0 and below 1")
    for name in list(heads)[:2]:
        if model.positions == "rotary" and model.d_model // heads[name] % 2:
            raise ConfigError(
                f"--model.positions rotary turns pairs of features, and heads have {model.d_model // heads[name]}: change "
                f"--model.{name} or --model.d-model"
            )
    if model.relative_clip < 1:
        raise ConfigError(f"--model.relative-clip {model.relative_clip}: give a distance of at least 1")
    kinds = {kind for branch in model.encoder_branches for kind in branch}
    if "convs2s" in kinds and (model.encoder.convolution < 1 or model.encoder.convolution % 2 == 0):
        raise ConfigError(
            f"--model.encoder.convolution {model.encoder.convolution}: the kernel has a row in its middle, give an odd "
            "width"
        )
    vectors = model.encoder.expansion.vectors
    if "static_expansion" in kinds and (not vectors or min(vectors) < 1):
        raise ConfigError(
            f"--model.encoder.expansion.vectors {' '.join(map(str, vectors))}: each layer has at least 1 vector"
        )
    previous = config.data.previous
    if previous < 0 or (config.data.previous_target and not previous):
        raise ConfigError(
            f"--data.previous {previous}: give the number of previous sentences, at least 1 with --data.previous-target"
        )
    if model.is_document:
        _check_document(config)
    elif config.data.boundaries != "true":
        raise ConfigError(
            f"--data.boundaries {config.data.boundaries} cuts documents, and this is a model of sentences: give "
            "--model.document.layers, or leave it out"
        )
    if model.budgets:
        # Gates that do not fit say so when layers are made.
        build.encoders(model)
        build.decoder(model)


def _check_document(config: Config) -> None:
    """Refuses models of documents that cannot be built, or that would not be what was asked for."""
    model, kinds = config.model, config.model.document.layers
    if kinds and model.encoder.branches:
        raise ConfigError(
            "--model.document.layers and --model.encoder.branches both name the layers of the encoder: name those of "
            "documents in the branches, too, such as attention:4+conditional:2"
        )
    if not model.encoder.branches and len(kinds) not in (1, model.encoder.layers):
        raise ConfigError(
            f"--model.document.layers names {len(kinds)} layers and --model.encoder.layers is "
            f"{model.encoder.layers}: name each of them, or one kind for all"
        )
    if model.document.t < 1:
        raise ConfigError(f"--model.document.t {model.document.t}: a word selects at least 1 sentence")
    if not model.document.levels:
        raise ConfigError("--model.document.levels is empty: name one, or give --model.positions none")
    if model.document.cross == "document" and (
        build.positions(model) is None or set(model.document.levels) <= {"word"}
    ):
        raise ConfigError(
            "--model.document.cross document tells the decoder by its position which sentence to write: give "
            "--model.document.levels with sentence, and --model.positions sinusoidal or learned"
        )
    if model.document.dispatched and (
        model.attention_weights != "soft" or (model.positions == "shaw" and model.relative_values)
    ):
        raise ConfigError(
            "--model.document.dispatched has no hard weights, and no distances that add to values: leave it out, or give "
            "--model.attention-weights soft and --model.no-relative-values"
        )
    if config.data.previous:
        raise ConfigError(
            "--data.previous belongs to models of sentences and --model.document.layers makes one of documents: "
            "leave one of them out"
        )


def load_vocabularies(directory: Path, config: Config) -> Vocabularies:
    """The vocabularies of a run, as its texts need them.

    Raises:
      RunError: where they are missing.
    """
    found = Vocabularies.load(directory / TOKENIZER)
    return Vocabularies(Breaks(found.source), Breaks(found.target)) if config.data.previous else found


def make_translator(
    config: Config, model: Seq2Seq, params: Params, vocabularies: Vocabularies, mesh: Mesh | None = None
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
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)
        self.config = read_config(self.directory)

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    @property
    def metrics(self) -> list[dict]:
        """Rows of `metrics.jsonl` (see `flaxnmt.training.metrics`)."""
        return read_metrics(self.directory)

    @property
    def record(self) -> dict:
        """Command, versions, devices, parameter count and data of the run."""
        path = self.directory / RECORD
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @cached_property
    def vocabularies(self) -> Vocabularies:
        return load_vocabularies(self.directory, self.config)

    @cached_property
    def params(self) -> dict[str, Any]:
        """The exported parameters, as NumPy arrays."""
        return read_parameters(self.directory / PARAMETERS)

    @cached_property
    def model(self) -> Seq2Seq:
        return make_model(self.config, self.vocabularies)

    @cached_property
    def translator(self) -> Translator:
        """Parameters on the default device and the compiled functions."""
        return make_translator(self.config, self.model, jax.device_put(self.params), self.vocabularies)

    def translate(self, lines: list[str], **options) -> list[str]:
        """The best translation of each line (options: `Translator.hypotheses`)."""
        return self.translator.translate(lines, **options)

    def translate_documents(
        self, documents: list[Document], wanted: list[tuple[int, ...]] | None = None, **options
    ) -> list[list[str]]:
        """The best translation of each sentence of each document, or of those `wanted`, by their indices.

        Options: `Translator.hypotheses`.
        """
        return self.translator.translate_documents(documents, wanted, **options)

    def log_probs(self, judged: list[tuple[Document, int]], batch_size: int | None = None) -> list[float]:
        """Log-probability of the target of sentence i of each document, in its document."""
        return self.translator.log_probs(judged, batch_size)

    def hypotheses(self, lines: list[str], **options) -> list[list[Hypothesis]]:
        """The best outputs of each line with their scores (options: `Translator.hypotheses`)."""
        return self.translator.hypotheses(lines, **options)

    def score(self, source: list[str], target: list[str], **options) -> list[Score]:
        """Log-probability of each target line given its source line (options: `Translator.score`)."""
        return self.translator.score(source, target, **options)

    def attention(self, source: str | Document, target: str | None = None) -> dict[str, Any]:
        """What the model looks at while it reads one sentence and writes its translation, or reads a document.

        See `flaxnmt.looking`: `of_sentence` for a line, with its translation (the model's own where none is
        given), `of_document` for a document.
        """
        if isinstance(source, Document):
            return looking.of_document(self.translator, source)
        target = self.translate([source])[0] if target is None else target
        return looking.of_sentence(self.translator, source, target)

    def gates(
        self, source: list[str], target: list[str], budget: float | tuple[float, ...] | None = None
    ) -> list[dict[str, Any]]:
        """How much each gate lets through for these lines and their translations (`flaxnmt.looking.of_gates`)."""
        return looking.of_gates(self.translator, source, target, budget)


def save_config(directory: Path, config: Config) -> None:
    """Writes the configuration of a run."""
    write_json(directory / CONFIG, to_dict(config))
