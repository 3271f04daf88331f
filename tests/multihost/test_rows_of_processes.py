"""Which rows of a batch each of two processes loads, on meshes that put their devices in any order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import free_port

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, sys
import jax, numpy as np

process = int(sys.argv[2])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[1], 2, process)
from flaxnmt.sharding import make_mesh, owned_rows, put_batch

whole = np.arange(16).reshape(8, 2)
found = {}
for order in ([0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3]):
    for sizes in ([4, 1, 1], [2, 2, 1], [2, 1, 2]):
        mesh = make_mesh(*sizes, devices=[jax.devices()[place] for place in order])
        rows = owned_rows(8, mesh)
        placed = put_batch({"source": whole[rows]}, mesh)["source"]
        right = all((shard.data == whole[shard.index]).all() for shard in placed.addressable_shards)
        found[f"{order} {sizes}"] = rows.tolist(), placed.shape, right
print(json.dumps(found))
jax.distributed.shutdown()
"""


@pytest.fixture(scope="module")
def found() -> list[dict]:
    """What each process says, by the order of the devices and the sizes of the mesh."""
    address = f"127.0.0.1:{free_port()}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, address, str(process)],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            **pipes,
        )
        for process in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1][-3000:]
    # Gloo writes to standard output, too.
    return [json.loads(next(line for line in out.splitlines() if line.startswith("{"))) for out, _ in outputs]


def test_every_device_gets_its_rows_of_one_batch(found):
    for each in found:
        assert all(tuple(shape) == (8, 2) and right for _, shape, right in each.values())


def test_all_rows_are_loaded_and_none_by_a_process_that_does_not_need_it(found):
    for case, (rows, _, _) in found[0].items():
        other = found[1][case][0]
        assert sorted({*rows, *other}) == list(range(8))
        # Devices along `model` share their rows: two processes may need the same ones.
        assert case.endswith("[2, 1, 2]") or len(rows) == len(other) == 4
    assert found[0]["[0, 2, 1, 3] [4, 1, 1]"][0] == [0, 1, 4, 5]
    assert found[0]["[2, 0, 1, 3] [4, 1, 1]"][0] == [2, 3, 4, 5]
