"""BERT large (Devlin et al. 2019) in the recipe of Bapna et al. 2020: 1M updates of 1024 sequences of 512 tokens.

24 layers, 1024, 16 heads, 4096.

Command: python -m experiments.train bert_large --run runs/bert --train a.txt b.txt --dev dev.txt
Hardware: 64 TPU v3 chips (python -m tpu.plan bert_large --slice v3-128 --model.scan --model.remat).
"""

import dataclasses

from experiments.configs.bert_base import config as bert_base
from flaxnmt.models.config import EncoderConfig, MultiHead

config = bert_base.replace(
    model=dataclasses.replace(
        bert_base.model,
        d_model=1024,
        encoder=EncoderConfig(layers=24, attention=MultiHead(16), feed_forward=4096),
    ),
    data=dataclasses.replace(bert_base.data, batch_tokens=1024 * 512, rows_multiple=1024),
)
