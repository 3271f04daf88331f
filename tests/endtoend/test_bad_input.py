"""A mistake gets one clear line and exit code 2; nothing is lost, and `--debug` shows the traceback."""

import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from tiny_runs import TINY, sentences, start, write_corpus, write_lines

from experiments import train
from experiments.configs import load
from flaxnmt import cli, open_run
from flaxnmt.commands import guarded
from flaxnmt.errors import ConfigError, DataError


def message(capsys, main, *arguments):
    """The one line that a command says of a mistake."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1, err
    return err.removeprefix("error: ").rstrip("\n")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def training(capsys, tmp_path, corpus):
    """The line that training says with these options added, which must leave no run behind."""

    def run(*options, config="discourse_demo"):
        said = message(
            capsys,
            train.main,
            config,
            *TINY[1:],
            *corpus,
            "--run",
            tmp_path / "run",
            "--max-steps",
            3,
            *options,
        )
        assert not (tmp_path / "run" / "config.json").exists()
        return said

    return run


def pair(folder, source: bytes, target: bytes = b"a\nb\n"):
    for name, content in (("source", source), ("target", target)):
        (folder / name).write_bytes(content)
    return "--train", folder / "source", folder / "target"


def test_corpora_that_cannot_be_read(training, tmp_path):
    said = training(*pair(tmp_path, b"a\nb\nc\n"))
    files = tmp_path / "source", tmp_path / "target"
    assert said == f"{files[0]}: 3 lines, but {files[1]} has 2: both must have the same number"
    said = training(*pair(tmp_path, b"a\n\xffb\n"))
    assert said == f"{tmp_path / 'source'}:2: invalid UTF-8 (byte 0xff at offset 2, byte 1 of the line)"
    assert training(*pair(tmp_path, b"a\nb\0\n")).startswith(
        f"{tmp_path / 'source'}:2: NUL byte (at offset 3)"
    )
    assert training(*pair(tmp_path, b"")) == f"{tmp_path / 'source'} is empty"
    said = training("--train", tmp_path / "sourse", tmp_path / "target")
    assert said == f"{tmp_path / 'sourse'} does not exist; the nearest name there is {tmp_path / 'source'}"
    said = training("--train", tmp_path / "target")
    assert said.startswith(f"{tmp_path / 'target'} alone is not a corpus: name one corpus")
    assert training("--dev", "discourse:nothing").startswith("discourse: unknown split 'nothing'; use")


def test_configurations_that_cannot_be_trained(training):
    said = training("--data.tokenizer.kind", "bpe", "--data.tokenizer.vocab-size", 5000)
    assert (
        "a bpe vocabulary of 5000 pieces is larger than the training text allows; the largest possible is"
        in said
    )
    assert training("--data.tokenizer.vocab-size", 5000, config="discurse_demo").startswith(
        "no configuration 'discurse_demo', did you mean 'discourse_demo'?; there are"
    )
    assert "Unrecognized options: --modle.d-model, 3; did you mean --model.d-model?" in training(
        "--modle.d-model", 3
    )
    assert "Error parsing --model.d-model: " in training("--model.d-model", "wide")
    assert "--model.norm" in (said := training("--model.norm", "both")) and "pre" in said and "post" in said
    assert "mesh data 3 x fsdp 1 x model 1 needs 3 devices and there are 8" in training("--mesh.data", 3)
    assert training("--model.encoder.attention.heads", 5).startswith("5 heads do not divide d_model 32")
    assert "holds fewer than 8 rows" in training("--data.batch-tokens", 32)
    assert training("--optimizer.clip-norm", -1).startswith("optimizer.clip_norm is -1")
    assert training("--training.evaluate-translations", 0).startswith(
        "training.metric bleu needs translations"
    )
    assert training("--processes", 2).startswith(
        "2 processes need --coordinator HOST:PORT and --process from 0 to 1"
    )
    assert training("--process", 1).startswith("--coordinator and --process belong to several processes")


def test_a_rate_that_cannot_fall_is_refused_before_a_corpus_is_read(training, tmp_path):
    nowhere = "--train", tmp_path / "nothing.en", tmp_path / "nothing.de"
    said = training(*nowhere, "--optimizer.schedule", "cosine", "--optimizer.warmup-steps", 3)
    assert said.startswith("schedule cosine with 3 warm-up steps and --max-steps 3: give a --max-steps")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--data.rows-multiple", 0, "give at least 1"),
        ("--training.log-every", 0, "give at least 1"),
        ("--max-steps", -1, "give at least 1"),
        ("--decoding.beam-size", 0, "give at least 1"),
        ("--training.label-smoothing", 1, "a share of at least 0 and below 1"),
        ("--training.ema", 1, "a decay above 0 and below 1, such as 0.999"),
        ("--data.tokenizer.character-coverage", 0, "a share above 0 and up to 1"),
        ("--training.checkpoint-every", 0, "give at least 1"),
        ("--model.d-model", 0, "give at least 1"),
        ("--model.budget.control-hidden", 0, "give at least 1"),
        ("--model.budget.control-scale", 0, "give more than 0"),
        ("--training.budget.full-share", 1, "give more than 0 and less than 1"),
        ("--model.budget.control-scale", math.nan, "give more than 0"),
        ("--model.encoder.layers", 0, "give at least 1"),
        ("--model.decoder.feed-forward", -1, "give at least 1"),
        ("--data.workers", -1, "give 0 or more"),
        ("--training.keep-last", 0, "give at least 1"),
        ("--training.keep-best", -1, "give 0 or more"),
        ("--optimizer.learning-rate", -1, "give 0 or more"),
        ("--optimizer.factor", math.nan, "give 0 or more"),
        ("--optimizer.b2", 1, "a decay of at least 0 and below 1"),
        ("--decoding.min-length", -3, "give 0 or more"),
        ("--seed", -1, "give 0 to 2147483647"),
        ("--seed", 2**31, "give 0 to 2147483647"),
    ],
)
def test_numbers_out_of_range(training, option, value, said):
    flag = option.replace("--max", "--training.max")
    assert re.fullmatch(rf"{flag} {value}(\.0)?: {said}", training(option, value))


@pytest.mark.parametrize("minutes", [0, -5, math.nan, math.inf])
def test_a_time_that_is_none(training, minutes):
    assert training("--max-minutes", minutes) == f"--max-minutes {minutes:g}: give more than 0"


def test_tensorboard_that_is_not_installed(training, monkeypatch):
    monkeypatch.setattr("experiments.process.find_spec", {"tensorboardX": None}.get)
    said = training("--training.tensorboard")
    assert said == "--training.tensorboard needs tensorboardX: pip install 'flaxnmt[tensorboard]'"


def test_what_has_to_be_given(capsys, tmp_path, corpus):
    run = ["--run", tmp_path / "run"]
    assert "Missing from python -m experiments.train text_tiny: --run" in message(
        capsys, train.main, "text_tiny"
    )
    said = message(capsys, train.main, "text_tiny", *run, "--max-steps", 1)
    assert said == "no --train corpus: give two parallel files, a document file, tfds:NAME or discourse"
    endless = ["text_tiny", *run, *corpus, "--training.max-steps", "None", "--training.patience", "None"]
    assert message(capsys, train.main, *endless).startswith("training has no end: give --max-steps")


def test_outputs_that_cannot_be_written(capsys, tmp_path, corpus, trained):
    (tmp_path / "file").write_text("what must stay")
    said = message(capsys, train.main, *TINY, *corpus, "--max-steps", 1, "--run", tmp_path / "file" / "run")
    assert (
        said
        == f"{tmp_path / 'file' / 'run'}: no run directory can be made there (Not a directory); give another --run"
    )
    lines = write_lines(tmp_path / "lines", ["one"])
    command = ["translate", "--run", trained.directory, "--input", lines, "--output", tmp_path / "no" / "out"]
    assert message(capsys, cli.main, *command).startswith(f"{tmp_path / 'no' / 'out'}: cannot be written")
    # An output of before survives a command that fails.
    options = [
        "--run",
        tmp_path / "nothing",
        "--source",
        lines,
        "--target",
        lines,
        "--output",
        tmp_path / "file",
    ]
    assert message(capsys, cli.main, "score", *options).startswith(
        f"{tmp_path / 'nothing'}: no such run directory"
    )
    assert (tmp_path / "file").read_text() == "what must stay"


@pytest.mark.parametrize(
    "command",
    [
        "translate --input {file} --output {file}",
        "translate --input {file} --output {other} --used {other}",
        "translate --input {other} --prefix {file} --output {file}",
        "score --source {other} --target {file} --output {file}",
        "evaluate --source {other} --reference {file} --output {file}",
    ],
)
def test_what_is_read_is_not_written(capsys, tmp_path, command):
    files = {name: write_lines(tmp_path / name, ["what must stay"]) for name in ("file", "other")}
    arguments = command.format(**files).split()
    said = message(capsys, cli.main, *arguments, "--run", tmp_path / "nothing")
    assert said.endswith(" is what is read, and writing would empty it: name another file")
    assert all(path.read_text() == "what must stay\n" for path in files.values())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("translate --temperature 0.5", "--temperature needs --sample"),
        ("translate --seed 2", "--seed needs --sample"),
        ("translate --sample --beam-size 2", "--beam-size searches, and --sample draws: leave one of them out"),
        ("evaluate --source {file} --paragraphs", "--paragraphs says where documents end: give --documents too"),
        ("evaluate --source a.jsonl --documents --paragraphs", "--paragraphs says what blank lines end, and a.jsonl has"),
        ("evaluate --source {file} --documents --language de", "--language is of lines: leave --documents out"),
        (
            "evaluate --source {file} --documents --controls --baseline {file}",
            "--controls compare the run with itself: leave --baseline out",
        ),
        ("contrast --set x --form voita --documents {file}", "--documents belongs to --form contrapro and not to voita"),
        ("contrast --set x --form contrapro --controls", "--controls change a context, and ContraPro has none"),
    ],
)  # fmt: skip
def test_options_that_would_do_nothing(capsys, tmp_path, command, said):
    arguments = command.format(file=tmp_path).split()
    assert message(capsys, cli.main, *arguments, "--run", tmp_path / "nothing").startswith(said)


def test_what_cannot_be_scored_is_not_translated_first(capsys, tmp_path):
    files = {name: write_lines(tmp_path / name, ["one"] * count) for name, count in (("one", 1), ("two", 2))}
    command = [
        "evaluate",
        "--run",
        tmp_path / "nothing",
        "--source",
        files["one"],
        "--reference",
        files["one"],
    ]
    said = message(capsys, cli.main, *command, "--baseline", files["two"])
    assert said == f"{files['one']} has 1 lines and {files['two']} 2: they must match line by line"
    said = message(capsys, cli.main, *command, "--output", tmp_path / "no" / "out")
    unwritable = (
        f"{tmp_path / 'no' / 'out'}: cannot be written (No such file or directory); name another file"
    )
    assert said == unwritable
    assert message(capsys, cli.main, *command, "--samples", 0) == "--samples 0: it must be at least 1"
    corpus = write_lines(tmp_path / "corpus.jsonl", ['{"paragraphs": [{"src": ["one"]}]}'])
    documents = ["evaluate", "--run", tmp_path / "nothing", "--documents", "--source"]
    assert "a sentence without a target" in message(capsys, cli.main, *documents, corpus)
    said = message(capsys, cli.main, *documents, f"{corpus}[:1]", "--output", corpus)
    assert said == f"{corpus} is what is read, and writing would empty it: name another file"
    both = write_lines(tmp_path / "documents", ["one", "two", "", "three"])
    for lines in (["one", "", "two", "three"], ["one", "two", "three"], ["one", "two", "", "three", ""]):
        other = write_lines(tmp_path / "other", lines)
        said = message(capsys, cli.main, *documents, both, "--reference", both, "--baseline", other)
        assert said == (
            f"{other}: give a line for each of the 3 sentences of 2 documents, 4 lines with the blank ones between them, "
            "as --output writes them"
        )
    contrast = ["contrast", "--run", tmp_path / "nothing", "--set", "discourse:test:1", "--write-scores"]
    assert message(capsys, cli.main, *contrast, tmp_path / "no" / "out") == unwritable


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("transl --run x", "no command 'transl', did you mean 'translate'?: give translate, score, "),
        ("--debug", "no command '--debug': give translate, score, evaluate, contrast, check-data, and its options behind"),
        ("", "no command: give translate, score, "),
        ("score --run x --source {empty} --target {empty}", "{empty} is empty"),
        ("evaluate --run x --source {empty} --reference {empty}", "{empty} is empty"),
        ("score --run x --source {empty}.jsonl --target {empty}", "{empty}.jsonl: documents as JSON lines are no text"),
        ("evaluate --run x --source {empty}.jsonl", "{empty}.jsonl: documents as JSON lines: give --documents"),
    ],
)  # fmt: skip
def test_commands_that_name_nothing_to_do(capsys, tmp_path, command, said):
    empty = write_lines(tmp_path / "empty", [])
    assert cli.main(command.format(empty=empty).split()) == 2
    assert capsys.readouterr().err.removeprefix("error: ").startswith(said.format(empty=empty))


def test_input_and_output_that_are_not_there(capsys, tmp_path, trained, monkeypatch):
    run = ["--run", trained.directory]
    monkeypatch.setattr(sys, "stdin", None)
    assert message(capsys, cli.main, "translate", *run) == "there is no standard input: give --input"
    lines = write_lines(tmp_path / "lines", ["one"])
    said = message(capsys, cli.main, "translate", *run, "--input", lines, "--output", "/dev/full")
    assert said == "/dev/full: cannot be written (No space left on device); name another file"
    run = open_run(trained.directory)
    for call in (run.translate, run.hypotheses, lambda text: run.score(text, text)):
        with pytest.raises(ConfigError, match="'one' is one text: give a list of texts"):
            call("one")


def test_run_directories_that_are_half_there(capsys, tmp_path, trained):
    lines = write_lines(tmp_path / "lines", ["one"])
    run = tmp_path / "run"

    def translating():
        return message(capsys, cli.main, "translate", "--run", run, "--input", lines)

    assert translating() == f"{run}: no such run directory; train one with python -m experiments.train"
    run.mkdir()
    assert translating().startswith(f"{run}: no config.json in it")
    shutil.copy(trained.directory / "config.json", run)
    assert "no tokenizer" in translating()
    shutil.copytree(trained.directory / "tokenizer", run / "tokenizer")
    assert translating().startswith(f"{run / 'parameters.npz'}: no exported parameters")
    (run / "parameters.npz").write_bytes((trained.directory / "parameters.npz").read_bytes()[:-100])
    assert translating().startswith(f"{run / 'parameters.npz'}: not a whole parameter file")
    shutil.copy(trained.directory / "parameters.npz", run)
    config = (run / "config.json").read_text()
    assert '"d_model": 32' in config
    (run / "config.json").write_text(config.replace('"d_model": 32', '"d_model": 64'))
    said = translating()
    assert said.startswith(f"{run}: parameters.npz does not fit this configuration in ")
    assert "is float32[32], the model has float32[64]" in said
    for content in ('{"class": "Con', "[]", "3", '{"class": "Config"}'):
        (run / "config.json").write_text(content)
        assert translating().startswith(f"{run / 'config.json'}: not a whole configuration")
    config = json.loads((trained.directory / "config.json").read_text())
    config["model"]["d_modle"] = config["model"].pop("d_model")
    (run / "config.json").write_text(json.dumps(config))
    assert (
        translating()
        == f"{run / 'config.json'}: config.model.d_modle: no such field in Seq2SeqConfig, did you mean 'd_model'?"
    )


def test_options_out_of_range(capsys, tmp_path, trained):
    lines = write_lines(tmp_path / "lines", ["one"])
    command = ["translate", "--run", trained.directory, "--input", lines]
    said = message(capsys, cli.main, *command, "--n-best", 9)
    assert said == "9 best of a beam of 4: make --beam-size at least as large as --n-best"
    for option in ("--n-best", "--beam-size", "--batch-size", "--max-length"):
        for number in (0, -1):
            assert "must be at least 1" in message(capsys, cli.main, *command, option, number)
    for option, number in (("--max-length", 3_000_000_000), ("--min-length", -3), ("--min-length", 1 << 17)):
        said = message(capsys, cli.main, *command, option, number)
        assert said == f"{option} {number}: give at most 65536, and not less than 0"
    pair = ["--source", lines, "--target", lines]
    for alpha in (5000, math.nan, -math.inf):
        said = f"--length-penalty {alpha:g}: give one from -10 to 10, such as 0.6"
        assert message(capsys, cli.main, *command, "--length-penalty", alpha) == said
        assert message(capsys, cli.main, "score", *command[1:3], *pair, "--length-penalty", alpha) == said
    kept = write_lines(tmp_path / "kept", ["of before"])
    message(capsys, cli.main, *command, "--output", kept, "--n-best", 9)
    assert kept.read_text() == "of before\n"
    for option in ("--temperature", "--top-p"):
        for number in (0, math.nan):
            assert "must be above 0" in message(capsys, cli.main, *command, "--sample", option, number)
    two = write_lines(tmp_path / "two", ["one", "two"])
    assert message(capsys, cli.main, *command, "--prefix", two).startswith("2 prefixes for 1 lines")
    said = message(capsys, cli.main, "score", "--run", trained.directory, "--source", lines, "--target", two)
    assert said == f"{lines} has 1 lines and {two} 2: they must match line by line"
    assert "did you mean --beam-size?" in message(capsys, cli.main, *command, "--beem-size", 2)


def test_a_run_is_continued_only_by_its_own_configuration(capsys, trained):
    before = {path: path.stat().st_mtime_ns for path in trained.directory.rglob("*") if path.is_file()}
    arguments = [*trained.arguments, "--run", trained.directory]
    said = message(capsys, train.main, *arguments, "--model.dropout", 0.2, "--seed", 3)
    changes = "model.dropout: 0.05 -> 0.2; training.seed: 1 -> 3"
    assert (
        said
        == f"{trained.directory} was trained with another configuration ({changes}): give the same, or another --run directory"
    )
    steps = load("discourse_demo").training.max_steps
    assert f"training.max_steps: {steps} -> 9" in message(
        capsys, train.main, *arguments, "--optimizer.schedule", "cosine", "--max-steps", 9
    )
    assert before == {
        path: path.stat().st_mtime_ns for path in trained.directory.rglob("*") if path.is_file()
    }


def test_a_run_without_its_tokenizer_is_not_continued(capsys, tmp_path, trained):
    run = tmp_path / "run"
    shutil.copytree(trained.directory, run)
    shutil.rmtree(run / "tokenizer")
    said = message(capsys, train.main, *trained.arguments, "--run", run)
    assert said.startswith(f"{run / 'tokenizer'} is missing: bring it back")
    (run / "tokenizer").mkdir()
    said = message(capsys, train.main, *trained.arguments, "--run", run)
    assert said.startswith(f"{run / 'tokenizer'} holds no tokenizer: ") and "bring it back" in said


def test_parameters_of_other_shapes_are_no_start(training, trained):
    said = training("--init-from", trained.directory, "--model.encoder.feed-forward", 48)
    assert said.startswith(f"--init-from {trained.directory}: ") and "(32, 64) -> (32, 48)" in said
    assert "no exported parameters" in training("--init-from", trained.directory / "data")


def test_a_start_that_failed_may_be_corrected(capsys, tmp_path, corpus):
    """What it left counts no more when the configuration changes."""
    arguments = [*TINY, *corpus, "--run", tmp_path, "--max-steps", 1, "--data.tokenizer.kind", "char"]
    assert "holds fewer than 8 rows" in message(capsys, train.main, *arguments, "--data.batch-tokens", 64)
    assert (tmp_path / "tokenizer").is_dir()
    arguments[-1] = "bpe"
    assert "a bpe vocabulary of 2000" in message(capsys, train.main, *arguments)


def test_debug_shows_where_it_happened(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        cli.main(["check-data", str(tmp_path / "none.jsonl"), "--debug"])


def test_what_the_system_refuses_and_interrupts_are_one_line(capsys):
    def full():
        Path("/dev/full").write_text("one line")

    def unwritable():
        Path("/dev/full/run").mkdir()

    def interrupted():
        raise KeyboardInterrupt

    assert guarded(full, debug=False) == 2
    assert guarded(unwritable, debug=False) == 2
    assert guarded(interrupted, debug=False) == 130
    lines = ["error: No space left on device", "error: /dev/full/run: Not a directory", "interrupted"]
    assert capsys.readouterr().err.splitlines() == lines
    with pytest.raises(OSError):
        guarded(full, debug=True)

    def larger_than_memory():
        jnp.zeros(1 << 46).block_until_ready()

    assert guarded(larger_than_memory, debug=False) == 2
    said = capsys.readouterr().err
    assert "the device has no memory for this (RESOURCE_EXHAUSTED" in said and said.count("\n") == 1
    with pytest.raises(RuntimeError):
        guarded(larger_than_memory, debug=True)


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(trained, tmp_path):
    lines = write_lines(tmp_path / "lines", sentences(40, seed=3))
    command = [
        sys.executable,
        "-m",
        "flaxnmt.cli",
        "translate",
        "--run",
        trained.directory,
        "--input",
        lines,
        "--batch-size",
        "8",
    ]
    process = start("flaxnmt.cli", *map(str, command[3:]), stdout=(end := os.pipe())[1])
    os.close(end[0])
    os.close(end[1])
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
