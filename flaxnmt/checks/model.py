"""What no data can make a model of: settings of it that do not fit together, said before anything is read."""

import math
from dataclasses import replace

from flaxnmt.config import Config
from flaxnmt.errors import ConfigError
from flaxnmt.models import build
from flaxnmt.models.config import (
    BudgetConfig,
    DecoderOnlyConfig,
    EncoderOnlyConfig,
    EncodingConfig,
    Seq2SeqConfig,
)
from flaxnmt.models.flops import encoder_flops

WORDS = 32
"""Of a sentence, where work is compared before there are data."""


def check_model(config: Config) -> None:
    """Refuses what no vocabulary makes a model of.

    Raises:
      ConfigError: if the heads of an attention do not divide the model dimension, a rate of dropout is none,
        sequences are longer than their learned positions, budgets are of a stack that there is not, the branches of an
        encoder or the parts of a model of documents do not fit together, or an encoder alone is to read documents, of
        which no task has batches.
    """
    model = config.model
    parts = [part for part in ("encoder", "decoder") if hasattr(model, part)]
    heads = {f"{part}.attention.heads": getattr(model, part).attention.heads for part in parts}
    if model.is_document:
        heads["document.context-heads"] = model.document.context_heads
    for name, count in heads.items():
        if count < 1 or model.d_model % count:
            raise ConfigError(f"{count} heads do not divide d_model {model.d_model}: change --model.{name}")
    rates = {name: getattr(model, name) for name in ("dropout", "attention_dropout", "hidden_dropout")}
    if isinstance(model, EncodingConfig):
        for name in ("recurrence_dropout", "transform_dropout"):
            rates[f"encoder.{name}"] = getattr(model.encoder, name)
    for name, rate in rates.items():
        if rate is not None and not 0 <= rate < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--model.{flag} {rate}: a rate of dropout is at least 0 and below 1")
    for part in parts:
        size = model.d_model // heads[f"{part}.attention.heads"]
        if model.positions == "rotary" and size % 2:
            raise ConfigError(
                f"--model.positions rotary turns pairs of features, and heads have {size}: change "
                f"--model.{part}.attention.heads or --model.d-model"
            )
    if model.relative_clip < 1:
        raise ConfigError(f"--model.relative-clip {model.relative_clip}: give a distance of at least 1")
    if isinstance(model, DecoderOnlyConfig) and model.window is not None and model.window < 1:
        raise ConfigError(f"--model.window {model.window}: a symbol sees itself, give at least 1")
    if "encoder" in parts:
        _check_encoder(model)
    _check_positions(config)
    previous = config.data.previous
    if previous < 0 or (config.data.previous_target and not previous):
        raise ConfigError(
            f"--data.previous {previous}: give the number of previous sentences, at least 1 with --data.previous-target"
        )
    if config.mesh.branches:
        count = len(getattr(model, "encoder_branches", ()))
        if not 1 < config.mesh.model <= count:
            raise ConfigError(
                f"--mesh.branches with --mesh.model {config.mesh.model}: the model has {max(count, 1)} "
                "(--model.encoder.branches); there are 2 groups of devices or more, each with an encoder"
            )
    if model.is_document:
        _check_document(config)
    elif config.data.boundaries != "true":
        raise ConfigError(
            f"--data.boundaries {config.data.boundaries} cuts documents, and this is a model of sentences: give "
            "--model.document.layers, or leave it out"
        )
    for part in ("encoder", "decoder"):
        if getattr(model.budget, part) and part not in model.parts:
            raise ConfigError(
                f"--model.budget.{part} {' '.join(f'{level:g}' for level in getattr(model.budget, part))}: the model has "
                f"no {part}; leave it out, or give --model.budget.{model.parts[0]}"
            )
    if isinstance(model, EncodingConfig) and (gated := model.budget.branches):
        count = len(model.encoder_branches)
        if len(set(gated)) != len(gated) or not all(1 <= place <= count for place in gated):
            raise ConfigError(
                f"--model.budget.branches {' '.join(map(str, gated))}: there are {count} encoders; give some of 1 to {count}"
            )
        _check_least(model)
    if model.budgets:
        # Gates that do not fit say so when layers are made.
        if "encoder" in parts:
            build.encoders(model)
        if isinstance(model, Seq2SeqConfig):
            build.decoder(model)
        if isinstance(model, DecoderOnlyConfig):
            build.causal_decoder(model)


def _check_least(model: EncodingConfig) -> None:
    """Refuses budgets below what encoders without gates use."""
    # Networks that control gates are no part of what levels are shares of.
    plain = replace(model, budget=BudgetConfig())
    work = [encoder_flops(plain, kinds, WORDS) for kinds in model.encoder_branches]
    gated = sum(work[place - 1] for place in model.budget.branches)
    share, level = 1 - gated / sum(work), min(model.budget.encoder, default=1)
    if level <= share:
        raise ConfigError(
            f"--model.budget.encoder {level:g}: encoders without gates, those that --model.budget.branches leaves out, "
            f"are {share:.2f} of the work on a sentence of {WORDS} words; give more, or gates to others"
        )


