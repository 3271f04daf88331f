"""Plans: what is refused before anything is compiled, and real programs of the TPU compiler where it is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import configs
from flaxnmt.errors import ConfigError
from tpu import plan, plans
from tpu.plan import meshes, parse, shape_of
from tpu.program import _exhausted
from tpu.slices import parse_slice

ROOT = Path(__file__).parents[2]


def planned(command: str) -> tuple[int, str, str]:
    """Exit code, output, errors of `python -m tpu.plan`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-m", "tpu.plan", *command.split()],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_shapes_of_batches():
    arguments = parse("transformer_base --slice v5e-16".split())
    assert shape_of(arguments.config, arguments) == ((512, 128), (512, 128))
    arguments = parse("transformer_base --slice v5e-16 --source-length 64 --target-length 32".split())
    assert shape_of(arguments.config, arguments) == ((2048, 64), (2048, 32))
    arguments = parse("transformer_base --slice v5e-16 --decode --source-length 20".split())
    assert shape_of(arguments.config, arguments) == ((64, 20), (64, 20))
    arguments = parse("discourse_document --slice v5e-4 --sentences 8 --source-length 16".split())
    rows = arguments.config.data.batch_tokens // 128
    assert shape_of(arguments.config, arguments) == ((rows, 8, 16), (rows, 8, 16))
    with pytest.raises(ConfigError, match="holds fewer than 64 rows"):
        arguments = parse("transformer_base --slice v5e-16 --data.batch-tokens 4096".split())
        shape_of(arguments.config, arguments)


def test_meshes_that_are_tried_use_all_devices_and_no_network_but_for_data():
    for slice_, slices in ((parse_slice("v5e-16"), 1), (parse_slice("v5e-16"), 2), (parse_slice("v3-8"), 1)):
        found = meshes(slice_, slices)
        devices = slice_.planned_devices * slices
        assert len(set(found)) == len(found) and found[0].data == devices
        assert all(mesh.data * mesh.fsdp * mesh.model == devices for mesh in found)
        assert all(mesh.data % slices == 0 for mesh in found)


def test_the_compilers_words_on_memory():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 40.05G of "
        "15.75G hbm. Exceeded hbm capacity by 24.30G."
    )
    assert _exhausted(message) == ("needs 40.05G of 15.75G of memory on each device", int(40.05 * 2**30))


@pytest.mark.parametrize(
    "command, said",
    [
        ("transformer_base --slice v5-16", "error: no slice is called 'v5-16'"),
        ("transformer_base --slice v5e-16 --slices 0", "error: --slices 0: at least 1"),
        ("transformer_base", "error: "),
    ],
)
def test_mistakes_are_one_line(command, said, capsys):
    assert plan.main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1


def test_every_documented_plan_is_understood():
    for command in plans.PLANS.values():
        arguments = parse(command.split())
        assert parse_slice(arguments.slice).chips and shape_of(arguments.config, arguments)


@pytest.mark.tpu
def test_pure_data_parallelism_reduces_and_does_nothing_else(tmp_path):
    rows = compiled(tmp_path, "text_tiny --slice v5e-4")
    assert set(rows["collectives"]) == {"all-reduce"} and rows["fits"] and rows["mesh"]["data"] == 4


@pytest.mark.tpu
@pytest.mark.parametrize("layers", ["", " --model.scan"], ids=["in turn", "scanned"])
def test_fsdp_gathers_and_holds_no_more_than_the_largest_layer_beyond(layers, tmp_path):
    data, fsdp = (
        compiled(tmp_path, f"text_small --slice v5e-4 --mesh.data {ways} --mesh.fsdp {4 // ways}{layers}")
        for ways in (4, 1)
    )
    assert "all-gather" in fsdp["collectives"] and fsdp["parameters"] < 0.3 * data["parameters"]
    config = configs.load("text_small").model
    embedding = 4 * 8000 * config.d_model
    assert fsdp["temporaries"] <= data["temporaries"] + embedding


@pytest.mark.tpu
def test_a_step_of_the_search_and_two_slices(tmp_path):
    beam = compiled(tmp_path, "text_tiny --slice v5e-4 --decode")
    assert beam["program"] == "beam step" and beam["fits"] and beam["seconds"] > 0 and not beam["encoders"]
    two = compiled(tmp_path, "text_tiny --slice v5e-4 --slices 2")
    assert two["chips"] == 8 and two["mesh"]["data"] == 8


@pytest.mark.tpu
def test_encoders_in_turn_are_weighed_against_side_by_side(tmp_path):
    row = compiled(tmp_path, "text_tiny --slice v5e-4 --model.encoder.branches lstm:1 attention:1")
    assert row["encoders"]["names"] == ["lstm:1", "attention:1"] and min(row["encoders"]["seconds"]) > 0


@pytest.mark.tpu
def test_what_does_not_fit_is_said_with_what_to_do():
    code, said, _ = planned(
        "transformer_big --slice v5e-4 --data.batch-tokens 1048576 --data.rows-multiple 4 --model.compute-dtype float32"
    )
    assert code == 1 and "does not fit" in said and "--model.remat" in said and "--mesh.fsdp" in said


def compiled(tmp_path: Path, command: str) -> dict:
    """The row of a plan."""
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    code, said, error = planned(f"{command} --json {path}")
    assert code == 0, (said, error)
    return json.loads(path.read_text())
