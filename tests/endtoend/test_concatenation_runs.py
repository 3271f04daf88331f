"""Sentence models that read, and may write, the sentence before: the same commands, lines and order."""

import json

import pytest
from tiny_runs import finish, start, write_lines

from experiments import train
from flaxnmt import open_run
from flaxnmt.cli import main
from flaxnmt.data.concatenation import BREAK, SEPARATOR

TINY = (
    "discourse_demo --train discourse:train:40 --dev discourse:dev:1 --test discourse:dev:1 "
    "--model.d-model 16 --model.encoder.layers 1 --model.decoder.layers 1 --data.tokenizer.vocab-size 300 "
    "--data.batch-tokens 512 --data.buckets 1 --max-steps 6 --training.evaluate-every 6 --training.log-every 2 "
    "--decoding.beam-size 2 --data.previous 1"
).split()
LINES = ["The dog sleeps.", "It is old.", "", "", *["The cook reads."] * 3, ""]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((), id="2-to-1"),
        pytest.param(("--data.previous-target",), marks=pytest.mark.slow, id="2-to-2"),
    ],
)
def directory(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    finish(start("experiments.train", *TINY, *request.param, "--run", str(directory)))
    return directory


def test_lines_and_documents_are_kept_and_breaks_are_not(directory, tmp_path):
    output = tmp_path / "out"
    files = ["--input", str(write_lines(tmp_path / "in", LINES)), "--output", str(output)]
    assert main(["translate", "--run", str(directory), *files]) == 0
    found = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert [bool(line) for line in found] == [bool(line) for line in LINES]
    assert not any(mark in line for line in found for mark in (BREAK, SEPARATOR))
    run = open_run(directory)
    assert [*run.translate(LINES[:2]), "", "", *run.translate(LINES[4:7]), ""] == found


def test_a_score_is_that_of_the_sentence_in_its_document(directory):
    run = open_run(directory)
    scores = [score.log_prob for score in run.score(LINES, LINES)]
    alone = [score.log_prob for part in (LINES[:2], LINES[4:7]) for score in run.score(part, part)]
    assert [*scores[:2], *scores[4:7]] == pytest.approx(alone, abs=1e-4)
    assert scores[2] == scores[3] == scores[7] == 0
    # Without a sentence before it, and with one; the third has the context of the second.
    assert abs(scores[4] - scores[5]) > 1e-5 and scores[5] == pytest.approx(scores[6], abs=1e-5)
    assert all(
        BREAK not in score.tokens and score.tokens[-1:] != (BREAK,) for score in run.score(LINES, LINES)
    )


def test_an_evaluation_is_of_the_sentences_without_their_context(directory, tmp_path, capsys):
    source, reference, output = (tmp_path / name for name in ("source", "reference", "output"))
    write_lines(source, LINES[:2]), write_lines(reference, LINES[4:6])
    command = ["evaluate", "--run", str(directory), "--source", str(source), "--reference", str(reference)]
    assert main([*command, "--output", str(output)]) == 0
    assert "case:mixed" in json.loads(capsys.readouterr().out)["bleu"]["signature"]
    assert output.read_text(encoding="utf-8").splitlines() == open_run(directory).translate(LINES[:2])


def test_contrasts_are_those_of_whole_documents(directory, capsys):
    assert main(["contrast", "--run", str(directory), "--set", "discourse:test:12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["true"]
    # What is decided further back than one sentence, a model of two cannot know.
    far = [cell for distance, cell in found["by_distance"].items() if int(distance) > 1]
    assert all(2 * cell["right"] + cell["ties"] == cell["total"] for cell in far)
    assert found["overall"]["total"] > sum(cell["total"] for cell in far)


def test_a_vocabulary_without_a_break_is_refused(trained, tmp_path, capsys):
    command = [*TINY, "--init-from", str(trained.directory), "--run", str(tmp_path / "run")]
    assert train.main(command) == 2
    assert f"--data.previous needs a vocabulary with the symbol {BREAK}" in capsys.readouterr().err
