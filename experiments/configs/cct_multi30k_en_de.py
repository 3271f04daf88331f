"""The Transformer of `multi30k_en_de` under budgets of computation (Bapna et al. 2020).

Training is short, so the decisions of gates count, not their noisy values, and control networks learn five times as fast as
the rest: else gates are still half open at its end. Outputs are not normalised, which a model of this size generalises better
without. Control networks are smaller than an eighth of it: all of them, and the norms that only gates need, cost 3%. Every
level is drawn as often as the whole, where the paper draws the whole for half of the sequences: a half needs more of so few.
The loss of a budget is divided by its square: what a quarter needs to be kept would press on a half more than it needs.

Command: python -m experiments.train cct_multi30k_en_de --run runs/cct --train train.en train.de --dev dev.en dev.de
         --test test.en test.de
         flaxnmt translate --run runs/cct --budget 0.5
Hardware and time: 2 CPU cores, about 1.2 times as long an update as `multi30k_en_de`.
"""

import dataclasses

from experiments.configs.multi30k_en_de import config as multi30k_en_de
from flaxnmt.config import BudgetLossConfig
from flaxnmt.models.config import BudgetConfig

LEVELS = (1.0, 0.75, 0.5, 0.25)

config = dataclasses.replace(
    multi30k_en_de,
    model=dataclasses.replace(
        multi30k_en_de.model,
        budget=BudgetConfig(
            encoder=LEVELS, decoder=LEVELS, control_hidden=8, control_scale=5.0, normed_outputs=False
        ),
    ),
    training=dataclasses.replace(
        multi30k_en_de.training,
        budget=BudgetLossConfig(weight=0.35, normaliser="squared", count="decided", full_share=0.25),
    ),
)
