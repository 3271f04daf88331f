"""A tiny Transformer for text of your own, to see within minutes whether everything works.

Command: python -m experiments.train text_tiny --run runs/mine --train train.en train.de --dev dev.en dev.de
Hardware and time: 2 CPU cores, half an hour.
"""

from flaxnmt.config import Config, DataConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from flaxnmt.models.config import PRESETS

config = Config(
    model=PRESETS["tiny"],
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=4000)),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=2e-3, warmup_steps=1000),
    training=TrainingConfig(max_steps=5000, evaluate_every=250, patience=10, keep_best=5, average="best"),
)
