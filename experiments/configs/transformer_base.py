"""Transformer base of Vaswani et al. 2017 ("Attention Is All You Need", table 3) for WMT-sized corpora.

Command: python -m experiments.train transformer_base --run runs/base --train tfds:wmt14_translate/de-en/en_to_de
         --dev tfds:wmt14_translate/de-en/en_to_de:validation
Hardware: 16 TPU v5e chips. Expected: sacreBLEU about 26 to 27 on newstest2014 (paper: 27.3 tokenised BLEU).
"""

import dataclasses

from flaxnmt.config import Config, DataConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from flaxnmt.models.config import PRESETS

config = Config(
    model=dataclasses.replace(PRESETS["base"], norm="post", attention_dropout=0.0, hidden_dropout=0.0),
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=32768), batch_tokens=65536, rows_multiple=64),
    optimizer=OptimizerConfig(schedule="noam", factor=1.0, warmup_steps=4000),
    training=TrainingConfig(
        max_steps=100000, evaluate_every=1000, keep_last=5, average="last", average_count=5
    ),
)
