"""Heterogeneous encoders on a Spanish-English corpus of ELRC, fewer than 30k pairs: the recipe of `encoders_ted_gl_en`.

Command: python -m experiments.train encoders_elrc_es_en --model.encoder.branches dual --run runs/dual
         --train train.es train.en --dev dev.es dev.en --test test.es test.en
Hardware: one accelerator, an hour. Expected: the best of two to five encoders 7.16 BLEU above Base (table 7);
which of them it is is lost.
"""

from experiments.configs.encoders_ted_gl_en import config as gl_en

config = gl_en
