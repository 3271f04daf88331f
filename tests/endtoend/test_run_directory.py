"""What a training leaves behind, what it says on the way, and what opening it gives."""

import json
import re

import numpy as np
import pytest
from markdown_tables import narrow
from tiny_runs import finish, sentences, start

import flaxnmt
from experiments.record import commit
from flaxnmt.config import Config

EPOCHS = 20


def test_the_directory_describes_the_run(trained):
    names = {path.name for path in trained.directory.iterdir()}
    assert names == {
        *("config.json", "run.json", "metrics.jsonl", "parameters.npz", "report.md", "curves.png"),
        *("tokenizer", "data", "checkpoints", "dev.txt", "test.txt"),
    }
    record = json.loads((trained.directory / "run.json").read_text())
    assert record["training_pairs"] == 600 and record["devices"] == "1 x cpu" and record["processes"] == 1
    assert record["command"].startswith("python -m experiments.train discourse_demo ")
    assert record["versions"]["flaxnmt"] == flaxnmt.__version__ + commit()
    assert re.match(r"\d+\.\d+", record["versions"]["jax"])
    assert re.fullmatch("[0-9a-f]{16}", record["tokenizer"])
    report = (trained.directory / "report.md").read_text()
    assert f"Finished at step {EPOCHS * record['batches_per_epoch']}" in report
    assert "tok:13a" in report and "| model.d_model | 32 |" in narrow(report)


def test_epochs_end_the_run_and_nothing_compiles_after_warm_up(trained, opened):
    steps = EPOCHS * opened.record["batches_per_epoch"]
    train = [row for row in opened.metrics if row["kind"] == "train"]
    assert [row["step"] for row in train] == list(range(1, steps + 1))
    assert [row["step"] for row in opened.metrics if row["kind"] == "dev"] == list(range(40, steps + 1, 40))
    assert [row["event"] for row in opened.metrics if row["kind"] == "event"] == ["started", "finished"]
    # Evaluations and saves are among what comes after the first epoch.
    assert train[-1]["compilations_after_warmup"] == 0 < train[-1]["compilations"]
    minutes = [row["minutes"] for row in train]
    assert minutes == sorted(minutes) and 0 < minutes[0] and minutes[-1] < 10
    # The peak is measured while others may use the cores, so that a share of it may be above 1.
    assert 0 < train[-1]["mfu"] and 0 < train[-1]["padding"] < 1


def test_the_terminal_shows_plain_lines_and_nothing_of_the_libraries(trained):
    assert trained.out == ""
    kinds = (
        r".*/data/train: 600 pairs tokenised",
        r"data: 600 pairs in 10 batches an epoch of rows x \(source, target\) 64 x \(8, 8\)",
        r"model: [\d,]+ parameters, vocabulary 14 \(word\)",
        r"devices: 1 x cpu",
        r"step \d+/200 · loss \d\.\d{3} · [\d,]+ tokens/s · \d\d:\d\d left",
        r"step \d+ · dev perplexity \d+\.\d{3} · BLEU \d+\.\d\d · chrF \d+\.\d\d( · best so far)?",
        r"test BLEU \d+\.\d\d · chrF \d+\.\d\d \(nrefs:1\|.*\)",
        r"finished: 200 updates, \d+\.\d minutes \(\d+% of them in updates\), best loss [\d.]+ at step \d+",
        r"report: .*/run/report\.md",
        r"to translate: flaxnmt translate --run .*/run --input FILE",
    )
    lines = trained.err.splitlines()
    for kind in kinds:
        assert any(re.fullmatch(kind, line) for line in lines), kind
    assert [line for line in lines if not any(re.fullmatch(kind, line) for kind in kinds)] == []


def test_an_open_run_is_arrays_of_numpy_and_a_model(opened):
    assert isinstance(opened.config, Config) and opened.config.model.d_model == 32
    leaves = [leaf for layer in opened.params.values() for leaf in flatten(layer)]
    assert leaves and all(type(leaf) is np.ndarray and leaf.dtype == np.float32 for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) == opened.record["parameters"]
    lines = sentences(5, seed=9)
    assert opened.translate(lines) == lines
    found = opened.hypotheses(lines, n_best=3)
    assert [outputs[0].text for outputs in found] == lines and all(len(outputs) == 3 for outputs in found)
    for score, line in zip(opened.score(lines, lines), lines, strict=True):
        assert len(score.tokens) == len(score.token_log_probs) == len(line.split()) + 1
        assert score.log_prob == pytest.approx(sum(score.token_log_probs))


def flatten(tree):
    return [leaf for value in tree.values() for leaf in flatten(value)] if isinstance(tree, dict) else [tree]


def test_attention_maps_are_distributions(opened):
    maps = opened.attention("two one three", "two one three")
    assert maps["source"] == maps["target"] and maps["target"][-1] == "</s>"
    size = len(maps["source"])
    for name in ("encoder", "decoder", "cross"):
        assert maps[name].shape == (1, 4, size, size)
        np.testing.assert_allclose(maps[name].sum(-1), 1, atol=1e-5)
    assert np.triu(maps["decoder"][0, 0], 1).max() == 0
    # A model that copies looks at the word that it copies.
    assert (maps["cross"][0].mean(0).argmax(-1) == np.arange(size)).mean() >= 0.5


READ_WITHOUT_A_DEVICE = """
import sys, flaxnmt
run = flaxnmt.open_run(sys.argv[1])
assert run.params and run.metrics and run.record and run.vocabularies and run.model
try:
    run.translate(["one two"])
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
def test_reading_a_run_initialises_no_backend(trained, tmp_path):
    # With a platform that does not exist, whatever asks for a device fails.
    (tmp_path / "read_without_a_device.py").write_text(READ_WITHOUT_A_DEVICE)
    process = start("read_without_a_device", str(trained.directory), cwd=tmp_path, platform="nowhere")
    assert "nowhere" in finish(process)[0]