def _check_positions(config: Config) -> None:
    """Refuses learned positions of which a batch may reach more than have a vector of their own."""
    model, data = config.model, config.data
    if model.positions != "learned":
        return
    levels = model.document.levels if model.is_document else ("word",)
    reached = {}
    # Words of a target are counted within their sentence, whatever those of the source are.
    if "word" in levels or isinstance(model, Seq2SeqConfig):
        reached[f"--data.max-length {data.max_length}"] = data.max_length
    if model.is_document and not {"sentence", "paragraph"}.isdisjoint(levels):
        reached[f"--data.max-sentences {data.max_sentences}"] = data.max_sentences
    if model.is_document and "word" in levels and model.document.count == "sequence":
        words = data.max_sentences * data.max_length
        name = f"--data.max-sentences {data.max_sentences} times --data.max-length {data.max_length}, {words} words,"
        reached[name] = words
    if isinstance(model, DecoderOnlyConfig) and model.task == "translation":
        name = f"--data.max-length {data.max_length}, of source and target in one sequence, {2 * data.max_length} symbols,"
        reached = {name: 2 * data.max_length}
    for name, count in reached.items():
        if count > model.max_positions:
            raise ConfigError(
                f"{name} is more than the {model.max_positions} learned positions: raise --model.max-positions, or "
                "lower it"
            )


def _check_encoder(model: EncodingConfig) -> None:
    """Refuses layers of an encoder that cannot be built, or that would know no order of words where one is asked for."""
    kinds = {kind for branch in model.encoder_branches for kind in branch}
    if kinds == {"static_expansion"} and model.positions in ("shaw", "transformer_xl", "rotary"):
        raise ConfigError(
            f"--model.positions {model.positions} lies in attention, of which the encoder has none, and Static Expansion "
            "by itself knows no order of words: give --model.positions sinusoidal or learned, or another kind of layers "
            "beside it"
        )
    if model.encoder.final_norm == "sum" and model.norm == "post":
        raise ConfigError(
            "--model.encoder.final-norm sum with --model.norm post: layers end in norms, and there is none behind them; "
            "leave one of them out"
        )
    if "convs2s" in kinds and (model.encoder.convolution < 1 or model.encoder.convolution % 2 == 0):
        raise ConfigError(
            f"--model.encoder.convolution {model.encoder.convolution}: the kernel has a row in its middle, give an odd "
            "width"
        )
    scale = model.encoder.convolution_skip_scale
    if "convs2s" in kinds and not 0 < scale < math.inf:
        raise ConfigError(f"--model.encoder.convolution-skip-scale {scale:g}: give more than 0, such as 1")
    vectors = model.encoder.expansion.vectors
    if "static_expansion" in kinds and (not vectors or min(vectors) < 1):
        raise ConfigError(
            f"--model.encoder.expansion.vectors {' '.join(map(str, vectors))}: each layer has at least 1 vector"
        )


def _check_document(config: Config) -> None:
    """Refuses models of documents that cannot be built, or that would not be what was asked for."""
    model, kinds = config.model, config.model.document.layers
    if isinstance(model, EncoderOnlyConfig):
        flag = "--model.document.layers" if kinds else "--model.encoder.branches"
        raise ConfigError(
            f"{flag} makes an encoder of documents, and an encoder alone is trained on texts: name attention within the "
            "text alone, or train an encoder with a decoder"
        )
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
    data = config.data
    if data.overlap < 0 or data.max_sentences <= 2 * data.overlap:
        raise ConfigError(
            f"--data.max-sentences {data.max_sentences} with --data.overlap {data.overlap}: chunks would be all context "
            f"and score nothing; give at least {2 * max(data.overlap, 0) + 1} sentences, or less overlap"
        )
    for name in ("decoder_context", "decoder_heads"):
        if data.boundaries != "true" and getattr(model.document, name):
            raise ConfigError(
                f"--data.boundaries {data.boundaries} with --model.document.{name.replace('_', '-')}: the decoder's "
                "encodings are of sentences that end where they do: leave one of them out"
            )
    if model.document.decoder_heads and model.document.cross == "document":
        raise ConfigError(
            "--model.document.decoder-heads with --model.document.cross document: attention that sees all words of the "
            "document has no additional heads over its sentences: leave one of them out"
        )
    if model.document.t < 1:
        raise ConfigError(f"--model.document.t {model.document.t}: a word selects at least 1 sentence")
    if not model.document.levels:
        raise ConfigError("--model.document.levels is empty: name one, or give --model.positions none")
    if model.document.cross == "document" and (
        build.positions(model) is None or "sentence" not in model.document.levels
    ):
        raise ConfigError(
            "--model.document.cross document tells the decoder by its position which sentence to write: give "
            "--model.document.levels with sentence, and --model.positions sinusoidal or learned"
        )
    if model.document.cross == "document" and model.document.count == "unit":
        apart = model.positions == "learned" or model.document.roll_levels
        if "paragraph" not in model.document.levels or not apart:
            raise ConfigError(
                "--model.document.cross document with --model.document.count unit: sentences of different paragraphs would "
                "have the same position, and the decoder the same to write; give --model.document.count sequence, or levels "
                "with sentence and paragraph and --model.document.roll-levels or --model.positions learned"
            )
    if model.document.dispatched and (
        model.attention_weights != "soft" or (model.positions == "shaw" and model.relative_values)
    ):
        raise ConfigError(
            "--model.document.dispatched has no hard weights, and no distances that add to values: leave it out, or give "
            "--model.attention-weights soft and --model.no-relative-values"
        )
    if model.document.kernel == "splash":
        dropout = model.dropout if model.attention_dropout is None else model.attention_dropout
        if dropout or model.attention_weights != "soft" or model.positions in ("shaw", "transformer_xl"):
            raise ConfigError(
                "--model.document.kernel splash has no dropout on weights, no hard weights and no scores of distances: give "
                "--model.attention-dropout 0, and --model.positions sinusoidal, learned, rotary or none"
            )
    if config.data.previous:
        raise ConfigError(
            "--data.previous belongs to models of sentences and --model.document.layers makes one of documents: "
            "leave one of them out"
        )
