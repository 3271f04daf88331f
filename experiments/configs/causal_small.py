"""A language model of texts, of a size for two cores: the next symbol given those before it.

Texts are one file or several, a sentence or paragraph a line; blank lines end documents.

Command: python -m experiments.train causal_small --run runs/causal --train a.txt b.txt --dev dev.txt
Hardware and time: 2 CPU cores, about half an hour.
"""

import dataclasses

from experiments.configs.masked_small import config as masked_small
from flaxnmt.models.config import DecoderConfig, DecoderOnlyConfig, MultiHead

config = masked_small.replace(
    model=DecoderOnlyConfig(
        d_model=256,
        decoder=DecoderConfig(layers=4, attention=MultiHead(4), feed_forward=1024),
        activation="gelu",
        task="language",
    ),
    optimizer=dataclasses.replace(masked_small.optimizer, weight_decay=0.0, b2=0.98),
)
