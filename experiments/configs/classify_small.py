"""Classes of texts by the encoder of `masked_small`, which is to be trained before (Devlin et al. 2019, section 4).

A set is a TSV file whose first line names its columns, JSON lines, or a prepared set such as tfds:glue/sst2.

Command: python -m experiments.train classify_small --run runs/sst2 --init-from runs/masked --train train.tsv
         --dev dev.tsv --test test.tsv --training.metric accuracy
Hardware and time: 2 CPU cores, some minutes. The usual grid: rates of 5e-5 to 2e-5, two to four epochs, batches of 16
or 32 rows; a small encoder takes larger ones. Without --init-from it starts from nothing.
"""

import dataclasses

from experiments.configs.masked_small import config as masked_small

config = masked_small.replace(
    model=dataclasses.replace(masked_small.model, head="classes", dropout=0.1),
    data=dataclasses.replace(masked_small.data, batch_tokens=2048, buckets=4),
    optimizer=dataclasses.replace(
        masked_small.optimizer, schedule="linear", learning_rate=1e-4, warmup_steps=100
    ),
    training=dataclasses.replace(
        masked_small.training, max_steps=1500, evaluate_every=250, metric="accuracy"
    ),
)
