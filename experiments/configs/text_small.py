"""A small Transformer for text of your own: 20k to 500k sentence pairs.

Command: python -m experiments.train text_small --run runs/mine --train train.en train.de --dev dev.en dev.de
Hardware and time: 2 CPU cores, some hours; minutes on one accelerator.
"""

from flaxnmt.config import Config, DataConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from flaxnmt.models.config import PRESETS

config = Config(
    model=PRESETS["small"],
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=8000)),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=1e-3, warmup_steps=2000),
    training=TrainingConfig(max_steps=20000, evaluate_every=500, patience=10, average="best", keep_best=5),
)
