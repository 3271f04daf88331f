"""The small Transformer of `text_small` under budgets of computation (Bapna et al. 2020), for text of your own.

Command: python -m experiments.train cct_text_small --run runs/cct --train train.en train.de --dev dev.en dev.de
         flaxnmt translate --run runs/cct --budget 0.5
         python -m experiments.benchmarks.budgets --run runs/cct
Hardware and time: 2 CPU cores, about a day; minutes on one accelerator.
"""

import dataclasses

from experiments.configs.cct_multi30k_en_de import LEVELS
from experiments.configs.text_small import config as text_small
from flaxnmt.config import BudgetLossConfig
from flaxnmt.models.config import BudgetConfig

config = dataclasses.replace(
    text_small,
    model=dataclasses.replace(text_small.model, budget=BudgetConfig(encoder=LEVELS, decoder=LEVELS)),
    # The best development score is that of the full budget, and may come before gates are decided: so noise is at its end
    # well before a run stops for want of better ones, and the last checkpoints count.
    training=dataclasses.replace(
        text_small.training,
        average="last",
        keep_best=1,
        budget=BudgetLossConfig(count="decided", noise_steps=4000),
    ),
)
