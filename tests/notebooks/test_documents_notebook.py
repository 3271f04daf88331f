"""The notebook on documents, executed on a tiny run in a process of its own."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib.image import imread
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "experiments/notebooks/documents.ipynb"


@pytest.fixture(scope="module")
def executed(trained_discourse):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLAXNMT_RUN", str(trained_discourse.directory))
        patch.setenv("PYTHONPATH", str(ROOT))
        return client.execute()


def outputs(notebook, kind):
    data = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    return [entry[kind] for entry in data if kind in entry]


@pytest.mark.slow
def test_accuracies_selections_and_the_path_are_drawn(executed):
    figures = [imread(BytesIO(b64decode(png))) for png in outputs(executed, "image/png")]
    assert len(figures) == 3
    for figure in figures:
        # Axes and text alone are shades of grey.
        assert (np.ptp(figure[..., :3], axis=-1) > 0.2).mean() > 0.005


@pytest.mark.slow
def test_tables_tell_of_the_document_and_of_the_model(executed):
    run, document, words, accuracies, decided, selected, paths = (
        text.splitlines() for text in outputs(executed, "text/markdown")
    )
    assert "| attention of the encoder layers | sentence, hierarchical |" in run
    ambiguous = [row.split(" | ") for row in words[2:]]
    decided_by = [row.split(" | ")[-1].rstrip(" |") for row in document[2:]]
    assert len(ambiguous) == sum(map(bool, decided_by)) >= 3
    assert sum("**" in row for row in document) >= len(ambiguous) - 1
    for row in ambiguous:
        sentence, distance = int(row[0].strip("| ")), int(row[4])
        assert abs(sentence - int(decided_by[sentence - 1])) == distance
    kinds = [line for line in accuracies if line.startswith("context")]
    assert kinds == ["context: true", "context: none", "context: random"]
    assert decided[0].endswith("Layers with a selection: 2.") and len(selected) == 3
    assert len(paths) == 2 + 4
    for path in paths[2:]:
        _, _, _, steps, total, sentence, _ = path.split("|")
        nodes = [int(step.split()[0]) for step in steps.split("\u2192")]
        scores = [float(step.split("(")[1].rstrip(") ")) for step in steps.split("\u2192")]
        assert nodes[0] == 0 and nodes[-1] == int(sentence) - 1
        assert sum(scores) == pytest.approx(float(total), abs=0.04)


def test_the_source_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
