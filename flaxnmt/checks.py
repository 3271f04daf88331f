"""What no data can make a model of: settings that do not fit together, said before anything is read."""

import math
from dataclasses import replace
from typing import Any

from flaxnmt.config import BudgetLossConfig, Config, TrainingConfig
from flaxnmt.config_io import differences, flatten
from flaxnmt.errors import ConfigError
from flaxnmt.models import build
from flaxnmt.models.config import (
    BudgetConfig,
    DecoderOnlyConfig,
    DocumentConfig,
    EncoderOnlyConfig,
    EncodingConfig,
    Seq2SeqConfig,
)
from flaxnmt.models.flops import encoder_flops

WORDS = 32
"""Of a sentence, where work is compared before there are data."""

COUNTS = (
    *(
        f"data.{name}"
        for name in ("batch_tokens", "buckets", "length_multiple", "max_length", "max_sentences")
    ),
    *(f"data.{name}" for name in ("rows_multiple", "stride", "tokenizer.vocab_size")),
    *(
        f"training.{name}"
        for name in (
            "accumulate",
            "average_count",
            "checkpoint_every",
            "evaluate_every",
            "keep_last",
            "log_every",
            "loss_chunk",
        )
    ),
    *(f"training.{name}" for name in ("max_bad_steps", "max_epochs", "max_steps", "patience")),
    "training.budget.noise_steps",
    *(f"decoding.{name}" for name in ("batch_size", "beam_size")),
    *("model.d_model", "model.budget.control_hidden"),
    *(f"model.{stack}.{name}" for stack in ("encoder", "decoder") for name in ("layers", "feed_forward")),
)
"""Fields that count something of which there is at least one."""

NOT_NEGATIVE = (
    *(f"training.budget.{name}" for name in ("begin", "weight", "noise_start", "noise_end")),
    *("training.keep_best", "training.evaluate_translations"),
    *(f"optimizer.{name}" for name in ("learning_rate", "factor", "warmup_steps", "weight_decay")),
    *(f"decoding.{name}" for name in ("max_length_factor", "max_length_extra", "min_length")),
    "data.workers",
)
"""Fields of which there may be none, but not less."""


