"""BERT base (Devlin et al. 2019): 12 layers, 768, 12 heads, 3072; 1M updates of 256 sequences of 512 tokens.

Masked language modelling alone: the paper's second task, whether two texts follow each other, is left out.

Command: python -m experiments.train bert_base --run runs/bert --train a.txt b.txt --dev dev.txt
Hardware and time: 16 TPU chips, four days in the paper.
"""

from flaxnmt.config import Config, DataConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from flaxnmt.models.config import EncoderConfig, EncoderOnlyConfig, MultiHead

config = Config(
    model=EncoderOnlyConfig(
        d_model=768,
        encoder=EncoderConfig(layers=12, attention=MultiHead(12), feed_forward=3072),
        norm="post",
        positions="learned",
        max_positions=512,
        activation="gelu",
        biases=True,
        hidden_dropout=0.0,
        compute_dtype="bfloat16",
    ),
    data=DataConfig(
        tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=30522, lowercase=True),
        batch_tokens=256 * 512,
        max_length=512,
        rows_multiple=256,
    ),
    optimizer=OptimizerConfig(
        name="adamw",
        b2=0.999,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        schedule="linear",
        learning_rate=1e-4,
        warmup_steps=10_000,
    ),
    training=TrainingConfig(
        max_steps=1_000_000, evaluate_every=10_000, metric="loss", label_smoothing=0.0, loss_chunk=None
    ),
)
