"""translate, score, evaluate and check-data, as a user types them."""

import json
import random
import shutil

import jax
import jax.numpy as jnp
import pytest
from small_models import random_params, small_model
from tiny_runs import finish, sentences, start, write_lines

from experiments import train
from experiments.configs import load
from flaxnmt.cli import main
from flaxnmt.translation.search import Sampling
from flaxnmt.translation.translator import Translator

LONG = " ".join(["one two three four"] * 500)
ODD_LINES = ["one two", "", "   ", "\t", LONG, "unheard-of words", "\N{NO-BREAK SPACE}", "ten"]


def lines_of(path):
    return path.read_bytes().decode().split("\n")[:-1]


def test_one_line_out_for_every_line_in(trained, tmp_path, caplog):
    source, output = write_lines(tmp_path / "in", ODD_LINES), tmp_path / "out"
    options = ["--input", str(source), "--output", str(output), "--max-length", "9", "--batch-size", "4"]
    assert main(["translate", "--run", str(trained.directory), *options]) == 0
    found = lines_of(output)
    assert len(found) == len(ODD_LINES)
    assert found[0] == "one two" and found[-1] == "ten" and found[4]
    assert [line for line, source in zip(found, ODD_LINES) if not source.strip()] == [""] * 4
    warning = "1 of 4 lines exceed 1024 source or 1024 target tokens and are cut there; the first is line 5"
    assert [record.getMessage() for record in caplog.records] == [warning]


def test_over_long_lines_are_scored_too(opened, caplog):
    (score,) = opened.score([LONG], [LONG])
    assert len(score.tokens) == len(score.token_log_probs) == 1024 and score.tokens[-1] == "</s>"
    assert "the first is line 1" in caplog.text


def test_lines_beyond_learned_positions_are_cut_with_a_warning(opened, caplog):
    vocabularies = opened.vocabularies
    model = small_model(*[vocabularies.source.vocab_size] * 2, positions="learned", max_positions=10)
    params = jax.tree.map(jnp.float32, random_params(model))
    translator = Translator(model, params, vocabularies)
    assert len(translator.translate([LONG, "one"], max_length=3)) == 2
    assert "1 of 2 lines exceed 10 source or 10 target tokens and are cut there" in caplog.text


@pytest.fixture(scope="module")
def lines():
    return [*sentences(12, seed=5), "", "seven", *sentences(7, seed=6)]


@pytest.fixture(scope="module")
def found(opened, lines):
    return opened.hypotheses(lines, n_best=2, batch_size=64)


@pytest.mark.slow
def test_the_text_depends_on_neither_batch_size_nor_order(opened, lines, found):
    # Where a rival is as good as the best, rounding may choose: here none is.
    assert min(best.score - second.score for (best, second), line in zip(found, lines) if line) > 1e-2
    texts = [[output.text for output in outputs] for outputs in found]
    order = random.Random(0).sample(range(len(lines)), len(lines))
    for batch_size in (1, 7):
        shuffled = opened.hypotheses([lines[i] for i in order], n_best=2, batch_size=batch_size)
        assert [shuffled[order.index(i)][0].text for i in range(len(lines))] == [best for best, _ in texts]


def test_hypotheses_score_as_when_scored_again(opened, lines, found):
    pairs = [(line, output) for line, outputs in zip(lines, found) if line for output in outputs]
    again = opened.score([line for line, _ in pairs], [output.text for _, output in pairs])
    # A text may be cut into other pieces than those that were found.
    same = [(output, score) for (_, output), score in zip(pairs, again) if output.tokens == score.tokens[:-1]]
    assert len(same) >= 0.9 * len(pairs)
    for output, score in same:
        assert output.log_prob == pytest.approx(score.log_prob, abs=1e-3)
        penalty = ((5 + len(score.tokens)) / 6) ** opened.config.decoding.length_penalty
        assert output.score == pytest.approx(score.log_prob / penalty, abs=1e-3)


