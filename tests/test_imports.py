import subprocess
import sys
from functools import cache

import pytest
from cases import slow_but

HEAVY = (
    "array_record",
    "grain",
    "jaxtyping",
    "matplotlib",
    "orbax",
    "pandas",
    "sacrebleu",
    "sacremoses",
    "sentencepiece",
    "sklearn",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "tokenizers",
    "tqdm",
    "tyro",
)
CORE = "import jax, flax, flax.linen, optax"


@cache
def after(statement: str) -> tuple[set[str], bool]:
    """Top-level modules of a fresh interpreter after the statement, and whether a backend has started."""
    script = (
        f"import sys\n{statement}\nfound = {{name.partition('.')[0] for name in sys.modules}}\n"
        "from jax._src import xla_bridge\nprint(xla_bridge.backends_are_initialized(), *found)"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    started, *modules = run.stdout.split()
    return set(modules), started == "True"


def loaded_by(statement: str) -> set[str]:
    return after(statement)[0]


def test_import_loads_nothing_heavier_than_flax_and_optax():
    alone = loaded_by(CORE)
    ours = loaded_by("import flaxnmt")
    assert {"flaxnmt", "jax", "flax", "optax"} <= ours
    assert sorted((ours - alone) & set(HEAVY)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    slow_but(["models.seq2seq"], ["attention.multihead", "models.seq2seq", "decoding.beam", "training.loss"]),
)
def test_modules_load_no_data_or_evaluation_library(module):
    extra = loaded_by(f"import flaxnmt.{module}") - loaded_by(CORE)
    assert sorted(extra & set(HEAVY) - {"jaxtyping"}) == []


def test_import_starts_no_backend():
    assert not after("import flaxnmt")[1]
