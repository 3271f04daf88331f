"""Numbers out of their range, trainings without an end and options that change nothing, said before anything is read."""

import math
from typing import Any

from flaxnmt.config import BudgetLossConfig, Config, TrainingConfig
from flaxnmt.config_io import differences, flatten
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import (
    BudgetConfig,
    DecoderOnlyConfig,
    DocumentConfig,
    EncoderOnlyConfig,
    EncodingConfig,
    Seq2SeqConfig,
)

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
        several = "the model has one encoder; give several with --model.encoder.branches, such as dual"
        uses["model.encoder.combine"] = len(model.encoder_branches) > 1, several
        uses["model.encoder.final_norm"] = (
            len(model.encoder_branches) > 1 and model.norm == "pre",
            several if model.norm == "pre" else "post-norm layers have no other norm; give --model.norm pre",
        )
        for name, kind in (
            *((f"expansion.{name}", "static_expansion") for name in ("vectors", "enrichment", "by_length")),
            *((name, "lstm") for name in ("forget_bias", "recurrence_dropout")),
            ("transform_dropout", "fnet"),
            *((name, "convs2s") for name in ("convolution", "convolution_skip_scale")),
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
