"""Heterogeneous encoders on TED talks Galician-English, 10k pairs: the recipe of Hu et al. 2023 for small corpora.

Model and vocabulary are smaller than elsewhere in the paper; by how much is lost: d 256, 3 decoder layers, 4000 pieces.

Command: python -m experiments.train encoders_ted_gl_en --model.encoder.branches dual --run runs/dual
         --train tfds:ted_hrlr_translate/gl_to_en --dev tfds:ted_hrlr_translate/gl_to_en:validation
         --test tfds:ted_hrlr_translate/gl_to_en:test
Hardware: one accelerator, an hour. Expected: the best of two to five encoders 5.35 BLEU above Base (table 7);
which of them it is is lost.
"""

import dataclasses

from experiments.configs.encoders_iwslt15_en_vi import config as en_vi
from flaxnmt.models.config import PRESETS

SMALL = PRESETS["small"]

config = en_vi.replace(
    # As many layers as Base has beside others.
    model=dataclasses.replace(SMALL, encoder=dataclasses.replace(SMALL.encoder, layers=6)),
    data=dataclasses.replace(
        en_vi.data, tokenizer=dataclasses.replace(en_vi.data.tokenizer, vocab_size=4000)
    ),
    training=dataclasses.replace(en_vi.training, max_epochs=100, evaluate_every=500),
)
