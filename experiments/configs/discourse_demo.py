"""Sentence model on the embedded English-German corpus: what `make demo` trains first.

It cannot know what its sentences do not say: contrastive accuracy is chance, whatever it learns else.

Command: python -m experiments.train discourse_demo --run runs/demo
Hardware and time: 2 CPU cores, about a minute and a half.
"""

from flaxnmt.config import (
    Config,
    DataConfig,
    DecodingConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from flaxnmt.models.config import DecoderConfig, EncoderConfig, MultiHead, Seq2SeqConfig

config = Config(
    model=Seq2SeqConfig(
        d_model=64,
        encoder=EncoderConfig(layers=2, attention=MultiHead(4), feed_forward=128),
        decoder=DecoderConfig(layers=2, attention=MultiHead(4), feed_forward=128),
        # The corpus is generated, so that a model hardly sees a sentence twice.
        dropout=0.0,
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
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=300),
    training=TrainingConfig(
        max_steps=1000, label_smoothing=0.0, evaluate_every=500, evaluate_translations=200, keep_last=1
    ),
    decoding=DecodingConfig(length_penalty=1.0),
)
