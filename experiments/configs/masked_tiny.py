"""A masked language model (Devlin et al. 2019) of a size for sweeps on two cores: 4 layers, 128, 4 heads, 512.

Command: python -m experiments.train masked_tiny --run runs/masked --train a.txt b.txt --dev dev.txt
Hardware and time: 2 CPU cores, some minutes.
"""

import dataclasses

from experiments.configs.masked_small import config as masked_small
from flaxnmt.models.config import EncoderConfig, MultiHead

config = masked_small.replace(
    model=dataclasses.replace(
        masked_small.model,
        d_model=128,
        encoder=EncoderConfig(layers=4, attention=MultiHead(4), feed_forward=512),
    ),
    data=dataclasses.replace(masked_small.data, batch_tokens=2048),
    optimizer=dataclasses.replace(masked_small.optimizer, learning_rate=2e-3, warmup_steps=240),
    training=dataclasses.replace(masked_small.training, max_steps=2400, evaluate_every=400),
)
