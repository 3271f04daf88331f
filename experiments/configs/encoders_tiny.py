"""Heterogeneous encoders (Hu et al. 2023) at a size that two CPU cores bear: d 128, 4 heads, ffn 256, 2 decoder layers.

Encoders have the paper's numbers of layers; any of them, side by side, by --model.encoder.branches, such as
`attention:6 static_expansion:12`, or by the paper's names, such as `dual`. Of the paper's recipe it differs where a training
of minutes needs it: updates in place of epochs, a rate that is warmed up sooner, and dropout between blocks alone.

Command: python -m experiments.train encoders_tiny --model.encoder.branches dual --run runs/dual --train train.en train.de
         --dev dev.en dev.de --test test.en test.de
Hardware and time: 2 CPU cores, about five minutes.
Sweep: python -m experiments.sweep encoders --runs DIR --data DIR
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
        d_model=128,
        encoder=EncoderConfig(attention=MultiHead(4), feed_forward=256),
        decoder=DecoderConfig(layers=2, attention=MultiHead(4), feed_forward=256),
        dropout=0.1,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    ),
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=4000), max_length=64, buckets=3),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=4e-3, warmup_steps=300),
    training=TrainingConfig(
        max_steps=600,
        evaluate_every=600,
        metric="loss",
        evaluate_translations=0,
        keep_last=1,
        average="last",
        average_count=1,
    ),
    decoding=DecodingConfig(beam_size=4, length_penalty=1.0),
)
