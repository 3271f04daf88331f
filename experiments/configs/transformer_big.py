"""Transformer big of Vaswani et al. 2017 (table 3), pre-norm, bfloat16, for pods.

Command: python -m experiments.train transformer_big --run runs/big --train tfds:wmt14_translate/fr-en/en_to_fr
         --dev tfds:wmt14_translate/fr-en/en_to_fr:validation
Hardware: 32 TPU v3 chips or more. Expected: the paper's 41.8 tokenised BLEU on newstest2014 En-Fr after 300k updates.
"""

import dataclasses

from flaxnmt.config import Config, DataConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from flaxnmt.models.config import PRESETS

config = Config(
    model=dataclasses.replace(PRESETS["big"], dropout=0.1, compute_dtype="bfloat16"),
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=32000), batch_tokens=262144, rows_multiple=128),
    optimizer=OptimizerConfig(schedule="noam", factor=3.0, warmup_steps=40000),
    training=TrainingConfig(
        max_steps=300000, evaluate_every=5000, keep_last=10, average="last", average_count=10
    ),
)
