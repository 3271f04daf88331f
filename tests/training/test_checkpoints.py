"""Saving, retention, damage, misfits and a full disk, on real files."""

import logging
import os
import shutil
import subprocess
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but

from flaxnmt.errors import RunError
from flaxnmt.training.checkpoints import Checkpoints, absolute
from flaxnmt.training.integrity import checksum
from flaxnmt.training.retention import ranked, retained


class Moments(NamedTuple):
    count: jax.Array
    mu: dict
    nothing: tuple = ()


def make_state(seed, width=40):
    key = jax.random.key(seed)
    params = {
        "encoder": {
            "kernel": jax.random.normal(key, (30, width)),
            "scale": jnp.ones(width, jnp.bfloat16),
        },
        "zeros": jnp.zeros((20, 3)),
    }
    rest = {
        "opt": (Moments(jnp.int32(seed), jax.tree.map(lambda x: x * 3, params)), None),
        "step": jnp.int32(7),
    }
    return params, rest


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save_steps(directory, steps, **options):
    with Checkpoints(directory, keep_last=len(steps), keep_best=0, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, *make_state(step), {"epoch": step / 10})


def restored(directory, **options):
    with Checkpoints(directory, **options) as checkpoints:
        return checkpoints.restore(*map(abstract, make_state(0)))


def test_restores_the_newest_bit_for_bit_and_quietly(tmp_path, capfd):
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.restore(*map(abstract, make_state(0))) is None
        for step in (1, 2):
            params, rest = make_state(step)
            checkpoints.save(step, params, rest, {"epoch": 0.1 * step, "position": [3, step]})
            # A training step donates its arrays while the save is still under way.
            overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x - 1, tree), donate_argnums=0)
            jax.block_until_ready(overwrite((params, rest)))
    with Checkpoints(tmp_path / "c") as checkpoints:
        step, params, rest, progress = checkpoints.restore(*map(abstract, make_state(0)))
        assert_same_bits(checkpoints.average([1], abstract(params))[0], make_state(1)[0])
    assert step == 2
    assert_same_bits((params, rest), make_state(2))
    assert progress == {"epoch": 0.1 * 2, "position": [3, 2]}
    assert capfd.readouterr() == ("", "")


def test_parameters_are_read_without_the_rest(tmp_path):
    save_steps(tmp_path, [1])
    shutil.rmtree(tmp_path / "1" / "rest")
    params, _ = Checkpoints(tmp_path, read_only=True).average([1], abstract(make_state(0)[0]))
    assert_same_bits(params, make_state(1)[0])


@pytest.mark.parametrize(("mode", "best"), [("max", [3, 5]), ("min", [2, 1])])
def test_best_ignores_missing_metrics_and_prefers_the_earlier(mode, best):
    metrics = {1: 0.4, 2: 0.1, 3: 0.9, 4: None, 5: 0.9, 6: float("nan"), 7: None}
    assert ranked(metrics, mode)[:2] == best
    assert retained(metrics, keep_last=2, keep_best=2, mode=mode) == {6, 7, *best}
    assert retained(metrics, keep_last=2, keep_best=2, mode=mode, passing={4, 7}) == {5, 6, 7, *best}


def test_what_was_saved_in_passing_is_continued_from_and_counts_for_nothing(tmp_path):
    def save(checkpoints, step, **options):
        checkpoints.save(step, *make_state(step), {}, wait=True, **options)

    with Checkpoints(tmp_path, keep_last=2, keep_best=0) as checkpoints:
        for step in (2, 4):
            save(checkpoints, step)
        save(checkpoints, 5, passing=True)
        assert checkpoints.steps() == [2, 4, 5] and checkpoints.last_steps(2) == [2, 4]
    with Checkpoints(tmp_path, keep_last=2, keep_best=0) as checkpoints:
        assert checkpoints.restore(*map(abstract, make_state(0)))[0] == 5
        assert checkpoints.last_steps(2) == [2, 4]
        save(checkpoints, 6)
        assert checkpoints.steps() == [4, 6]
        save(checkpoints, 7, passing=True)
        # It turned out to be the end.
        save(checkpoints, 7)
        assert checkpoints.last_steps(2) == [6, 7]


def test_a_score_that_came_after_the_save_is_known_later(tmp_path):
    with Checkpoints(tmp_path, keep_last=3) as checkpoints:
        checkpoints.save(1, *make_state(1), {}, wait=True)
    with Checkpoints(tmp_path, keep_last=3) as checkpoints:
        checkpoints.save(1, *make_state(1), {}, metric=30.0)
        checkpoints.save(2, *make_state(2), {}, metric=20.0, wait=True)
    assert Checkpoints(tmp_path, read_only=True).best_steps(2) == [1, 2]


