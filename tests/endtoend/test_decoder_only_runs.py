"""A decoder alone translates with the same commands: train, translate, score, evaluate."""

import json

import pytest
from tiny_runs import WORDS, finish, start, write_corpus

from flaxnmt import open_run
from flaxnmt.cli import main

pytestmark = pytest.mark.slow

TINY = (
    "decoder_multi30k_en_de --model.d-model 32 --model.dropout 0 --model.decoder.layers 2 "
    "--model.decoder.feed-forward 64 --data.tokenizer.kind word --data.buckets 1 --data.batch-tokens 512 "
    "--optimizer.schedule constant --optimizer.learning-rate 0.005 --training.label-smoothing 0 "
    "--training.accumulate 1 --training.average none --training.evaluate-every 120 --training.metric loss "
    "--max-steps 240 --decoding.batch-size 8 --decoding.beam-size 2"
).split()
LINES = ["one two three", "ten", "", "seven six seven six five", "two nine"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("decoder")
    corpus = write_corpus(directory / "data")
    # What is to be learned is to copy the source, which is the same line.
    for split in ("train", "dev", "test"):
        source, target = (directory / "data" / f"{split}.{side}" for side in ("source", "target"))
        target.write_bytes(source.read_bytes())
    _, err = finish(start("experiments.train", *TINY, *corpus, "--run", str(directory / "run")))
    assert "to translate: flaxnmt translate" in err
    return open_run(directory / "run")


def test_it_learns_to_copy(run):
    losses = [row["loss"] for row in run.metrics if row["kind"] == "dev"]
    # A word drawn from ten, or the end, is worth 2.3 nats to who has not seen the source.
    assert losses[-1] < min(0.9, losses[0])
    assert set(run.params) == {"table", "decoder"}


def test_translations_do_not_depend_on_the_batch_and_blank_lines_stay(run):
    found = run.translate(LINES)
    assert [bool(line) for line in found] == [bool(line) for line in LINES]
    assert run.translate(LINES, batch_size=1) == found
    assert run.translate(LINES[::-1])[::-1] == found
    assert set(" ".join(found).split()) <= set(WORDS)


def test_the_score_of_a_hypothesis_is_that_of_the_beam(run):
    lines = [line for line in LINES if line]
    best = [outputs[0] for outputs in run.hypotheses(lines)]
    scores = run.score(lines, [hypothesis.text for hypothesis in best])
    assert [score.log_prob for score in scores] == pytest.approx([h.log_prob for h in best], abs=1e-3)


def test_evaluate_prints_scores_with_signatures(run, tmp_path, capsys):
    data = run.directory.parent / "data"
    files = ["--source", str(data / "test.source"), "--reference", str(data / "test.target")]
    assert main(["evaluate", "--run", str(run.directory), *files]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu"]["score"] > 30 and "tok:13a" in scores["bleu"]["signature"]
