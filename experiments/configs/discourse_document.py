"""Document model on the embedded corpus, with conditional attention (Trankova et al. 2024, section 3).

It starts from the sentence model of `discourse_demo`, so that what is left to learn is in the context. Levels of
positions are rolled: without that the first sentence of the second paragraph looks like the second one of the first,
and forms of address, which their paragraph decides, are told apart in nine of ten cases only. Other kinds of attention
by flags: --model.document.layers sentence hierarchical, ... context, ... document.

Command: python -m experiments.train discourse_document --run runs/demo-documents --init-from runs/demo
Hardware and time: 2 CPU cores, three to five minutes.
Expected: contrastive accuracy of 93 to 98%, pronouns and nouns before forms of address, and 50% without context
(python -m experiments.documents RUN).
"""

import dataclasses

from experiments.configs.discourse_demo import config as sentence
from flaxnmt.models.config import DocumentConfig

config = sentence.replace(
    model=dataclasses.replace(
        sentence.model,
        document=DocumentConfig(layers=("sentence", "conditional"), t=4, count="unit", roll_levels=True),
    ),
    data=dataclasses.replace(sentence.data, batch_tokens=4096, rows_multiple=2, max_sentences=16),
    optimizer=dataclasses.replace(
        sentence.optimizer, schedule="constant", learning_rate=4e-3, warmup_steps=50
    ),
    training=dataclasses.replace(
        sentence.training, max_steps=1000, evaluate_every=600, metric="loss", evaluate_translations=0
    ),
)
