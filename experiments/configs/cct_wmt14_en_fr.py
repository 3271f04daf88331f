"""Transformer big under budgets of computation, WMT'14 English-French, the recipe of Bapna et al. 2020.

All dropout 0.1, 32k shared pieces, the schedule (3.0, 40K), 300k updates of 250k tokens, four parts a feed-forward
network, noise on gates growing over the whole training, the last checkpoint. Levels and end of the noise are not in the
paper. Ours beside it: bfloat16, a norm of what control networks read, and no loss for what the whole uses above a budget of 1,
which are the control networks themselves.

Command: python -m experiments.train cct_wmt14_en_fr --run runs/cct --train tfds:wmt14_translate/fr-en/en_to_fr
         --dev tfds:wmt14_translate/fr-en/en_to_fr:validation --test tfds:wmt14_translate/fr-en/en_to_fr:test
Hardware: 32 TPU v3 chips, with --model.remat (python -m tpu.plan cct_wmt14_en_fr --slice v3-64 --model.scan
          --model.remat).
Score: the paper's is tokenised BLEU with case, the `tokenized_cased_bleu` of `flaxnmt evaluate --language fr`, which stands
       beside that of sacreBLEU.
"""

import dataclasses

from experiments.configs.transformer_big import config as transformer_big
from flaxnmt.models.config import BudgetConfig

LEVELS = (1.0, 0.75, 0.5, 0.25)

config = dataclasses.replace(
    transformer_big,
    model=dataclasses.replace(transformer_big.model, budget=BudgetConfig(encoder=LEVELS, decoder=LEVELS)),
    training=dataclasses.replace(transformer_big.training, average_count=1),
)
