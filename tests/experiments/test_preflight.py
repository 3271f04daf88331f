"""What processes compare before they train; that they do, in `tests/multihost`."""

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from experiments import preflight
from experiments.configs import load
from experiments.preflight import (
    Expected,
    corpora,
    differing,
    first_problem,
    miscounted,
    standing,
    sum_of_ones,
    unreachable,
)

HOSTS = ["a", "b", "c"]


def devices(*counts):
    return [SimpleNamespace(process_index=process) for process, n in enumerate(counts) for _ in range(n)]


def test_counts_of_processes_and_devices():
    three, any_number = Expected("--processes", 3, None), Expected("--processes", 0, None)
    assert miscounted(devices(4, 4, 4), 3, three) is miscounted(devices(4, 4, 4), 3, any_number) is None
    assert miscounted(devices(4, 4), 2, three).startswith("--processes 3, and the cluster has 2")
    assert miscounted(devices(4, 4, 1), 3, three).startswith("process 2 has 1 devices and process 0 has 4")
    pod = Expected("--expect-processes", 2, 8)
    assert miscounted(devices(4, 4), 2, pod) is None
    assert miscounted(devices(4), 1, pod).startswith(
        "--expect-processes 2, and the cluster has 1: start all hosts"
    )
    assert miscounted(devices(2, 2), 2, pod).startswith("--expect-devices 8, and there are 4")
    assert sum_of_ones() == jax.device_count() == 8


def test_the_first_difference_is_named_with_its_host():
    same = standing(load("text_tiny"))
    assert differing([same, same, same], HOSTS) is None
    assert differing([same, same, same | {"jax": "0.1"}], HOSTS) == (
        f"process 2 on c has jax 0.1 and process 0 on a has {same['jax']}: install the same on all hosts"
    )
    other = standing(load("text_small"))
    assert differing([same, other, other], HOSTS).startswith("process 1 on b has another configuration than")
    told = [{"problem": None}, {"problem": "no disk"}, {"problem": "no disk"}]
    assert first_problem(told, HOSTS) == "process 1 on b: no disk" and first_problem(told[:1], HOSTS) is None


def test_a_directory_that_hosts_do_not_share(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "APPEARS", 0.0)
    run = tmp_path / "run"
    probe, mine = run / ".reached", run / ".reached-1"
    assert preflight.refused(run, lambda: preflight.reach(probe, mine)) == (
        f"{run} is not a run directory that all hosts share and write to (what process 0 writes there is not seen)"
    )
    assert preflight.refused(run, lambda: preflight.write_probe(probe)) is None
    assert preflight.refused(run, lambda: preflight.reach(probe, mine)) is None
    assert [path.name for path in run.iterdir()] == [".reached"]
    said = preflight.refused(run, lambda: preflight.write_probe(probe / "below" / "it"))
    assert said.endswith("(Not a directory)")


def test_data_that_is_not_there(tmp_path):
    (tmp_path / "there").write_text("a\n")
    there = str(tmp_path / "there")
    for corpus in (None, (there, f"{there}[:3]"), ("discourse:train:3",), ("tfds:wmt14_translate/fr-en",)):
        assert unreachable(corpus) is None
    assert unreachable((there, there + "s")).startswith(f"{there}s does not exist; the nearest name there is")


@pytest.mark.parametrize(
    "name, each", [("text_tiny", False), ("masked_tiny", False), ("classify_small", True)]
)
def test_processes_reach_what_they_read(name, each):
    config = load(name)
    config = config.replace(data=dataclasses.replace(config.data, train=("train",), dev=("dev",), test=()))
    assert corpora(config, first=True) == [("train",), ("dev",), ()]
    assert corpora(config, first=False) == ([("train",)] if each else []) + [("dev",), ()]


@pytest.mark.slow
def test_a_run_directory_that_hangs_is_named(tmp_path):
    script = """
        import time
        from pathlib import Path
        from experiments import configs, preflight
        preflight.write_probe = lambda probe: time.sleep(60)
        preflight.preflight(configs.load("text_tiny"), Path({run!r}), preflight.Expected("--processes", 1, None), 4)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script).format(run=str(tmp_path))],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 43
    assert f"reaching {tmp_path} and the corpora did not end within 2 s: see that " in done.stderr


@pytest.mark.slow
def test_what_hangs_ends_with_a_line():
    script = (
        "import time\nfrom experiments.preflight import time_limit\n"
        "with time_limit(60, 'nothing'): pass\n"
        "with time_limit(0.1, 'waiting'): time.sleep(60)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 43 and done.stderr.startswith("error: waiting did not end within 0.1 s: see ")
