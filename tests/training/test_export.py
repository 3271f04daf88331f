"""Parameters written for others to read."""

import os
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.errors import RunError
from flaxnmt.training.export import nested, read_parameters, write_parameters

PARAMS = {
    "encoder": {
        "layer_0": {"kernel": jnp.arange(600.0).reshape(20, 30), "scale": jnp.full(3, 1.1, jnp.bfloat16)}
    },
    "steps": jnp.int32(5),
}


@pytest.fixture
def exported(tmp_path):
    write_parameters(tmp_path / "parameters.npz", PARAMS)
    return tmp_path / "parameters.npz"


def test_plain_numpy_reads_names_and_float32(exported):
    with np.load(exported, allow_pickle=False) as file:
        assert sorted(file.files) == ["encoder/layer_0/kernel", "encoder/layer_0/scale", "steps"]
        assert file["encoder/layer_0/scale"].dtype == np.float32
        np.testing.assert_array_equal(file["encoder/layer_0/scale"], np.float32(jnp.bfloat16(1.1)))


def test_the_tree_comes_back(exported):
    found = read_parameters(exported)
    layer = found["encoder"]["layer_0"]
    assert found.keys() == PARAMS.keys() and layer.keys() == {"kernel", "scale"}
    np.testing.assert_array_equal(layer["kernel"], PARAMS["encoder"]["layer_0"]["kernel"])
    assert (found["steps"], found["steps"].dtype) == (5, np.int32)


def test_writing_again_replaces_and_leaves_nothing_else(exported):
    write_parameters(exported, {"a": jnp.ones(2)})
    assert list(read_parameters(exported)) == ["a"]
    assert os.listdir(exported.parent) == ["parameters.npz"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-300])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def foreign_text(path):
    path.write_text("encoder 1 2 3\n")


def foreign_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", "not an array")


def foreign_pickle(path):
    np.savez(path, a=np.array([{"a": 1}], dtype=object))


def foreign_array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(200))


@pytest.mark.parametrize(
    "damage", [cut, flip_a_bit, foreign_text, foreign_zip, foreign_pickle, foreign_array]
)
def test_a_damaged_or_foreign_file_is_refused(exported, damage):
    damage(exported)
    with pytest.raises(RunError) as error:
        read_parameters(exported)
    assert str(exported) in str(error.value) and "\n" not in str(error.value)


def test_an_absent_file_says_what_to_do(tmp_path):
    with pytest.raises(RunError, match="no exported parameters; train the run first"):
        read_parameters(tmp_path / "parameters.npz")


def test_a_failed_write_keeps_the_earlier_file(exported, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_parameters(exported, {"a": jnp.ones(2)})
    monkeypatch.undo()
    assert list(read_parameters(exported)) == ["encoder", "steps"]
    assert os.listdir(exported.parent) == ["parameters.npz"]


def test_a_name_inside_an_array_is_no_tree():
    with pytest.raises(ValueError, match="inside an array"):
        nested({"a": np.ones(1), "a/b": np.ones(1)})
