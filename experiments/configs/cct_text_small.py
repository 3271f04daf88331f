"""The small Transformer of `text_small` under budgets of computation (Bapna et al. 2020), for text of your own.

Gates are those of `cct_multi30k_en_de`, for the same reasons; their control networks have the default size, an eighth.

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
    model=dataclasses.replace(
        text_small.model,
        budget=BudgetConfig(encoder=LEVELS, decoder=LEVELS, control_scale=5.0, normed_outputs=False),
    ),
    # The best development score is that of the full budget, and may come before gates are decided: so budgets and noise are
    # at their end well before a run stops for want of better ones, and the last checkpoints count.
    training=dataclasses.replace(
        text_small.training,
        average="last",
        keep_best=1,
        budget=BudgetLossConfig(
            weight=0.35,
            normaliser="squared",
            count="decided",
            full_share=0.25,
            begin=1000,
            fall_steps=4000,
            noise_steps=4000,
        ),
    ),
)
