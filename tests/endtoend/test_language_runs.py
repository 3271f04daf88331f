"""Encoders that are pre-trained on texts and fine-tuned for every head, and models of texts, as a user trains them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from markdown_tables import narrow
from tiny_runs import ROOT, write_lines

from experiments import train
from flaxnmt import open_run
from flaxnmt.data.readers import read_texts
from flaxnmt.data.tokenizers import ENCODER_SYMBOLS, SPECIALS
from flaxnmt.errors import ConfigError
from flaxnmt.training.metrics import read_metrics

# One process trains all runs, one after the other: each is a command.
SCRIPT = (
    "import json, sys; from experiments import train; sys.exit(max(map(train.main, json.load(sys.stdin))))"
)

SIZE = (
    "--model.d-model 32 --model.dropout 0.05 --data.max-length 32 --data.buckets 1 "
    "--optimizer.schedule constant --optimizer.warmup-steps 10"
).split()
ENCODER = (
    "--model.encoder.layers 1 --model.encoder.attention.heads 4 --model.encoder.feed-forward 64 "
    "--model.positions learned --model.max-positions 32"
).split()
TRAIN, DEV = "discourse:train:400", "discourse:dev:8"
TEXTS = (
    f"--train {TRAIN} --dev {DEV} --data.tokenizer.kind word --data.tokenizer.vocab-size 400 "
    "--data.batch-tokens 4096 --optimizer.learning-rate 0.01"
).split()
MASKED = [
    "masked_small",
    *SIZE,
    *ENCODER,
    *TEXTS,
    *"--training.log-every 10 --training.evaluate-every 200".split(),
]
TUNED = [
    *("classify_small", *SIZE, *ENCODER, *"--data.batch-tokens 512 --optimizer.learning-rate 0.003".split()),
    *"--training.log-every 20 --data.stride 8".split(),
]
HEADS = {
    "classes": ("tsv", "accuracy", ("accuracy", "f1", "matthews")),
    "pairs": ("jsonl", "accuracy", ("accuracy", "f1", "matthews")),
    "labels": ("conll", "f1", ("accuracy", "f1", "matthews")),
    "spans": ("json", "f1", ("exact_match", "f1")),
}
# Well above what guessing has.
LEARNED = {"pairs": 50, "labels": 90, "spans": 50}
# Lines of training, development and test, and updates: of one of three classes more are needed until it is no chance.
SIZES = dict.fromkeys(HEADS, (64, 12, 8)) | {"pairs": (192, 12, 48)}
UPDATES = dict.fromkeys(HEADS, 40) | {"pairs": 120}
FLAGS = {
    "classes": [],
    "pairs": ["--model.classes", "3"],
    "labels": ["--model.head", "labels", "--model.classes", "2"],
    "spans": ["--model.head", "spans"],
}
GATES = "--model.budget.encoder 1 0.5 --model.budget.blocks 2 --training.budget.weight 0.3".split()


def lines_of(corpus):
    return [sentence.source for document in read_texts(corpus) for sentence in document]


def written(folder, head, name, lines):
    """A set of these sentences. The first word says the class, capitals the labels, the end of a text is the answer."""
    suffix, path = HEADS[head][0], folder / f"{head}-{name}.{HEADS[head][0]}"
    if suffix == "tsv":
        rows = [f"{i % 2}\t{('the', 'in')[i % 2]} {line}" for i, line in enumerate(lines)]
        return write_lines(path, ["label\tsentence", *rows])
    if suffix == "jsonl":
        kinds = "entailment", "neutral", "contradiction"
        pairs = zip(lines, [*lines[1:], lines[0]])
        rows = [
            {"premise": one, "hypothesis": (one, other, "in")[i % 3], "label": kinds[i % 3]}
            for i, (one, other) in enumerate(pairs)
        ]
        return write_lines(path, list(map(json.dumps, rows)))
    if suffix == "conll":
        words = [
            [f"{word} {'NAME' if word[0].isupper() else 'O'}" for word in line.split()] for line in lines
        ]
        return write_lines(path, [row for sentence in words for row in (*sentence, "")])
    asked = [
        {
            "context": line,
            "qas": [
                {
                    "id": f"{i}",
                    "question": "in the",
                    "answers": [{"text": word, "answer_start": len(line) - len(word)}],
                }
            ],
        }
        for i, line in enumerate(lines)
        for word in [line.split()[-1]]
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": asked}]}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Flags that name the files of each head."""
    folder = tmp_path_factory.mktemp("sets")
    texts, others = lines_of(TRAIN), lines_of(DEV)
    found = {}
    for head, (rows, dev, test) in SIZES.items():
        parts = {"train": texts[:rows], "dev": others[:dev], "test": others[dev : dev + test]}
        files = {name: written(folder, head, name, lines) for name, lines in parts.items()}
        found[head] = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    return found


