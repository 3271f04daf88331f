"""Executing a notebook in a process of its own."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib.image import imread
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "experiments/notebooks"


def execute(name: str, **environment: str) -> dict[str, list[str]]:
    """What it shows, in order, by kind; nothing but pictures and texts, such as a warning, may be shown."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOKS)}})
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        # It finds the checkout by itself, as for a user.
        patch.delenv("PYTHONPATH", raising=False)
        executed = client.execute()
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    strange = [output for output in outputs if output.output_type not in ("display_data", "execute_result")]
    assert not strange, strange
    kinds = ("image/png", "text/markdown")
    return {kind: [output.data[kind] for output in outputs if kind in output.data] for kind in kinds}


def coloured(png: str) -> float:
    """The share of a picture that has a colour: axes and text alone are shades of grey."""
    figure = imread(BytesIO(b64decode(png)))
    return float((np.ptp(figure[..., :3], axis=-1) > 0.2).mean())


def assert_source_alone(name: str) -> None:
    """It is committed without outputs."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
