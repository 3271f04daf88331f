"""Checkpoints across processes: killed while saving, read on other meshes, written by several hosts."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxnmt.training.checkpoints import Checkpoints
from flaxnmt.training.preemption import PREEMPTED

ROOT = Path(__file__).parents[2]

COMMON = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from flaxnmt.training.checkpoints import Checkpoints

def make_state(step):
    table = np.arange(256 * 512, dtype=np.float32).reshape(256, 512) * np.float32(1 / 3) + step
    return {"table": table, "scale": table[0, :8] * 2}, {"mu": table.T.copy(), "count": np.int32(step)}

def sharded(tree, mesh):
    def place(x):
        spec = P("data", "model") if x.ndim == 2 else P()
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])
    return jax.tree.map(place, tree)

def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)

def assert_same_bits(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        for shard in a.addressable_shards:
            assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(b[shard.index]).tobytes()
"""


def start(script, *arguments):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, "-W", "error", "-c", COMMON + script, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process, code=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err[-3000:]
    return out, err


SAVE_FOR_EVER = """
with Checkpoints(sys.argv[1], keep_last=2) as checkpoints:
    first = max(checkpoints.steps(), default=0) + 1
    for step in range(first, first + 10**6):
        checkpoints.save(step, *jax.tree.map(jnp.asarray, make_state(step)), {"step": step}, metric=step / 2)
"""


def saving(directory):
    """Half-written checkpoints; they may be renamed while they are looked at."""
    return [path for path in directory.glob("*.orbax-checkpoint-tmp*") if any(path.glob("*"))]


def completed(directory):
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]


def kill_while_saving(directory, after, jitter):
    """Start a process that saves without pause; kill it inside a save, once `after` more steps are saved."""
    goal = max(completed(directory), default=0) + after
    deadline = time.monotonic() + 60
    with start(SAVE_FOR_EVER, directory) as process:
        try:
            while time.monotonic() < deadline and process.poll() is None:
                if max(completed(directory), default=0) >= goal and saving(directory):
                    time.sleep(jitter)
                    break
            assert process.poll() is None, process.stderr.read()[-3000:]
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL and time.monotonic() < deadline
    return bool(saving(directory))


def newest(directory):
    table = np.zeros((256, 512), np.float32)
    params = {"table": table, "scale": table[0, :8]}
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, {"mu": table.T, "count": np.int32(0)})
    )
    with Checkpoints(directory, read_only=True) as checkpoints:
        return checkpoints.restore(*abstract)


def assert_newest_is_whole(directory):
    step, params, rest, progress = newest(directory)
    namespace = {}
    exec(COMMON, namespace)
    namespace["assert_same_bits"]((params, rest), namespace["make_state"](step))
    assert progress == {"step": step}
    assert step == max(completed(directory))


def test_killed_while_saving_the_newest_whole_checkpoint_restores(tmp_path):
    directory = tmp_path / "c"
    # Before the first checkpoint is whole there is nothing to restore, and no half one is taken for good.
    inside = kill_while_saving(directory, after=0, jitter=0)
    if not completed(directory):
        assert newest(directory) is None
    attempts = 1
    while inside < 2 and attempts < 5:
        inside += kill_while_saving(directory, after=2, jitter=random.random() * 0.02)
        assert_newest_is_whole(directory)
        attempts += 1
    assert inside >= 2, "too few kills hit a save"


@pytest.mark.slow
def test_many_kills(tmp_path):
    directory = tmp_path / "c"
    inside = 0
    for _ in range(10):
        inside += kill_while_saving(directory, random.randrange(1, 5), jitter=random.random() * 0.05)
        assert_newest_is_whole(directory)
    assert inside >= 5


SAVE_ON_8 = """
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
with Checkpoints(sys.argv[1]) as checkpoints:
    checkpoints.save(7, *(sharded(tree, mesh) for tree in make_state(7)), {"step": 7})
"""

RESTORE_ON_4_AND_1 = """
for shape in ((1, 4), (2, 2), (1, 1)):
    mesh = Mesh(np.array(jax.devices()[:shape[0] * shape[1]]).reshape(shape), ("data", "model"))
    targets = [sharded(tree, mesh) for tree in make_state(0)]
    with Checkpoints(sys.argv[1], read_only=True) as checkpoints:
        step, params, rest, progress = checkpoints.restore(*map(abstract, targets))
    assert (step, progress) == (7, {"step": 7})
    assert params["table"].sharding == targets[0]["table"].sharding
    assert_same_bits((params, rest), make_state(7))
    assert_same_bits(checkpoints.average([7], abstract(targets[0]))[0], make_state(7)[0])
print("restored")
"""


def test_restores_on_other_meshes(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    for script in (SAVE_ON_8, RESTORE_ON_4_AND_1):
        exec(COMMON + script, {})
    assert capfd.readouterr() == ("restored\n", "")
    assert_newest_is_whole(tmp_path)


DEVICES = 'jax.config.update("jax_num_cpu_devices", {})'


@pytest.mark.slow
def test_restores_on_fewer_devices(tmp_path):
    finished(start(DEVICES.format(8) + SAVE_ON_8, tmp_path))
    assert finished(start(DEVICES.format(4) + RESTORE_ON_4_AND_1, tmp_path)) == ("restored\n", "")
    assert_newest_is_whole(tmp_path)


TWO_HOSTS = """
import time
from jax.experimental import multihost_utils
from flaxnmt.training.preemption import PREEMPTED, Preemption
jax.config.update("jax_num_cpu_devices", 2)
directory, port, process = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(f"localhost:{port}", 2, process)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
states = lambda step: [sharded(tree, mesh) for tree in make_state(step)]
with Checkpoints(directory, keep_last=2) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, *states(step), {"step": step}, metric=step)
    checkpoints.finish()
    if process == 0:
        # Whatever only one host reads is missing: every host has to leave this checkpoint out.
        for path in [*checkpoints.directory.glob("2/params/ocdbt.process_1/d/*")]:
            path.write_bytes(b"")
    multihost_utils.sync_global_devices("damaged")
    step, params, rest, progress = checkpoints.restore(*map(abstract, states(0)))
    assert (step, progress) == (1, {"step": 1})
    assert_same_bits((params, rest), make_state(1))
    print("restored", flush=True)
    with Preemption() as preemption:
        for step in range(3, 10**6):
            time.sleep(0.01)
            if preemption.requested(step):
                checkpoints.save(step, *states(step), {"step": step})
                break
print(step, flush=True)
jax.distributed.shutdown()
sys.exit(PREEMPTED)
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_hosts_fall_back_together_and_stop_at_the_same_step(tmp_path):
    port = free_port()
    hosts = [start(TWO_HOSTS, tmp_path, port, index) for index in range(2)]
    try:
        # Gloo writes to standard output too.
        for host in hosts:
            assert "restored\n" in iter(host.stdout.readline, "")
        hosts[1].send_signal(signal.SIGTERM)
        outputs = [finished(host, PREEMPTED) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    stopped = {int(out.split()[-1]) for out, _ in outputs}
    assert len(stopped) == 1, "the hosts stopped at different steps"
    assert_newest_is_whole(tmp_path)
    assert newest(tmp_path)[0] == stopped.pop()
