"""BERT large under budgets of computation, the recipe of Bapna et al. 2020, section 5.

Noise on gates grows for 300k of the 1M updates; levels are not in the paper. Gates stand in pre-norm layers.

Command: python -m experiments.train cct_bert_large --run runs/cct-bert --train a.txt b.txt --dev dev.txt
Hardware: 64 TPU v3 chips (python -m tpu.plan cct_bert_large --slice v3-128 --model.scan --model.remat).
"""

import dataclasses

from experiments.configs.bert_large import config as bert_large
from flaxnmt.config import BudgetLossConfig
from flaxnmt.models.config import BudgetConfig

config = bert_large.replace(
    model=dataclasses.replace(
        bert_large.model, norm="pre", budget=BudgetConfig(encoder=(1.0, 0.75, 0.5, 0.25))
    ),
    training=dataclasses.replace(bert_large.training, budget=BudgetLossConfig(noise_steps=300_000)),
)