def test_n_best_lists_and_forced_prefixes(trained, lines, tmp_path):
    source = write_lines(tmp_path / "in", lines)
    starts = ["nine" if number % 2 else "" for number in range(len(lines))]
    # Longer than any output for so short a line: a prefix comes on top.
    starts[13] = " ".join(["ten"] * 40)
    options = [
        "--input",
        str(source),
        "--output",
        str(tmp_path / "out"),
        "--n-best",
        "2",
        "--batch-size",
        "8",
    ]
    options += ["--prefix", str(write_lines(tmp_path / "prefix", starts))]
    assert main(["translate", "--run", str(trained.directory), *options]) == 0
    rows = [line.split(" ||| ") for line in lines_of(tmp_path / "out")]
    assert [int(row[0]) for row in rows] == [number // 2 + 1 for number in range(2 * len(lines))]
    for (number, text, score, log_prob), second in zip(rows[::2], rows[1::2]):
        line, forced = lines[int(number) - 1], starts[int(number) - 1]
        if line:
            assert text.startswith(forced or line.split()[0])
            assert 0 > float(score) >= float(second[2]) and float(log_prob) <= float(score)
        else:
            assert text == ""
    assert len(rows[2 * 13][1].split()) > 40


@pytest.mark.slow
def test_samples_depend_on_the_seed_and_not_on_batches(trained, opened, lines, tmp_path):
    hot = dict(temperature=3.0, top_k=8)

    def draw(seed, batch_size):
        return opened.translate(lines, sampling=Sampling(**hot, seed=seed), batch_size=batch_size)

    texts = draw(0, 8)
    assert texts == draw(0, 3) != draw(1, 8)
    # Lines that come in several blocks are drawn by their number in the whole.
    streamed = opened.translator.stream([lines[:5], lines[5:]], sampling=Sampling(**hot), batch_size=8)
    assert [outputs[0].text for outputs in streamed] == texts
    options = ["--input", str(write_lines(tmp_path / "in", lines)), "--output", str(tmp_path / "out")]
    options += ["--sample", "--temperature", "3", "--top-k", "8", "--batch-size", "8"]
    assert main(["translate", "--run", str(trained.directory), *options]) == 0
    assert lines_of(tmp_path / "out") == texts


@pytest.mark.slow
def test_a_typed_line_is_answered_and_bad_bytes_lose_nothing(trained):
    process = start("flaxnmt.cli", "translate", "--run", str(trained.directory))
    try:
        process.stdin.write("one two\n")
        process.stdin.flush()
        assert process.stdout.readline() == "one two\n"
        process.stdin.buffer.write(b"three\n\xff\nfour\n")
        out, err = finish(process, code=2)
    finally:
        process.kill()
    assert out == "three\n"
    assert err == "error: <stdin>:3: invalid UTF-8 (byte 0xff at offset 14, byte 1 of the line)\n"


def test_scores_are_those_of_the_run(trained, opened, lines, tmp_path):
    target = [line.replace("one", "two") for line in lines]
    files = [
        str(write_lines(tmp_path / name, text)) for name, text in (("source", lines), ("target", target))
    ]
    options = ["--source", files[0], "--target", files[1], "--output", str(tmp_path / "out"), "--tokens"]
    assert main(["score", "--run", str(trained.directory), *options]) == 0
    for row, score in zip(lines_of(tmp_path / "out"), opened.score(lines, target), strict=True):
        total, tokens = row.split("\t")
        assert float(total) == pytest.approx(score.log_prob, abs=1e-3)
        assert [token.rsplit(":", 1)[0] for token in tokens.split()] == list(score.tokens)


def test_evaluation_is_that_of_the_sacrebleu_command(trained, tmp_path, capsys):
    source = sentences(20, seed=7)
    reference = [line if number % 3 else f"{line} one." for number, line in enumerate(source)]
    files = {
        name: str(write_lines(tmp_path / name, text)) for name, text in (("s", source), ("r", reference))
    }
    options = ["--source", files["s"], "--reference", files["r"], "--output", str(tmp_path / "out")]
    assert main(["evaluate", "--run", str(trained.directory), *options, "--batch-size", "8"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["lines"] == 20 and scores["run"] == str(trained.directory)
    command = [files["r"], "-i", str(tmp_path / "out"), "-m", "bleu", "chrf", "ter", "-w", "6"]
    for theirs in json.loads(finish(start("sacrebleu", *command))[0]):
        ours = scores[{"BLEU": "bleu", "chrF2": "chrf", "TER": "ter"}[theirs["name"]]]
        assert round(ours["score"], 6) == theirs["score"] and 0 < ours["score"] < 100
        assert ours["signature"] == theirs["signature"]


def test_case_counts_as_the_vocabulary_in_use_has_it(trained, tmp_path, capsys):
    """A run that starts from another has the vocabulary of that one, whatever its own options say."""
    for name in ("tokenizer", "parameters.npz", "config.json"):
        copy = shutil.copytree if name == "tokenizer" else shutil.copy
        copy(trained.directory / name, tmp_path / name)
    config = (tmp_path / "config.json").read_text()
    assert '"lowercase": false' in config
    (tmp_path / "config.json").write_text(config.replace('"lowercase": false', '"lowercase": true'))
    lines = str(write_lines(tmp_path / "lines", ["one two"]))
    assert main(["evaluate", "--run", str(tmp_path), "--source", lines, "--reference", lines]) == 0
    assert "case:mixed" in json.loads(capsys.readouterr().out)["bleu"]["signature"]


def test_check_data_reports_and_judges(tmp_path, capsys):
    good = [str(write_lines(tmp_path / name, ["a b", "c"])) for name in ("good.s", "good.t")]
    assert main(["check-data", *good, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 2
    (tmp_path / "bad.s").write_bytes(b"a b\nc\xff\n")
    assert main(["check-data", str(tmp_path / "bad.s"), good[1]]) == 2
    assert f"{tmp_path / 'bad.s'}:2: invalid UTF-8" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["", "translate", "score", "evaluate", "check-data"])
def test_help_is_readable(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert not end.value.code and max(map(len, text.splitlines())) <= 100
    assert "usage: flaxnmt" in text and "{None}" not in text
    if command in ("translate", "score", "evaluate"):
        assert "Run directory, or" in text and "(required)" in text and "(default: " in text


def test_help_of_training_lists_configurations_and_fields(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for arguments, code in (([], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as end:
            train.main(arguments)
        assert (
            end.value.code == code
            and "  multi30k_en_de\n  ted_en_de\n  text_small\n" in capsys.readouterr().out
        )
    with pytest.raises(SystemExit) as end:
        train.main(["discourse_demo", "--help"])
    text = capsys.readouterr().out
    description, options = text.split("options", 1)
    assert not end.value.code and "make demo" in description
    assert max(map(len, options.splitlines())) <= 100
    steps = f"(default: {load('discourse_demo').training.max_steps})"
    for words in ("--max-minutes FLOAT", "--model.encoder.attention.heads INT", steps, "{pre,post}"):
        assert words in options


def test_help_says_that_positions_count_from_a_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        train.main(["discourse_document", "--help"])
    # Without the frame around it.
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "135th word" in said
    assert "of more sentences than --data.max-sentences is cut, and each part counts from its own" in said