def test_keeps_the_last_and_the_best_on_disk(tmp_path):
    with Checkpoints(tmp_path, keep_last=1, keep_best=1) as checkpoints:
        for step, metric in enumerate([20.0, None, 30.0, 25.0, None], start=1):
            checkpoints.save(step, *make_state(step), {}, metric=metric)
        assert checkpoints.steps() == [3, 5]
    with Checkpoints(tmp_path, keep_last=1, keep_best=1) as checkpoints:
        assert checkpoints.best_steps() == [3]
        checkpoints.save(6, *make_state(6), {}, metric=1.0)
        assert checkpoints.steps() == [3, 6]
        assert checkpoints.last_steps(1) == [6]


def test_of_a_saved_step_the_record_alone_is_written_anew(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, *make_state(4), {"first": True}, passing=True)
        checkpoints.save(4, *make_state(5), {"first": False}, metric=30.0)
    with Checkpoints(tmp_path) as checkpoints:
        _, params, rest, progress = checkpoints.restore(*map(abstract, make_state(0)))
        assert (checkpoints.best_steps(), checkpoints.last_steps(1)) == ([4], [4])
    assert progress == {"first": False}
    assert_same_bits((params, rest), make_state(4))
    assert not list((tmp_path / "4" / "progress").glob("*.partial"))


