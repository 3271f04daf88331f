"""Heterogeneous encoders on IWSLT'15 English-Vietnamese, 133k pairs of TED talks: the recipe of Hu et al. 2023.

Transformer base with any encoders side by side (--model.encoder.branches, such as `dual` or `attention:6 lstm:18`). Shared
pieces without lower-casing, Adam (0.9, 0.98, 1e-9), Noam with 4000 updates of warm-up, label smoothing 0.1, Xavier
initialisation (of matrices; embeddings, as Vaswani et al. have them, with a deviation of 1 / sqrt(D)), batches of 4096
words by target length, the last parameters without averaging, beam 4. Words are pieces, and padding counts, so that batches
are somewhat smaller than where it does not. The sizes of vocabularies, the longest sentence and the number of epochs are
lost from the published text: 16000 pieces, 128 and 60. It does not say what dropout there is, where norms stand and how
beam search weighs length: 0.1 everywhere, in front of blocks and behind each encoder, and 0.6.

Command: python -m experiments.train encoders_iwslt15_en_vi --model.encoder.branches dual --run runs/dual
         --train train.en train.vi --dev tst2012.en tst2012.vi --test tst2013.en tst2013.vi
Hardware: one accelerator, some hours. Expected: Base near 31.8 BLEU, Dual 0.6 above it (tables 2 and 4).

A pre-trained model for comparison (table 8) is trained on a million pairs of OPUS-100, with the vocabulary that
the fine-tuning then takes over, and fine-tuned for 50 epochs:
         python -m experiments.train encoders_iwslt15_en_vi --run runs/opus --max-epochs 20
         --train 'opus.en[:1000000]' 'opus.vi[:1000000]' --dev tst2012.en tst2012.vi
         python -m experiments.train encoders_iwslt15_en_vi --run runs/tuned --init-from runs/opus --max-epochs 50
         --train train.en train.vi --dev tst2012.en tst2012.vi --test tst2013.en tst2013.vi
"""

from flaxnmt.config import (
    Config,
    DataConfig,
    DecodingConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from flaxnmt.models.config import PRESETS

config = Config(
    model=PRESETS["base"],
    data=DataConfig(tokenizer=TokenizerConfig(vocab_size=16000), max_length=128, batch_tokens=4096),
    optimizer=OptimizerConfig(name="adam", b1=0.9, b2=0.98, eps=1e-9, schedule="noam", warmup_steps=4000),
    training=TrainingConfig(
        max_epochs=60,
        label_smoothing=0.1,
        evaluate_every=1000,
        keep_last=1,
        average="last",
        average_count=1,
    ),
    decoding=DecodingConfig(beam_size=4),
)
