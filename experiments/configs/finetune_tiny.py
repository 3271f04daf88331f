"""Fine-tuning of the encoder of `masked_tiny` (Devlin et al. 2019, section 4); the head is to be given.

Command: python -m experiments.train finetune_tiny --run runs/sst2 --init-from runs/masked --train train.tsv
         --dev dev.tsv --test test.tsv --model.head classes --training.metric accuracy
Hardware and time: 2 CPU cores, some minutes. The sweep `bert` has other tasks, and the rates beside this one.
"""

import dataclasses

from experiments.configs.masked_tiny import config as masked_tiny

config = masked_tiny.replace(
    model=dataclasses.replace(masked_tiny.model, head="classes", dropout=0.1),
    data=dataclasses.replace(masked_tiny.data, batch_tokens=1024, buckets=4),
    optimizer=dataclasses.replace(
        masked_tiny.optimizer, schedule="linear", learning_rate=3e-4, warmup_steps=100
    ),
    training=dataclasses.replace(masked_tiny.training, max_steps=1500, evaluate_every=500, metric="accuracy"),
)