def largest(directory):
    return max((f for f in directory.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def data_file(item):
    # The arrays' bytes are in the data files of the process; the files above them are indices.
    return lambda step: largest(step / item / "ocdbt.process_0" / "d")


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def delete(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    save_steps(directory, [1, 2])
    return directory


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        (data_file("params"), truncate),
        pytest.param(data_file("params"), empty, marks=pytest.mark.slow),
        pytest.param(data_file("params"), delete, marks=pytest.mark.slow),
        (data_file("params"), flip_a_bit),
        pytest.param(data_file("rest"), flip_a_bit, marks=pytest.mark.slow),
        pytest.param(lambda step: step / "params" / "manifest.ocdbt", truncate, marks=pytest.mark.slow),
        pytest.param(lambda step: step / "rest" / "manifest.ocdbt", delete, marks=pytest.mark.slow),
        pytest.param(lambda step: step / "params" / "_METADATA", truncate, marks=pytest.mark.slow),
        pytest.param(lambda step: step / "progress" / "metadata", empty, marks=pytest.mark.slow),
        (lambda step: step / "progress" / "metadata", flip_a_bit),
        (lambda step: step / "params", delete),
        pytest.param(lambda step: step / "rest", delete, marks=pytest.mark.slow),
        pytest.param(lambda step: step / "progress", delete, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    two_checkpoints, tmp_path, caplog, capfd, which, damage
):
    directory = shutil.copytree(two_checkpoints, tmp_path / "c")
    damage(which(directory / "2"))
    with Checkpoints(directory, keep_last=2) as checkpoints:
        with caplog.at_level(logging.WARNING):
            step, params, rest, progress = checkpoints.restore(*map(abstract, make_state(0)))
        assert (step, progress) == (1, {"epoch": 0.1})
        assert_same_bits((params, rest), make_state(1))
        (record,) = caplog.records
        assert str(directory / "2") in record.getMessage() and "\n" not in record.getMessage()
        assert capfd.readouterr().err == ""
        # The damaged one does not count as one of the last two, and its step can be saved again.
        checkpoints.save(2, *make_state(2), {"again": True})
        assert checkpoints.steps() == [1, 2]
    assert restored(directory)[3] == {"again": True}


def test_a_damaged_checkpoint_is_removed_by_the_next_save(two_checkpoints, tmp_path):
    directory = shutil.copytree(two_checkpoints, tmp_path / "c")
    truncate(data_file("params")(directory / "2"))
    with Checkpoints(directory, keep_last=2) as checkpoints:
        assert checkpoints.restore(*map(abstract, make_state(0)))[0] == 1
        checkpoints.save(3, *make_state(3), {})
    assert sorted(os.listdir(directory)) == ["1", "3"]


def test_nothing_readable_is_an_error_not_a_new_start(two_checkpoints, tmp_path):
    directory = shutil.copytree(two_checkpoints, tmp_path / "c")
    for step in "12":
        truncate(data_file("rest")(directory / step))
    with pytest.raises(RunError, match="no checkpoint can be read"):
        restored(directory)
    assert sorted(os.listdir(directory)) == ["1", "2"]


def test_a_misfit_is_refused_with_names_and_shapes(two_checkpoints):
    params, rest = map(abstract, make_state(0, width=41))
    del params["zeros"]
    params["extra"] = {f"{i:02}": jax.ShapeDtypeStruct((2, i), jnp.float32) for i in range(12)}
    with pytest.raises(RunError) as error:
        Checkpoints(two_checkpoints, read_only=True).restore(params, rest)
    message = str(error.value)
    assert "in 15 arrays" in message and "and 5 more" in message and "\n" not in message
    assert "encoder/kernel is float32[30,40], the model has float32[30,41]" in message
    assert "extra/07 is absent, the model has float32[2,7]" in message
    assert "extra/08" not in message


def test_another_type_is_a_misfit(two_checkpoints):
    params, rest = map(abstract, make_state(0))
    params["zeros"] = jax.ShapeDtypeStruct((20, 3), jnp.bfloat16)
    with pytest.raises(RunError, match=r"zeros is float32\[20,3\], the model has bfloat16\[20,3\]"):
        Checkpoints(two_checkpoints, read_only=True).restore(params, rest)


@pytest.mark.slow
def test_average_is_the_mean_of_the_sound_ones(tmp_path, caplog):
    save_steps(tmp_path, [1, 2, 3, 4])
    truncate(data_file("params")(tmp_path / "2"))
    checkpoints = Checkpoints(tmp_path, read_only=True)
    target = abstract(make_state(0)[0])
    found, steps = checkpoints.average([1, 2, 4], target)
    assert steps == [1, 4]
    expected = (np.float64(make_state(1)[0]["encoder"]["kernel"]) + make_state(4)[0]["encoder"]["kernel"]) / 2
    np.testing.assert_allclose(found["encoder"]["kernel"], expected, rtol=1e-6)
    assert found["encoder"]["scale"].dtype == jnp.bfloat16
    assert "damaged" in caplog.text
    assert_same_bits(checkpoints.average([3], target)[0], make_state(3)[0])
    with pytest.raises(RunError, match="no checkpoint left"):
        checkpoints.average([2], target)


def test_reading_changes_nothing(tmp_path):
    save_steps(tmp_path / "c", [1])
    (tmp_path / "c" / "2.orbax-checkpoint-tmp").mkdir()
    assert Checkpoints(tmp_path / "c", read_only=True).steps() == [1]
    assert Checkpoints(tmp_path / "absent", read_only=True).steps() == []
    assert sorted(os.listdir(tmp_path / "c")) == ["1", "2.orbax-checkpoint-tmp"]
    assert not (tmp_path / "absent").exists()
    assert restored(tmp_path / "c")[0] == 1
    assert os.listdir(tmp_path / "c") == ["1"]


def test_local_paths_are_absolute_and_urls_pass(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(absolute("runs/demo")) == str(tmp_path / "runs" / "demo")
    assert str(absolute("gs://bucket/runs/demo")) == "gs://bucket/runs/demo"


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", tmp_path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("wait", slow_but([False], [True, False]))
def test_a_full_disk_is_one_line_and_the_last_good_checkpoint_stays(small_disk, capfd, wait):
    # The first takes 0.6 MB of the 3 MB, the second would take 2.9 MB.
    params, rest = make_state(1, width=2500)
    with Checkpoints(small_disk / "c", keep_last=1) as checkpoints:
        checkpoints.save(1, params, rest, {}, wait=True)
        with pytest.raises(RunError, match="the disk is full: free some space") as error:
            for step in (2, 3, 4):
                checkpoints.save(step, *make_state(step, width=12000), {}, wait=wait)
        assert "\n" not in str(error.value) and str(small_disk / "c" / "2") in str(error.value)
        assert checkpoints.steps() == [1]
        # Once there is space the same object goes on, and nothing of the failed save is left.
        subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
        checkpoints.save(5, params, rest, {"after": True})
    assert os.listdir(small_disk / "c") == ["5"]
    with Checkpoints(small_disk / "c") as checkpoints:
        step, *trees, progress = checkpoints.restore(abstract(params), abstract(rest))
    assert (step, progress) == (5, {"after": True})
    assert_same_bits(tuple(trees), (params, rest))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.bool_])
def test_checksum_sees_every_bit_and_position(dtype):
    x = (jnp.arange(24) % 5 * 3).astype(dtype).reshape(4, 6)
    value = int(checksum(x))
    assert value == int(checksum(x + 0 if dtype != jnp.bool_ else x))
    assert value != int(checksum(x[::-1]))
    assert value != int(checksum(x.at[2, 3].set((x[2, 3] == 0).astype(dtype))))
    assert int(checksum(jnp.zeros((4, 6), dtype))) == 0
