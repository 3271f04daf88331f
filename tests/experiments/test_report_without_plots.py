import json
import sys

from experiments.report import write_report


def test_a_run_without_matplotlib_gets_its_report_and_a_line_about_curves(tmp_path, monkeypatch, caplog):
    rows = [{"step": step, "time": 0.0, "kind": "train", "loss": 1.0} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert "curves.png" not in write_report(tmp_path).read_text()
    assert not (tmp_path / "curves.png").exists()
    assert "flaxnmt[plots]" in caplog.text
