"""Models of documents, as a user trains and asks them: every line with the document around it."""

import json
import signal
import time

import numpy as np
import pytest
from interruptions import assert_same_run, completed, end_live
from tiny_runs import TINY_DOCUMENTS, finish, sentences, start, write_lines

from experiments import train
from flaxnmt import open_run
from flaxnmt.cli import main
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.training.integrity import named_leaves

# Of three, four and six sentences of up to seven words, so that few shapes are compiled.
TEXTS = [sentences(count, seed=count) for count in (3, 6, 4)]
LINES = ["", *TEXTS[0], "", *TEXTS[1], "", "  ", *TEXTS[2], ""]

HERE = ["--data.rows-multiple", "8"]
"""For a training in the process of the tests, which has eight devices."""


def document(*paragraphs: list[str]) -> Document:
    return Document(tuple(tuple(Sentence(text, text) for text in part) for part in paragraphs))


def translated(run, tmp_path, lines: list[str], *options: str) -> list[str]:
    """What the command writes of these lines."""
    source, output = write_lines(tmp_path / "in", lines), tmp_path / "out"
    files = ["--input", str(source), "--output", str(output)]
    assert main(["translate", "--run", str(run.directory), *files, *options]) == 0
    return output.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def outputs(opened_documents):
    """Of each document alone."""
    return [opened_documents.translate_documents([document(text)])[0] for text in TEXTS]


def test_a_model_of_sentences_is_where_it_starts(trained, opened, trained_documents, opened_documents):
    assert f"35 of 45 parameters come from {trained.directory}; fresh: encoder/" in trained_documents.err
    assert opened_documents.vocabularies.hash == opened.vocabularies.hash
    (row,) = [row for row in opened_documents.metrics if row["kind"] == "test"]
    assert row["bleu"]["score"] > 50


