"""Multi30k English-German by a decoder alone, as source, delimiter and target in one sequence (Liu et al. 2018).

It has the recipe of `multi30k_en_de` and as many parameters: with an inner dimension of 2 d a layer has 8 d^2, an
encoder layer 8 d^2 and a decoder layer 12 d^2, so that 10 layers stand for 4 and 4. Source words see those before them:
where they see each other (--model.prefix bidirectional) it learns more slowly (the sweep `families`).

Command: python -m experiments.train decoder_multi30k_en_de --run runs/decoder --train train.en train.de --dev dev.en
         dev.de --test test.en test.de
Hardware and time: 2 CPU cores, three to four hours.
"""

from experiments.configs.multi30k_en_de import config as multi30k_en_de
from flaxnmt.models.config import DecoderConfig, DecoderOnlyConfig, MultiHead

model = multi30k_en_de.model

config = multi30k_en_de.replace(
    model=DecoderOnlyConfig(
        d_model=model.d_model,
        decoder=DecoderConfig(layers=10, attention=MultiHead(4), feed_forward=256),
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        hidden_dropout=model.hidden_dropout,
    )
)
