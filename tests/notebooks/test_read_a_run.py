import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib.image import imread
from nbclient import NotebookClient

from experiments.train import main

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "experiments/notebooks/read_a_run.ipynb"
TINY_RUN = (
    "discourse_demo --train discourse:train:40 --dev discourse:dev:1 --test discourse:dev:1 "
    "--model.d-model 16 --model.encoder.layers 1 --model.decoder.layers 1 --data.tokenizer.vocab-size 300 "
    "--data.batch-tokens 256 --data.buckets 1 --max-steps 6 --training.evaluate-every 3 "
    "--training.log-every 2"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    assert main([*TINY_RUN.split(), "--run", str(directory)]) == 0
    return directory


@pytest.fixture(scope="module")
def executed(run):
    """The notebook after it ran, in a process of its own."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLAXNMT_RUN", str(run))
        patch.setenv("PYTHONPATH", str(ROOT))
        return client.execute()


def outputs(notebook, kind):
    data = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    return [entry[kind] for entry in data if kind in entry]


@pytest.mark.slow
def test_curves_and_attention_maps_are_drawn(executed):
    figures = [imread(BytesIO(b64decode(png))) for png in outputs(executed, "image/png")]
    assert len(figures) == 3
    for figure in figures:
        colours = np.unique(figure.reshape(-1, figure.shape[-1]), axis=0)
        # Axes and text alone are shades of grey.
        coloured = np.ptp(colours[:, :3], axis=1) > 0.2
        assert coloured.sum() > 5


@pytest.mark.slow
def test_scores_have_signatures_and_translations_their_alternatives(executed):
    tables = outputs(executed, "text/markdown")
    run, scores, translations, alternatives, tokens = [table.splitlines() for table in tables]
    assert any("discourse_demo" in row or "command" in row for row in run)
    assert sum("version:" in row for row in scores) == 6
    assert len(translations) == 2 + 3
    assert len(alternatives) == 2 + 4
    ranked = [float(row.split("|")[-2]) for row in alternatives[2:]]
    assert ranked == sorted(ranked, reverse=True)
    assert tokens[0].rstrip(" |").endswith("</s>")


@pytest.mark.slow
def test_the_example_of_the_readme_reads_the_run(run, capsys):
    code, *_ = re.findall(
        r"```python\n([^`]*open_run[^`]*)```", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    exec(code.replace("runs/mine", str(run)), {})
    d_model, *_ = capsys.readouterr().out.splitlines()[-1].split()
    assert d_model == "16"


def test_the_source_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
