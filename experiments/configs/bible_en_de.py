"""Bible English-German by chapters: verses, paragraphs of about nine, documents of 9 to 176 verses.

A sentence model; as a model of documents by --model.document.layers sentence sentence conditional, with
--data.batch-tokens 8192 --data.rows-multiple 1. The longest sentence of a group of sixteen is twice as long as its mean,
so that a third to half of the places of a batch of documents are words.

Command: python -m experiments.train bible_en_de --run runs/bible --train train.jsonl.gz --dev dev.jsonl.gz
         --test test.jsonl.gz
Hardware and time: 2 CPU cores, about a quarter of an hour.
Sweep: python -m experiments.sweep real_documents --runs DIR --data DIR
"""

from flaxnmt.config import (
    Config,
    DataConfig,
    DecodingConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from flaxnmt.models.config import DecoderConfig, EncoderConfig, MultiHead, Seq2SeqConfig

config = Config(
    model=Seq2SeqConfig(
        d_model=128,
        encoder=EncoderConfig(layers=3, attention=MultiHead(4), feed_forward=256),
        decoder=DecoderConfig(layers=2, attention=MultiHead(4), feed_forward=256),
        dropout=0.1,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    ),
    data=DataConfig(
        tokenizer=TokenizerConfig(vocab_size=4000),
        max_length=96,
        max_sentences=16,
        overlap=1,
        batch_tokens=4096,
        buckets=5,
    ),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", learning_rate=4e-3, warmup_steps=400),
    training=TrainingConfig(
        max_steps=1200, evaluate_every=400, metric="loss", evaluate_translations=0, keep_last=1
    ),
    decoding=DecodingConfig(length_penalty=1.0),
)
