"""Sentence model on the embedded English-German corpus: what `make demo` trains.

Command: python -m experiments.train discourse_demo --run runs/demo
Hardware and time: 2 CPU cores, about five minutes.
"""

import dataclasses

from flaxnmt.config import (
    Config,
    DataConfig,
    DecodingConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from flaxnmt.models.config import PRESETS, DecoderConfig, EncoderConfig, MultiHead

config = Config(
    model=dataclasses.replace(
        PRESETS["tiny"],
        encoder=EncoderConfig(layers=2, attention=MultiHead(4), feed_forward=256),
        decoder=DecoderConfig(layers=2, attention=MultiHead(4), feed_forward=256),
    ),
    data=DataConfig(
        train=("discourse:train:3000",),
        dev=("discourse:dev:60",),
        test=("discourse:test:60",),
        tokenizer=TokenizerConfig(kind="word", vocab_size=2000),
        batch_tokens=2048,
        buckets=3,
        length_multiple=4,
    ),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=2e-3, warmup_steps=300),
    training=TrainingConfig(max_steps=1200, evaluate_every=300, evaluate_translations=200, keep_last=1),
    decoding=DecodingConfig(length_penalty=1.0),
)
