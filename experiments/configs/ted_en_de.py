"""TED talks English-German: 81 talks of 33 to 296 sentences, so few that a model of this size overfits soon.

A sentence model; as a model of documents by --model.document.layers sentence sentence conditional, with
--data.batch-tokens 8192 --data.rows-multiple 1. Sentences differ more in length than verses do: a third of the places of
a batch of documents are words.

Command: python -m experiments.train ted_en_de --run runs/ted --train train.jsonl.gz --dev dev.jsonl.gz
         --test test.jsonl.gz
Hardware and time: 2 CPU cores, about a quarter of an hour.
Sweep: python -m experiments.sweep real_documents --runs DIR --data DIR
"""

import dataclasses

from experiments.configs.bible_en_de import config as bible

config = bible.replace(model=dataclasses.replace(bible.model, dropout=0.3))
