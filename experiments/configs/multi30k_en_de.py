"""Multi30k English-German with the tiny Transformer of Wu et al. 2021 ("Good for Misconceived Reasons").

The public recipe (github.com/LividWo/Revisit-MMT, transformer_tiny): 4+4 layers, d 128, ffn 256, 4 heads, shared
embeddings, dropout 0.3, learning rate 5e-3 with 2000 updates of warm-up and inverse square root, 2 x 4096 tokens
an update, 8000 updates, mean of the last 10 checkpoints, beam 5, 10k joint BPE; 41.02 tokenised lower-cased BLEU.

Command: python -m experiments.train multi30k_en_de --run runs/multi30k --train train.en train.de --dev dev.en dev.de
         --test test.en test.de
Hardware and time: 2 CPU cores, two to three hours.
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
from flaxnmt.models.config import PRESETS

config = Config(
    model=dataclasses.replace(PRESETS["tiny"], dropout=0.3, attention_dropout=0.0, hidden_dropout=0.0),
    data=DataConfig(
        tokenizer=TokenizerConfig(vocab_size=10000), batch_tokens=4096, buckets=6, length_multiple=4
    ),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=2000),
    training=TrainingConfig(
        max_steps=8000,
        accumulate=2,
        evaluate_every=250,
        # About an epoch apart, as the recipe's checkpoints are.
        checkpoint_every=50,
        average="last",
        average_count=10,
    ),
    decoding=DecodingConfig(beam_size=5, length_penalty=1.0),
)
