"""What a budget costs in quality at a size for one accelerator: the claims of `budgets` with d 256, Multi30k English-German.

The model with gates, the plain Transformer and the smaller ones of that sweep, measured and compared as there. At d 128
two of four layers, trained by themselves, have 0.8 BLEU less than four, so that half of one model can hardly be as good
as the whole. Here all is twice as wide and feed-forward networks are four times as wide as that, with dropout 0.3: 7200
updates of 5120 tokens, in batches of two shapes, layers scanned, so that XLA compiles little. The same command given
twice, with XLA_PYTHON_CLIENT_PREALLOCATE=false, trains two of them beside each other. The corpus lies in multi30k_en_de
of the directory that --data or FLAXNMT_DATA names.
"""

from experiments.data import SHORT
from experiments.sweeps.budgets import claims, fall, measure, reduced, tables
from experiments.trial import Sweep

UPDATES = (
    *(*SHORT, "--data.batch-tokens", "5120", "--data.buckets", "2"),
    *("--model.d-model", "256", "--model.dropout", "0.3", "--model.scan"),
    *("--model.encoder.feed-forward", "1024", "--model.decoder.feed-forward", "1024"),
    *("--optimizer.schedule", "cosine", "--optimizer.learning-rate", "2e-3"),
    *("--max-steps", "7200", "--training.evaluate-every", "2400", "--training.checkpoint-every", "2400"),
    *("--training.average", "last", "--training.average-count", "1"),
    *("--decoding.no-skip", "--decoding.batch-size", "256"),
)
GATED = {"gated": fall(1200, 3000)}
REDUCED = reduced(1024)

sweep = Sweep(tuple(claims(GATED, REDUCED, UPDATES)), measure, tables(REDUCED))