def lasting(updates):
    """Flags of a training of so many updates."""
    return ["--max-steps", str(updates), "--training.evaluate-every", str(updates // 2)]


def trained(commands):
    """Runs these, one after the other; what was said."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(commands),
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def tuned(folder, head, sets):
    """The command that fine-tunes for a head."""
    start = ["--init-from", str(folder / "masked"), "--run", str(folder / head)]
    length = lasting(UPDATES[head])
    return [*TUNED, *length, *FLAGS[head], *sets[head], *start, "--training.metric", HEADS[head][1]]


@pytest.fixture(scope="module")
def runs(sets, tmp_path_factory):
    """The directory of the runs, and what their training said."""
    folder = tmp_path_factory.mktemp("runs")
    commands = [
        [*MASKED, "--max-steps", "200", "--run", str(folder / "masked")],
        *([*MASKED, "--max-steps", steps, "--run", str(folder / "continued")] for steps in ("15", "30")),
        *(tuned(folder, head, sets) for head in HEADS if head != "labels"),
        [
            *TUNED,
            *lasting(40),
            *sets["classes"],
            *GATES,
            "--data.tokenizer.vocab-size",
            "100",
            "--run",
            str(folder / "gated"),
        ],
    ]
    return folder, trained(commands)


def report_of(run):
    return "\n".join(narrow((run / "report.md").read_text(encoding="utf-8")))


def rows_of(run, kind):
    return [row for row in read_metrics(run) if row["kind"] == kind]


@pytest.mark.slow
def test_masked_tokens_are_said_better_than_by_their_frequencies(runs):
    run = open_run(runs[0] / "masked")
    counts = []
    for corpus in (TRAIN, DEV):
        ids = [token for line in run.vocabularies.source.encode(lines_of(corpus)) for token in line]
        words = len(SPECIALS) + len(ENCODER_SYMBOLS)
        counts.append(np.bincount(ids, minlength=run.vocabularies.source.vocab_size)[words:].astype(float))
    seen, found = counts
    entropy = -(found * np.log((seen + 1) / (seen + 1).sum())).sum() / found.sum()
    (row,) = rows_of(run.directory, "dev")
    assert row["unigram_perplexity"] == pytest.approx(np.exp(entropy))
    assert row["loss"] < entropy - 0.1 and row["perplexity"] == pytest.approx(np.exp(row["loss"]))
    assert f"unigrams of the training texts: dev perplexity {np.exp(entropy):.1f}" in runs[1]
    report = report_of(run.directory)
    assert "| perplexity |" in report and "| unigram_perplexity |" in report


@pytest.mark.slow
def test_the_same_command_continues_bit_for_bit(runs):
    whole, continued = (
        {row["step"]: row for row in rows_of(runs[0] / name, "train")} for name in ("masked", "continued")
    )
    # A row ends with the first part, after 15 updates; the next whole one is of updates 21 to 30.
    names = "loss", "gradient_norm", "masked_accuracy"
    assert [continued[30][name] for name in names] == [whole[30][name] for name in names]
    assert sorted(continued) == [10, 15, 20, 30]


def check_scores(run, head):
    dev, (test,) = rows_of(run, "dev"), rows_of(run, "test")
    last = UPDATES[head]
    assert [row["step"] for row in dev] == [last // 2, last] and np.isfinite(dev[-1]["loss"])
    scores = HEADS[head][2]
    for row in (*dev, test):
        assert all(-100 <= row[name]["score"] <= 100 and row[name]["signature"] for name in scores)
    assert "budgets" not in test and test[scores[0]]["score"] >= LEARNED.get(head, 0)
    said = (run / "test.txt").read_text(encoding="utf-8").splitlines()
    assert len(said) == SIZES[head][2]
    return said


@pytest.mark.slow
@pytest.mark.parametrize("head", [head for head in HEADS if head != "labels"])
def test_every_head_is_fine_tuned_and_scored(runs, head):
    said = check_scores(runs[0] / head, head)
    if head == "classes":
        texts = [f"{('the', 'in')[i % 2]} {line}" for i, line in enumerate(lines_of(DEV)[12:20])]
        assert [label for label, _ in open_run(runs[0] / head).classify(texts)] == said


@pytest.mark.slow
def test_words_are_labelled(runs, sets):
    trained([tuned(runs[0], "labels", sets)])
    check_scores(runs[0] / "labels", "labels")


@pytest.mark.slow
def test_a_fine_tuned_run_starts_with_what_was_pre_trained(runs):
    log = runs[1].split("come from")
    assert len(log) == len(HEADS)
    fresh = [part.partition("fresh: ")[2].splitlines()[0] for part in log[1:]]
    assert all(line and all(name.startswith("head/") for name in line.split(", ")) for line in fresh)


@pytest.mark.slow
def test_gates_are_scored_at_every_budget(runs):
    run = open_run(runs[0] / "gated")
    for row in (*rows_of(run.directory, "dev"), *rows_of(run.directory, "test")):
        assert [at["budget"] for at in row["budgets"]] == [1.0, 0.5]
        full = row["budgets"][0]
        assert all(row[name] == full[name] for name in full if name != "budget")
        assert all(0 < at["use"] < 1.5 and 0 <= at["accuracy"]["score"] <= 100 for at in row["budgets"])
    assert all(np.isfinite(row["budget_loss"]) for row in rows_of(run.directory, "train"))
    report = report_of(run.directory)
    assert "| dev (best), budget 0.5 |" in report and "| test, budget 1 |" in report
    # Of one shape.
    texts = [line for line in lines_of(DEV) if 8 <= len(line.split()) <= 12][:3]
    whole, half = run.classify(texts, budget=1), run.classify(texts, budget=0.5)
    assert run.classify(texts) == whole
    assert [share for _, share in whole] != [share for _, share in half]
    with pytest.raises(ConfigError, match="not trained for the budget 0.3"):
        run.classify(texts, budget=0.3)
    with pytest.raises(ConfigError, match="this model has no budgets"):
        open_run(runs[0] / "classes").classify(texts, budget=0.5)


@pytest.mark.slow
def test_a_model_of_texts_completes_and_judges_them(tmp_path):
    sizes = (
        "--model.decoder.layers 1 --model.decoder.attention.heads 4 --model.decoder.feed-forward 64".split()
    )
    length = "--max-steps 60 --training.evaluate-every 30".split()
    trained([["causal_small", *SIZE, *TEXTS, *sizes, *length, "--run", str(tmp_path / "run")]])
    run = open_run(tmp_path / "run")
    first, last = rows_of(run.directory, "dev")
    assert last["perplexity"] < min(first["perplexity"], last["unigram_perplexity"])
    (text,) = run.complete(["The"], max_length=8)
    assert text.startswith("The") and len(text.split()) <= 8
    lines = lines_of(DEV)[:4]
    jumbled = [" ".join(line.split()[::-1]) for line in lines]
    assert 1 < run.perplexity(lines) < run.perplexity(jumbled)


WRONG = {
    "no texts": (["masked_small"], "no --train texts: give one file or several"),
    "no set": (["classify_small"], "no --train corpus: give a labelled file or tfds:NAME"),
    "no dev set": (["classify_small", "TRAIN"], "no --dev corpus"),
    "a score of translations": (
        ["masked_small", "SET", "--training.metric", "bleu"],
        "--training.metric bleu: a language model is judged by loss",
    ),
    "a score of translations for classes": (
        ["classify_small", "SET", "--training.metric", "bleu"],
        "--training.metric bleu: --model.head classes is judged by accuracy or f1 or matthews or loss",
    ),
    "a score of classes for translations": (
        ["discourse_demo", "--training.metric", "accuracy"],
        "--training.metric accuracy: a translation is judged by bleu or chrf or loss",
    ),
    "another number of classes": (
        ["classify_small", "SET", "--model.classes", "4"],
        ": 2 labels (0, 1): give --model.classes 2, or name all that there are with --data.labels",
    ),
    "no span": (["classify_small", "SET", "--model.head", "spans", "--training.metric", "f1"], "not JSON"),
    "few positions": (
        ["masked_small", "SET", "--model.positions", "learned", "--model.max-positions", "64"],
        "--data.max-length 128 is more than the 64 learned positions: raise --model.max-positions",
    ),
    "few positions of a translation": (
        ["discourse_demo", "--model.positions", "learned", "--model.max-positions", "64"],
        "--data.max-length 128 is more than the 64 learned positions: raise --model.max-positions",
    ),
    "few positions of source and target": (
        ["decoder_multi30k_en_de", "--model.positions", "learned", "--data.max-length", "300"],
        "--data.max-length 300, of source and target in one sequence, 600 symbols, is more than the 512 learned positions",
    ),
    "no label": (["classify_small", "SECRET"], "no example in it has a label"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_one_line(wrong, sets, tmp_path, capsys):
    given, expected = WRONG[wrong]
    files = sets["classes"]
    secret = write_lines(tmp_path / "secret.tsv", ["label\tsentence", "-1\tin the garden"])
    stand = {"SET": files, "TRAIN": files[:2], "SECRET": [*files[:2], "--dev", str(secret)]}
    argv = [part for word in given for part in stand.get(word, [word])]
    assert train.main([*argv, "--run", str(tmp_path / "run"), "--max-steps", "600"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and expected in error and error.count("\n") == 1, error
    assert not (tmp_path / "run" / "config.json").exists()
