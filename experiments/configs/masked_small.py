"""A masked language model of a size for two cores (Devlin et al. 2019), to be fine-tuned afterwards.

Texts are one file or several, a sentence or paragraph a line; blank lines end documents. Positions are rotary and nothing
is dropped, unlike in BERT: in pilots at the size of `masked_tiny` so short a training stayed near unigrams with learned
positions, and came to see context later with dropout.

Command: python -m experiments.train masked_small --run runs/masked --train a.txt b.txt --dev dev.txt
Hardware and time: 2 CPU cores, about half an hour.
"""

from flaxnmt.config import Config, DataConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from flaxnmt.models.config import EncoderConfig, EncoderOnlyConfig, MultiHead

config = Config(
    model=EncoderOnlyConfig(
        d_model=256,
        encoder=EncoderConfig(layers=4, attention=MultiHead(4), feed_forward=1024),
        positions="rotary",
        dropout=0.0,
        activation="gelu",
        biases=True,
    ),
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=8000), batch_tokens=4096, max_length=128),
    optimizer=OptimizerConfig(
        name="adamw",
        b2=0.999,
        eps=1e-8,
        weight_decay=0.01,
        schedule="cosine",
        learning_rate=5e-4,
        warmup_steps=500,
    ),
    training=TrainingConfig(max_steps=4000, evaluate_every=500, metric="loss", label_smoothing=0.0),
)