def test_one_line_out_for_every_line_in(trained_documents, opened_documents, tmp_path, outputs):
    found = translated(trained_documents, tmp_path, LINES)
    assert found == ["", *outputs[0], "", *outputs[1], "", "", *outputs[2], ""]
    assert opened_documents.translate(["", " "]) == ["", ""] and opened_documents.translate([]) == []


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_document_does_not_know_its_company(opened_documents, outputs, batch_size):
    documents = [document(TEXTS[i]) for i in (1, 2, 0)]
    found = opened_documents.translate_documents(documents, batch_size=batch_size)
    assert found == [outputs[i] for i in (1, 2, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted", [((2,), (), (0, 1, 3)), pytest.param(((), (), ()), marks=pytest.mark.slow)], ids=str
)
def test_sentences_that_are_wanted_are_translated_as_all_are(opened_documents, outputs, wanted):
    """A document of nine sentences has chunks with nothing to translate."""
    documents = [document(text) for text in (*TEXTS, sentences(9, seed=9))]
    whole = [*outputs, *opened_documents.translate_documents(documents[3:])]
    wanted = (*wanted, (7,))
    found = opened_documents.translate_documents(documents, wanted=wanted)
    assert found == [[texts[i] for i in indices] for texts, indices in zip(whole, wanted, strict=True)]


def test_a_blank_sentence_stays_blank_and_is_looked_at(opened_documents):
    text = [*TEXTS[0][:2], " ", *TEXTS[0][2:]]
    (found,) = opened_documents.translate_documents([document(text)])
    others = [i for i in range(len(text)) if i != 2]
    assert found[2] == "" and all(found[i] for i in others)
    assert opened_documents.translate_documents([document(text)], wanted=[others]) == [
        [found[i] for i in others]
    ]
    assert opened_documents.translate_documents([document(text)] * 2, wanted=[(2,), (0, 2)]) == [
        [""],
        [found[0], ""],
    ]


def test_sentences_that_are_context_cost_no_search(opened_documents, monkeypatch):
    translator, rows = opened_documents.translator, []
    decode = translator._decode
    monkeypatch.setattr(
        translator,
        "_decode",
        lambda batch, members, *rest: rows.append(members.shape) or decode(batch, members, *rest),
    )
    text = sentences(6, seed=6)
    translator.translate_documents([document(text)] * 6, wanted=[(i,) for i in range(6)], batch_size=4)
    # One sentence a document, and more documents than sentences that would all be translated.
    assert rows == [(4, 1)] * 2


def test_a_line_knows_its_document(opened_documents):
    """The line and its place are the same, the rest of the document is not."""
    others = [TEXTS[0], [*sentences(2, seed=30), TEXTS[0][2]]]
    scores = opened_documents.translator.score_documents([document(text) for text in others])
    assert abs(scores[0][2].log_prob - scores[1][2].log_prob) > 1e-4


@pytest.mark.slow
def test_paragraphs_are_another_document_than_documents(trained_documents, opened_documents, tmp_path):
    lines = [*TEXTS[0], "", *TEXTS[0], "", "", *TEXTS[2]]
    whole = [document(TEXTS[0], TEXTS[0]), document(TEXTS[2])]
    first, second = opened_documents.translate_documents(whole)
    expected = [*first[:3], "", *first[3:], "", "", *second]
    assert translated(trained_documents, tmp_path, lines, "--paragraphs") == expected
    values = [
        [score.log_prob for score in opened_documents.score(lines, lines, paragraphs=paragraphs)]
        for paragraphs in (True, False)
    ]
    apart = [
        score.log_prob for found in opened_documents.translator.score_documents(whole) for score in found
    ]
    filled = [index for index, line in enumerate(lines) if line]
    np.testing.assert_allclose(np.asarray(values[0])[filled], apart, atol=1e-4)
    assert np.abs(np.subtract(*values))[:7].max() > 1e-3


@pytest.mark.slow
def test_piped_lines_wait_for_their_document_and_no_longer(trained_documents, tmp_path, outputs):
    process = start("flaxnmt.cli", "translate", "--run", str(trained_documents.directory))
    try:
        for line in [*TEXTS[0], ""]:
            for piece in (line[:3], f"{line[3:]}\n"):
                process.stdin.write(piece)
                process.stdin.flush()
                # Longer than the command waits for more lines before it translates those that it has.
                time.sleep(0.12)
        answered = [process.stdout.readline() for _ in range(4)]
        process.stdin.write("\n".join(TEXTS[2]))
        process.stdin.flush()
        process.stdin.buffer.write(b"\n\xff\n")
        out, err = finish(process, code=2)
    finally:
        process.kill()
    assert answered == [*(f"{text}\n" for text in outputs[0]), "\n"]
    assert out.splitlines() == outputs[2]
    assert err.startswith("error: <stdin>:9: invalid UTF-8")


def test_a_document_that_is_too_long_is_cut_with_a_warning(opened_documents, caplog):
    lines = sentences(9, seed=9)
    found = opened_documents.translate(lines, batch_size=8)
    assert len(found) == 9 and all(found)
    warning = (
        "1 of 1 documents have more than 6 sentences (up to 9) and are cut into 3 chunks with 2 sentences of "
        "context at each cut"
    )
    assert [record.getMessage() for record in caplog.records] == [warning]
    # The end of the document is translated with the sentences before it that its chunk holds, and no others.
    alone = opened_documents.translate_documents([document(lines[4:])])[0]
    assert found[6:] == alone[2:]


@pytest.mark.slow
def test_scores_are_those_of_the_search(trained_documents, opened_documents, tmp_path):
    lines = LINES[1:-1]
    found = opened_documents.hypotheses(lines, n_best=2)
    for rank in (0, 1):
        targets = [outputs[rank].text for outputs in found]
        scores = opened_documents.score(lines, targets)
        for line, outputs, score in zip(lines, found, scores, strict=True):
            assert score.log_prob == pytest.approx(outputs[rank].log_prob, abs=1e-3)
            assert score.tokens[:-1] == outputs[rank].tokens and bool(score.tokens) == bool(line.strip())
    files = ["--source", write_lines(tmp_path / "s", lines), "--target", write_lines(tmp_path / "t", targets)]
    command = ["score", "--run", trained_documents.directory, *files, "--output", tmp_path / "out"]
    assert main(list(map(str, command))) == 0
    written = [float(line) for line in (tmp_path / "out").read_text().splitlines()]
    np.testing.assert_allclose(written, [score.log_prob for score in scores], atol=1e-4)


@pytest.mark.slow
def test_evaluation_of_documents(trained_documents, tmp_path, capsys, outputs):
    def evaluate(*options) -> dict:
        command = ["evaluate", "--run", trained_documents.directory, "--documents", *options]
        assert main(list(map(str, command))) == 0
        return json.loads(capsys.readouterr().out)

    # With a word that is missing at the end of the first sentence: no score is perfect, and n-grams across the ends of
    # sentences, which d-BLEU alone counts, are wrong even where the model is not.
    references = [[f"{text[0]} nine", *text[1:]] for text in TEXTS]
    source = write_lines(tmp_path / "source", "\n\n".join(map("\n".join, TEXTS)).split("\n"))
    target = write_lines(tmp_path / "target", "\n\n".join(map("\n".join, references)).split("\n"))
    rows = [json.dumps({"paragraphs": [{"src": s, "tgt": t}]}) for s, t in zip(TEXTS, references)]
    whole = write_lines(tmp_path / "documents.jsonl", rows)
    scores = evaluate("--source", source, "--reference", target, "--output", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "\n".join("".join(f"{s}\n" for s in text) for text in outputs)
    assert scores["documents"] == 3 and scores["sentences"] == 13
    assert 0 < scores["s_bleu"]["score"] < 100 and scores["s_bleu"]["score"] != scores["d_bleu"]["score"]
    assert evaluate("--source", whole) == scores
    # A system that has every second sentence wrong, the first of each document, so that some are empty.
    worse = [["" if i % 2 == 0 else line for i, line in enumerate(text)] for text in outputs]
    baseline = write_lines(tmp_path / "worse", "\n\n".join(map("\n".join, worse)).split("\n"))
    found = evaluate("--source", whole, "--baseline", baseline, "--samples", 50)
    systems = found.pop("bootstrap")["s_bleu"]["systems"]
    assert found == scores
    assert systems["baseline"]["score"] < systems["run"]["score"] == scores["s_bleu"]["score"]
    found = evaluate("--source", whole, "--controls", "--samples", 50)
    assert found["scores"].keys() == {"true", "none", "random", "shuffled"}
    assert found["scores"]["true"] == {name: value for name, value in scores.items() if name != "run"}
    found = found["scores"]["none"]
    # Without context is each sentence as a document of its own, scored as those of the documents that they are from.
    pairs = [(s, t) for text, reference in zip(TEXTS, references) for s, t in zip(text, reference)]
    rows = [json.dumps({"paragraphs": [{"src": [s], "tgt": [t]}]}) for s, t in pairs]
    alone = evaluate("--source", write_lines(tmp_path / "alone.jsonl", rows))
    assert found["s_bleu"] == alone["s_bleu"] and found["d_bleu"] != alone["d_bleu"]


@pytest.mark.slow
def test_translations_stand_in_the_lines_of_their_source(trained_documents, tmp_path, capsys):
    (one, two, *_), (three, *_) = TEXTS[:2]
    lines = ["", one, "", two, "", "", three, ""]
    source, out = write_lines(tmp_path / "source", lines), tmp_path / "out"
    run = ["--run", str(trained_documents.directory), "--paragraphs"]
    assert main(["translate", *run, "--input", str(source), "--output", str(tmp_path / "lines")]) == 0
    files = ["--source", str(source), "--reference", str(source), "--output", str(out)]
    command = [
        "evaluate",
        *run,
        "--documents",
        *files,
        "--baseline",
        str(tmp_path / "lines"),
        "--samples",
        "20",
    ]
    assert main(command) == 0
    systems = json.loads(capsys.readouterr().out)["bootstrap"]["s_bleu"]["systems"]
    assert systems["baseline"]["score"] == systems["run"]["score"]
    assert out.read_text() == (tmp_path / "lines").read_text()
    assert [bool(line) for line in out.read_text().splitlines()] == [bool(line) for line in lines]


@pytest.mark.slow
def test_contrasts_by_phenomenon_and_distance(trained_discourse, tmp_path, capsys):
    command = ["contrast", "--run", str(trained_discourse.directory), "--set", "discourse:test:12"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["true"]
    kept = tmp_path / "scores"
    assert main([*command, "--write-scores", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main(["contrast", "--set", "discourse:test:12", "--scores", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    cells = found["true"]
    assert cells["overall"]["total"] == sum(cell["total"] for cell in cells["by_distance"].values()) == 40
    assert main(command) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == "true context" and head.split() == [
        "phenomenon",
        *cells["by_distance"],
        "all",
        "examples",
    ]
    (overall,) = [row.split() for row in rows if row.startswith("all ")]
    assert overall[-2:] == [f"{cells['overall']['accuracy']:.1f}", str(cells["overall"]["total"])]


@pytest.mark.slow
def test_a_stop_leaves_no_trace(trained_documents, tmp_path):
    run = tmp_path / "run"
    code, err = end_live(trained_documents.arguments, run, lambda: completed(run) != [], signal.SIGTERM)
    assert code == 42 and "Traceback" not in err
    assert completed(run)[-1] < completed(trained_documents.directory)[-1]
    finish(start("experiments.train", *trained_documents.arguments, "--run", str(run)))
    assert_same_run(run, trained_documents.directory)


@pytest.mark.slow
def test_what_comes_from_a_sentence_model_can_be_frozen(trained_documents, opened, tmp_path, caplog):
    run = tmp_path / "run"
    short = "--training.freeze initialised --training.ema 0.9 --training.evaluate-every 3 --training.checkpoint-every 3"

    def train_until(step: int):
        command = [*trained_documents.arguments, *short.split(), "--max-steps", str(step), *HERE]
        assert train.main([*command, "--run", str(run)]) == 0
        found = open_run(run)
        return found.record["frozen"], named_leaves(found.params)

    frozen, first = train_until(3)
    assert "35 of 45 parameters are frozen" in caplog.text
    again, second = train_until(6)
    assert frozen == again and len(frozen) == 35
    start = named_leaves(opened.params)
    for name in first:
        assert (name in start) == (name in frozen)
        if name in frozen:
            assert first[name].tobytes() == second[name].tobytes() == start[name].tobytes()
    assert sum((first[name] != second[name]).any() for name in first) > 5
    (run / "run.json").unlink()
    command = [*trained_documents.arguments, *short.split(), "--max-steps", "9", *HERE, "--run", str(run)]
    assert train.main(command) == 2


@pytest.fixture
def refused(trained_documents, capsys, tmp_path):
    """The line that training says with these options added, which must leave no run behind."""

    def run(options: str) -> str:
        command = [*trained_documents.arguments, "--run", str(tmp_path / "run"), *HERE]
        assert train.main([*command, *options.split()]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1, err
        assert not (tmp_path / "run" / "config.json").exists()
        return err.removeprefix("error: ").rstrip("\n")

    return run


def test_models_of_documents_that_cannot_be_built(refused):
    said = refused("--model.document.layers hierarchic")
    assert "--model.document.layers" in said and "hierarchical" in said
    said = refused("--model.document.layers sentence conditional")
    assert said == (
        "--model.document.layers names 2 layers and --model.encoder.layers is 1: name each of them, or one kind "
        "for all"
    )
    assert refused("--model.document.t 0").startswith("--model.document.t 0: a word selects at least 1")
    said = refused("--model.document.layers heads --model.document.context-heads 5")
    assert said.startswith("5 heads do not divide d_model 32: change --model.document.context-heads")
    assert refused("--data.previous 1").startswith("--data.previous belongs to models of sentences")
    assert refused("--data.previous-target").startswith("--data.previous 0: give the number of previous")
    assert refused("--data.previous -1").startswith("--data.previous -1: give the number of previous")
    assert refused("--model.encoder.attention.heads 0").startswith("0 heads do not divide d_model 32")
    assert refused("--data.max-sentences 4").startswith(
        "--data.max-sentences 4 with --data.overlap 2: chunks would be"
    )
    assert "holds fewer than 8 rows (rows_multiple) of 6 sentences" in refused("--data.batch-tokens 64")
    said = refused("--model.document.cross document --model.positions none")
    assert said.startswith("--model.document.cross document tells the decoder by its position which sentence")
    said = refused("--data.boundaries jiterred")
    assert "--data.boundaries" in said and "jittered" in said
    said = refused("--training.freeze encoder target_tables")
    assert said.endswith("target_tables is the beginning of no parameter, did you mean 'target_table'?")


def test_budgets_that_cannot_be_kept(refused):
    half = "--model.budget.encoder 1 0.5"
    assert refused("--model.budget.encoder 1 2").startswith("budgets [1.0, 2.0]: give different numbers")
    assert refused(f"{half} --max-steps 2 --model.norm post").startswith("--model.norm post with budgets")
    said = refused(f"{half} --max-steps 2 --model.budget.blocks 5")
    assert said == "--model.budget.blocks 5 does not divide the feed-forward size 64"


@pytest.mark.slow
def test_a_corpus_without_documents_is_trained_on(tmp_path, caplog):
    """Each line is a document of its own."""
    files = [str(write_lines(tmp_path / name, sentences(60, seed=4))) for name in ("source", "target")]
    corpora = [word for name in ("--train", "--dev", "--test") for word in (name, *files)]
    limits = (
        "--max-steps 2 --training.evaluate-every 2 --decoding.beam-size 1 --decoding.batch-size 64".split()
    )
    assert train.main([*TINY_DOCUMENTS, *corpora, *limits, *HERE, "--run", str(tmp_path / "run")]) == 0
    assert "60 pairs in 1 batches an epoch of rows x (sentences, words) 64 x (1, 8)" in caplog.text
