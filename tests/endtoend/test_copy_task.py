"""The whole chain learns: random digits are copied without error, whatever the seed."""

import random

import pytest
from tiny_runs import finish, start, write_lines

from flaxnmt import open_run

COPYING = (
    "text_tiny --model.d-model 64 --model.dropout 0 "
    "--model.encoder.layers 1 --model.encoder.feed-forward 128 --model.encoder.attention.heads 4 "
    "--model.decoder.layers 1 --model.decoder.feed-forward 128 --model.decoder.attention.heads 4 "
    "--data.tokenizer.kind word --data.buckets 2 --data.batch-tokens 1024 --training.label-smoothing 0 "
    "--optimizer.schedule cosine --optimizer.learning-rate 0.004 --optimizer.warmup-steps 100 "
    "--max-steps 1200 --training.evaluate-every 400 --training.patience None"
).split()


@pytest.mark.slow
def test_digits_are_copied(tmp_path):
    seed = random.SystemRandom().randrange(1 << 16)
    draw = random.Random(seed)
    options = []
    for name, count in {"train": 4000, "dev": 100, "test": 200}.items():
        lines = [" ".join(draw.choices("0123456789", k=draw.randint(2, 14))) for _ in range(count)]
        files = [write_lines(tmp_path / f"{name}.{side}", lines) for side in ("source", "target")]
        options += [f"--{name}", *map(str, files)]
    run = tmp_path / "run"
    finish(start("experiments.train", *COPYING, *options, "--seed", str(seed), "--run", str(run)))
    rows = open_run(run).metrics
    dev, test = ([row for row in rows if row["kind"] == kind][-1] for kind in ("dev", "test"))
    assert dev["perplexity"] <= 1.02, seed
    assert test["bleu"]["score"] >= 98, seed
    assert dev["bleu"]["score"] >= 98, seed
