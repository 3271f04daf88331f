"""The report of a run directory, whole or not."""

import json
import struct

import pytest
from markdown_tables import narrow

from experiments.report import best_row, main, report_text, show, table, write_report
from flaxnmt.errors import RunError
from flaxnmt.training.metrics import MetricsWriter

CONFIG = {
    "model": {"layers": 3, "kinds": ["a", "b"]},
    "optimizer": {"eps": 1e-9},
    "training": {"metric": "bleu"},
}
SPENT = {
    "init": 20.25,
    "compile": 40.0,
    "restore": 0.0,
    "data": 3.0,
    "step": 189.0,
    "save": 2.0,
    "evaluate": 15.75,
}
RUN = {"command": "train text | small", "parameters": 7654321, "versions": {"jax": "0.10.2"}, "seed": 3}


def make_run(directory, evaluations=3, finished=True):
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "run.json").write_text(json.dumps(RUN))
    with MetricsWriter(directory) as writer:
        writer.event(0, "started")
        for step in range(20, 100 * evaluations + 1, 20):
            values = {
                "loss": 8 - step / 60,
                "learning_rate": step * 1e-5,
                "target_tokens_per_second": 3000.0 + step,
            }
            writer.write(step, "train", values | {"step_seconds": 0.5, "padding": 0.07, "mfu": 0.41})
            if step % 100 == 0:
                bleu = {100: 11.0, 200: 23.5, 300: 21.0}[step]
                score = {"score": bleu, "signature": "nrefs:1|case:mixed"}
                writer.write(step, "dev", {"loss": 7.5 - step / 70, "bleu": score, "lines": 50})
        if finished:
            score = {"score": 22.25, "signature": "nrefs:1|x"}
            writer.write(200, "test", {"set": "test2016", "bleu": score})
            writer.event(
                300,
                "finished",
                compilations=12,
                compilations_after_warmup=0,
                bad_steps=2,
                minutes=4.5,
                phases=SPENT,
            )
    return directory


def png_size(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def test_report_tells_what_was_trained_and_how_it_went(tmp_path):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "demo")
    text = write_report(run).read_text()
    for line in (
        "# Run demo",
        "Finished at step 300.",
        "| dev (best) | 200 | bleu | 23.5 | nrefs:1\\|case:mixed |",
        "| dev (last) | 300 | bleu | 21 | nrefs:1\\|case:mixed |",
        "| test2016 | 200 | bleu | 22.25 | nrefs:1\\|x |",
        "| best step by bleu | 200 |",
        "| minutes of training | 4.5 |",
        "| goodput (share of the wall time in updates) | 0.7 |",
        "| seconds by phase | init 20.25, compile 40, restore 0, data 3, step 189, save 2, evaluate 15.75 |",
        "| target tokens per second (median) | 3160 |",
        "| share of the measured matrix-product peak (median) | 0.41 |",
        "| compilations | 12 |",
        "| compilations after warm-up | 0 |",
        "| non-finite steps (skipped) | 2 |",
        "| command | train text \\| small |",
        "| parameters | 7,654,321 |",
        "| versions.jax | 0.10.2 |",
        "| model.kinds | a b |",
        "| optimizer.eps | 1e-09 |",
    ):
        assert line in narrow(text)
    assert "![Curves" in text
    width, height = png_size(run / "curves.png")
    assert width > 800 and height > 500


@pytest.mark.parametrize("evaluations", [0, 1])
def test_an_unfinished_run_is_reported_as_such(tmp_path, evaluations):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "demo", evaluations, finished=False)
    text = write_report(run).read_text()
    assert f"Not finished; the record ends at step {100 * evaluations}." in text
    assert (run / "curves.png").exists() == bool(evaluations) == ("curves.png" in text)


def test_every_panel_draws_its_curves(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    made = []
    original = figure.Figure.subplots
    monkeypatch.setattr(figure.Figure, "subplots", lambda self, *a: made.append(self) or original(self, *a))
    write_report(make_run(tmp_path / "demo"))
    drawn = {axes.get_title(): [len(line.get_xdata()) for line in axes.lines] for axes in made[0].axes}
    assert list(drawn.values()) == [[15, 3], [3], [15], [15]]
    assert all(axes.get_xlabel() == "updates" for axes in made[0].axes)


def test_the_best_row_is_the_earliest_of_equals_and_the_lowest_loss():
    rows = [
        {"kind": "dev", "step": step, "bleu": bleu, "loss": bleu} for step, bleu in ((1, 2), (2, 5), (3, 5))
    ]
    assert best_row(rows, "bleu")["step"] == 2
    assert best_row(rows, "loss")["step"] == 1
    assert best_row(rows, "chrf") is None


def test_cells_stay_on_their_line():
    assert table(("a",), [("x|y\nz",), (1,)]) == ["| a      |", "| ------ |", "| x\\|y z |", "| 1      |"]
    long = "word " * 20
    assert [len(line) for line in table(("a", "b"), [(1, long), (2, 3)])] == [13, 13, 109, 13]
    assert [show(value) for value in (1234567, 0.000123456, 43210.9, True, None)] == [
        "1,234,567", "0.0001235", "43,211", "true", "-"
    ]  # fmt: skip
    assert report_text("empty", {}, {"seed": 1}, [], False).startswith(
        "# Run empty\n\nNo step is recorded yet."
    )


def test_the_command_prints_the_path_or_one_line(tmp_path, capsys):
    run = make_run(tmp_path / "demo", evaluations=1)
    assert main([str(run)]) == 0 and capsys.readouterr() == (f"{run / 'report.md'}\n", "")
    assert main([str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith(f"error: {tmp_path / 'none'}: no config.json")


def test_a_half_written_config_is_named(tmp_path):
    run = make_run(tmp_path / "demo", evaluations=0)
    (run / "config.json").write_text('{"model": ')
    with pytest.raises(RunError, match="config.json: not a whole JSON file"):
        write_report(run)
