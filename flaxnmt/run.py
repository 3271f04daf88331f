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
import jax.numpy as jnp
import numpy as np

from flaxnmt.config import Config
from flaxnmt.config_io import from_dict, to_dict
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.training.export import read_parameters
from flaxnmt.training.metrics import read_metrics
from flaxnmt.translation import Hypothesis, Score, Translator

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
      ConfigError: if the heads of an attention do not divide the model dimension, a rate of dropout is none,
        or vocabularies differ and embeddings are tied.
    """
    model, sizes = config.model, (vocabularies.source.vocab_size, vocabularies.target.vocab_size)
    for name, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        if model.d_model % part.attention.heads:
            heads = part.attention.heads
            raise ConfigError(
                f"{heads} heads do not divide d_model {model.d_model}: change --model.{name}.attention.heads"
            )
    for name in ("dropout", "attention_dropout", "hidden_dropout"):
        rate = getattr(model, name)
        if rate is not None and not 0 <= rate < 1:
            raise ConfigError(f"--model.{name} {rate}: a rate of dropout is at least 0 and below 1")
    if model.tie == "all" and not vocabularies.shared:
        raise ConfigError(
            "--model.tie all needs one vocabulary: give --model.tie target, or a shared tokenizer"
        )
    return Seq2Seq(model, *sizes)


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
        return Vocabularies.load(self.directory / TOKENIZER)

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
        return Translator(self.model, jax.device_put(self.params), self.vocabularies, self.config.decoding)

    def translate(self, lines: list[str], **options) -> list[str]:
        """The best translation of each line (options: `Translator.hypotheses`)."""
        return self.translator.translate(lines, **options)

    def hypotheses(self, lines: list[str], **options) -> list[list[Hypothesis]]:
        """The best outputs of each line with their scores (options: `Translator.hypotheses`)."""
        return self.translator.hypotheses(lines, **options)

    def score(self, source: list[str], target: list[str]) -> list[Score]:
        """Log-probability of each target line given its source line."""
        return self.translator.score(source, target)

    def attention(self, source: str, target: str | None = None) -> dict[str, Any]:
        """Attention weights of one sentence and its translation (the model's own where none is given).

        Returns:
          `source` and `target` pieces, `encoder` [layers, H, S, S], `decoder` [layers, H, T, T] and `cross`
          [layers, H, T, S]; row t of the last two is what produced piece t of the target.
        """
        target = self.translate([source])[0] if target is None else target
        pair = [tokenizer.encode([text])[0] + [3] for tokenizer, text in
                zip((self.vocabularies.source, self.vocabularies.target), (source, target))]  # fmt: skip
        ids = [jnp.asarray([tokens], jnp.int32) for tokens in pair]

        def capture(model, source, target):
            encoded, encoder = model.encode(source, capture=True)
            _, decoder = model.decode(encoded, target, capture=True)
            return encoder.maps["encoder"], decoder.maps["decoder"]

        encoder, decoder = self.model.apply({"params": self.translator.params}, *ids, method=capture)
        if not self.config.model.scan:
            encoder, decoder = np.stack(encoder), tuple(np.stack(maps) for maps in zip(*decoder))
        names = [[tokenizer.pieces[i] for i in tokens] for tokenizer, tokens in
                 zip((self.vocabularies.source, self.vocabularies.target), pair)]  # fmt: skip
        own, cross = decoder
        maps = {"encoder": encoder, "decoder": own, "cross": cross}
        return {"source": names[0], "target": names[1]} | {
            name: np.asarray(m)[:, 0] for name, m in maps.items()
        }


def save_config(directory: Path, config: Config) -> None:
    """Writes the configuration of a run."""
    write_json(directory / CONFIG, to_dict(config))
