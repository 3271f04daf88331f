"""Four processes of two devices each: they train, stop, continue as two, evaluate and fail as one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from clusters import child, ends, newest, places, rows, training, wait_for
from tiny_runs import ROOT, TINY, sentences, write_corpus
from trained_run import WHOLE_RUN, train_once

pytestmark = pytest.mark.slow


def assert_same_losses(run, trained, kind, last):
    found, expected = rows(run, kind), rows(trained.directory, kind)
    assert [*found] == [step for step in expected if step <= last]
    for step, row in found.items():
        assert row["loss"] == pytest.approx(expected[step]["loss"], abs=1e-5), step


# A rate at which rounding does not grow: at 0.01 two runs agree to 1e-6 for 30 updates, and lie 1e-4 apart after 40.
CALM = ("--optimizer.learning-rate", "0.0005")


def test_four_train_as_one_stop_together_and_two_go_on(tmp_path_factory, tmp_path):
    trained = train_once(
        tmp_path_factory, "calm", lambda data: [*TINY, *write_corpus(data), *WHOLE_RUN, *CALM]
    )
    run = tmp_path / "run"
    arguments = [*trained.arguments, "--run", str(run)]
    with training([[*arguments, *place] for place in places(4)], devices=2) as processes:
        wait_for(lambda: newest(run) >= 50, processes)
        processes[2].send_signal(signal.SIGTERM)
        codes, streams = ends(processes, seconds=120)
    stopped = newest(run)
    assert codes == [42] * 4 and 50 <= stopped < 200
    assert "devices: 8 x cpu as data 8" in streams[0] and f"saved at step {stopped}" in streams[0]
    assert_same_losses(run, trained, "train", stopped)
    end = 40 * (stopped // 40) + 40
    arguments += ["--max-steps", str(end)]
    with training([[*arguments, *place] for place in places(2)], devices=2) as processes:
        codes, (first, _) = ends(processes, seconds=300)
    assert codes == [0, 0]
    assert f"continues {run} from step {stopped}" in first and "devices: 4 x cpu as data 4" in first
    for kind in ("train", "dev"):
        assert_same_losses(run, trained, kind, end)


def test_one_of_four_is_killed_and_three_end(trained, tmp_path):
    run = tmp_path / "run"
    commands = [[*trained.arguments, "--run", str(run), *place] for place in places(4)]
    with training(commands, devices=2) as processes:
        wait_for(lambda: newest(run) >= 10, processes)
        os.kill(child(processes[2].pid), signal.SIGKILL)
        began = time.monotonic()
        codes, streams = ends(processes)
    assert codes == [43] * 4 and time.monotonic() - began < 30
    line = f"error: process 2 of 4 on {socket.gethostname()} ended by SIGKILL: start all processes again, "
    assert all(streams[i].splitlines()[-1].startswith(line) for i in (0, 1, 3))


SHARED = """
import json, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec

coordinator, processes, process, directory, lines = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(coordinator, processes, process)
from flaxnmt import open_run
from flaxnmt.data.shards import TokenArray
from flaxnmt.run import make_translator
from flaxnmt.sharding import make_mesh, owned_rows
from flaxnmt.translation.lines import Text

run, lines = open_run(directory), open(lines).read().splitlines()
# Neighbours belong to different processes, as on a slice whose chips are in the order of their links.
mesh = make_mesh(devices=jax.devices()[::2] + jax.devices()[1::2])
params = jax.device_put(run.params, NamedSharding(mesh, PartitionSpec()))
translator = make_translator(run.config, run.model, params, run.vocabularies, mesh)
tokens = TokenArray.from_lists(run.vocabularies.source.encode(lines))
batches = translator.batches(tokens, None, Text.unbroken(lines), None)
own = [batches.indices(i, owned_rows(batches.shape(i).rows, mesh)).tolist() for i in range(len(batches))]
scores = [score.log_prob for score in translator.score(lines, lines)]
print(json.dumps({"own": sum(own, []), "texts": translator.translate(lines), "scores": scores}))
"""


def test_every_line_is_decoded_and_scored_once_by_one_of_four(trained, opened, tmp_path):
    # No multiple of the batch, so that the last one is partly empty.
    lines = sentences(27, seed=5)
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    processes = []
    try:
        for place in places(4):
            command = [
                sys.executable,
                "-c",
                SHARED,
                *place[1::2],
                str(trained.directory),
                str(tmp_path / "lines"),
            ]
            flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **flags}, **pipes))
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, outputs[0][1][-3000:]
    # Gloo writes to standard output, too.
    found = [
        json.loads(next(line for line in out.splitlines() if line.startswith("{"))) for out, _ in outputs
    ]
    decoded = sorted(index for each in found for index in each["own"] if index >= 0)
    assert decoded == list(range(27)) and all(each["own"] for each in found)
    for each in found:
        assert each["texts"] == opened.translate(lines)
        assert each["scores"] == pytest.approx([s.log_prob for s in opened.score(lines, lines)], abs=1e-4)


def test_jax_alone_notices_a_lost_process_of_a_cluster(trained, tmp_path):
    """Where a cluster's service knows the processes; here one that Slurm would start."""
    run = tmp_path / "run"
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    job |= {"SLURM_STEP_NUM_NODES": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [
        [*trained.arguments, "--run", str(run), "--processes", "0", "--compilation-cache", str(tmp_path)]
    ]
    tasks = [job | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    with (
        training(command, variables=tasks[0]) as (first,),
        training(command, variables=tasks[1]) as (second,),
    ):
        wait_for(lambda: newest(run) >= 10, [first, second])
        second.kill()
        began = time.monotonic()
        codes, (said, _) = ends([first, second])
    print(said)
    assert codes == [43, -signal.SIGKILL] and time.monotonic() - began < 30
    assert len([*tmp_path.glob("jit_*")]) > 3
    # A collective that breaks at once is an error of Python; one that waits is ended by JAX.
    last = said.splitlines()[-1]
    assert last.startswith(("error: another process was lost (", "error: JAX has given up (see above), "))
    assert last.endswith(": start all processes again, and the run goes on from its last checkpoint")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--dev", "MISSING", "MISSING"], ": MISSING does not exist: there is no folder nowhere"),
        (["--seed", "9"], " has another configuration than process 0: give all processes the same command"),
    ],
)
def test_processes_that_stand_on_different_things_say_so(trained, tmp_path, options, line):
    first, second = places(2)
    arguments = [*trained.arguments, "--run", str(tmp_path / "run")]
    options = [option.replace("MISSING", "nowhere/dev") for option in options]
    with training([[*arguments, *first], [*arguments, *options, *second]]) as processes:
        codes, streams = ends(processes, seconds=120)
    assert codes == [2, 2]
    for said in streams:
        assert said.splitlines()[-1].startswith(f"error: process 1 on {socket.gethostname()}")
        assert said.splitlines()[-1].endswith(line.replace("MISSING", "nowhere/dev"))