def check_ranges(config: Config) -> None:
    """Refuses numbers of which nothing, or nonsense, would be made long after the start.

    Raises:
      ConfigError: with the flag.
    """
    values = flatten(config)
    for name in COUNTS:
        # A model of one stack lacks the fields of the other.
        if (value := values.get(name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: give at least 1")
    for name in NOT_NEGATIVE:
        # What is no number is not above 0 either.
        if (value := values.get(name)) is not None and not 0 <= value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: give 0 or more")
    if not 0 < (scale := config.model.budget.control_scale) < math.inf:
        raise ConfigError(f"--model.budget.control-scale {scale:g}: give more than 0")
    if not 0 < (share := config.training.budget.full_share) < 1:
        raise ConfigError(f"--training.budget.full-share {share:g}: give more than 0 and less than 1")
    for name in ("b1", "b2"):
        if not 0 <= (value := values[f"optimizer.{name}"]) < 1:
            raise ConfigError(f"--optimizer.{name} {value:g}: a decay of at least 0 and below 1")
    if not 0 <= config.training.seed < 2**31:
        raise ConfigError(f"--seed {config.training.seed}: give 0 to {2**31 - 1}")
    if not 0 <= config.training.label_smoothing < 1:
        raise ConfigError(
            f"--training.label-smoothing {config.training.label_smoothing}: a share of at least 0 and below 1"
        )
    ema = config.training.ema
    if ema is not None and not 0 < ema < 1:
        raise ConfigError(f"--training.ema {ema}: a decay above 0 and below 1, such as 0.999")
    noise, until = config.training.budget, (config.training.budget.noise_steps, config.training.max_steps)
    if config.model.budgets and noise.noise_start != noise.noise_end and until == (None, None):
        raise ConfigError(
            "noise on gates grows without an end: give --training.budget.noise-steps or --max-steps"
        )
    last = min((steps for steps in until if steps is not None), default=None)
    if config.model.budgets and last is not None and noise.begin >= last:
        raise ConfigError(
            f"--training.budget.begin {noise.begin}: give less than --training.budget.noise-steps and --max-steps, here {last}"
        )
    for flag, update in (("fall-steps", noise.fall_steps), ("decide-from", noise.decide_from)):
        if config.model.budgets and update is not None and update <= noise.begin:
            raise ConfigError(
                f"--training.budget.{flag} {update}: give more than --training.budget.begin, here {noise.begin}"
            )
    end = config.training.max_steps
    for flag, update in (("fall-steps", noise.fall_steps), ("decide-from", noise.decide_from)):
        if config.model.budgets and None not in (update, end) and update >= end:
            raise ConfigError(f"--training.budget.{flag} {update}: give less than --max-steps, here {end}")
    coverage = config.data.tokenizer.character_coverage
    if not 0 < coverage <= 1:
        raise ConfigError(f"--data.tokenizer.character-coverage {coverage}: a share above 0 and up to 1")


def check_limits(training: TrainingConfig) -> None:
    """Refuses a training that would never end, or whose best update nobody would know.

    Raises:
      ConfigError: with the flags.
    """
    limits = (training.max_steps, training.max_epochs, training.max_minutes, training.patience)
    if all(limit is None for limit in limits):
        raise ConfigError(
            "training has no end: give --max-steps, --max-epochs, --max-minutes or --training.patience"
        )
    minutes = training.max_minutes
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"--max-minutes {minutes:g}: give more than 0")
    if training.metric != "loss" and training.evaluate_translations == 0:
        raise ConfigError(
            f"training.metric {training.metric} needs translations: "
            "give --training.metric loss, or more than 0 --training.evaluate-translations"
        )


def check_used(config: Config) -> None:
    """Refuses options that would change nothing: the model would be trained as if they had not been given.

    Raises:
      ConfigError: with the flags, and that which makes use of them.
    """
    model = config.model
    if isinstance(model, EncodingConfig) and not model.is_document:
        give = "give --model.document.layers, such as sentence, or " * isinstance(model, Seq2SeqConfig)
        hint = f"the model reads no documents: {give}leave it out"
        _refuse("model.document", DocumentConfig(), model.document, hint)
    if not model.budgets:
        levels = " or ".join(f"--model.budget.{part} 1 0.5" for part in model.parts)
        hint = f"the model has no gates: give such as {levels}, or leave it out"
        _refuse("model.budget", BudgetConfig(), model.budget, hint)
        _refuse("training.budget", BudgetLossConfig(), config.training.budget, hint)
    if config.data.answered and getattr(model, "head", None) != "spans":
        raise ConfigError("--data.answered: no questions are read: give --model.head spans, or leave it out")
    given, defaults = flatten(config), flatten(Config(model=type(model)()))
    for name, (used, hint) in _uses(config).items():
        if given[name] != defaults[name] and not used:
            raise ConfigError(f"--{name.replace('_', '-')} changes nothing here: {hint}, or leave it out")
    combine = model.encoder.combine if isinstance(model, EncodingConfig) else "sum"
    if combine != "sum" and len(model.encoder_branches) == 1:
        raise ConfigError(
            f"--model.encoder.combine {combine}: the model has one encoder: give several with --model.encoder.branches, "
            "such as dual, or leave it out"
        )


def _uses(config: Config) -> dict[str, tuple[bool, str]]:
    """Fields that some models alone use: (whether this one does, what to give where one that does is meant)."""
    model = config.model
    translates = isinstance(model, Seq2SeqConfig) or getattr(model, "task", None) == "translation"
    uses = {
        "model.relative_clip": (model.positions == "shaw", "give --model.positions shaw"),
        "model.relative_values": (model.positions == "shaw", "give --model.positions shaw"),
        "model.attention_threshold": (
            model.attention_weights == "threshold",
            "give --model.attention-weights threshold",
        ),
        "training.label_smoothing": (
            translates or not config.training.label_smoothing,
            "no other loss than that of translation is smoothed; train a model of translation",
        ),
        "model.budget.branches": (
            isinstance(model, EncodingConfig)
            and bool(model.budget.encoder)
            and len(model.encoder_branches) > 1,
            "it says which of several encoders have gates; give --model.encoder.branches, such as dual, and "
            "--model.budget.encoder 1 0.5",
        ),
        "data.paragraphs": (translates, "texts have documents alone; train a model of translation"),
    }
    if isinstance(model, EncodingConfig):
        kinds = {kind for branch in model.encoder_branches for kind in branch}
        for name, kind in (
            *((f"expansion.{name}", "static_expansion") for name in ("vectors", "enrichment", "by_length")),
            *((name, "lstm") for name in ("forget_bias", "recurrence_dropout")),
            ("convolution", "convs2s"),
        ):
            uses[f"model.encoder.{name}"] = (
                kind in kinds,
                f"give a branch of {kind} to --model.encoder.branches",
            )
    if isinstance(model, DecoderOnlyConfig):
        uses["model.prefix"] = (translates, "texts have no source; give --model.task translation")
    if isinstance(model, EncoderOnlyConfig):
        uses["model.classes"] = (
            model.head in ("classes", "labels"),
            "give --model.head classes, or labels",
        )
    return uses


def _refuse(section: str, default: Any, given: Any, hint: str) -> None:
    changed = [line.split(":")[0].replace("_", "-") for line in differences(default, given)]
    if changed:
        raise ConfigError(f"{', '.join(f'--{section}.{name}' for name in changed)}: {hint}")


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
        rates["encoder.recurrence_dropout"] = model.encoder.recurrence_dropout
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
    """Refuses layers of an encoder that cannot be built."""
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
