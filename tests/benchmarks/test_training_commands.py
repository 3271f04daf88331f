import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks import common
from experiments.benchmarks.peers.sizes import SIZES
from experiments.benchmarks.training_commands import (
    BATCH_TOKENS,
    LONGEST,
    SPECIAL,
    Commands,
    Text,
    describe,
    joeynmt_config,
    measure,
    run,
    sentence_lengths,
)
from flaxnmt.errors import RunError

ROOT = Path(__file__).parents[2]
TINY = SIZES["tiny"]


def test_lengths_have_the_mean_and_the_correlation_of_news():
    source, target = sentence_lengths(20000, np.random.default_rng(0))
    assert len(source) == len(target) == 20000
    assert min(source.min(), target.min()) >= 1 and max(source.max(), target.max()) <= LONGEST
    assert abs(source.mean() - 28) < 1 and abs(target.mean() - 31) < 1
    assert 0.93 < np.corrcoef(source, target)[0, 1] < 0.98


def test_text_has_every_word_of_the_vocabulary_and_nothing_else(tmp_path):
    text = Text.write(tmp_path, 50, TINY)
    words = (tmp_path / "words.txt").read_text().split()
    assert len(words) == TINY.vocabulary - SPECIAL
    lengths = []
    for side in ("src", "trg"):
        lines = (text.directory / f"train.{side}").read_text().splitlines()
        lengths.append([len(line.split()) for line in lines])
        assert {word for line in lines for word in line.split()} == set(words)
    assert [len(side) for side in lengths] == [50, 50] and min(map(min, lengths)) >= 1


def test_joeynmt_gets_the_same_model_batches_and_optimizer(tmp_path):
    config = joeynmt_config(Text(tmp_path), tmp_path / "run", TINY, updates=6, every=2)
    training, encoder = config["training"], config["model"]["encoder"]
    assert (training["batch_type"], training["batch_size"]) == ("token", BATCH_TOKENS)
    assert (encoder["hidden_size"], encoder["ff_size"]) == (TINY.d_model, TINY.feed_forward)
    assert config["model"]["decoder"] == encoder and config["model"]["tied_softmax"]
    assert training["validation_freq"] > training["updates"]
    assert json.loads(json.dumps(config)) == config


def test_a_command_that_fails_says_so():
    with pytest.raises(RunError, match="failed: no such luck"):
        run([sys.executable, "-c", "raise SystemExit('no such luck')"], {})


@pytest.mark.slow
def test_both_commands_train_the_same_model_but_for_the_biases_of_attention():
    python = ROOT / common.PEERS_PYTHON
    if not python.exists():
        pytest.skip("no peers: make bench-peers-env")
    row = measure(python, TINY, Commands(rounds=1, pairs=300, updates=12, peer_updates=4, every=2), threads=2)
    biases = 3 * TINY.layers * 4 * TINY.d_model
    assert row["parameters"]["joeynmt"] == row["parameters"]["flaxnmt"] + biases
    assert all(len(rates) and min(rates) > 0 for rates in row["rates"].values())
    assert "python -m joeynmt train" in describe(row)
