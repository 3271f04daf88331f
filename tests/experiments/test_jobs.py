"""Several commands on one sweep: each trial is trained once, by one of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax
import pytest
from tiny_runs import ROOT

from experiments import host, sweep
from experiments.jobs import apart, claim, run_jobs, shares
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.ledger import Ledger

# The sweep of its first argument's trials, in the directory that follows.
SWEEP = """
import sys
sys.path[:0] = {tests!r}, {tests!r}.rpartition("/")[0]
from test_sweep import measure, trial
from experiments import sweep
trials = trial("first"), trial("second", after="first"), trial("third"), trial("fourth", after="second")
sweep.load, sweep.WAIT = lambda name: sweep.Sweep(trials, measure), 0.1
folder = {folder!r}
sys.exit(sweep.main(["tiny", "--runs", folder + "/runs", "--results", folder, *sys.argv[1:]]))
"""


def script(text: str, **fields) -> list[str]:
    return ["-c", textwrap.dedent(text).format(**fields)]


def test_a_claim_belongs_to_one(tmp_path):
    path = tmp_path / "runs" / "trial.lock"
    with claim(path) as mine, claim(path) as theirs:
        assert mine and not theirs
    assert not path.exists()
    with claim(path) as mine:
        assert mine


def test_a_claim_that_is_removed_as_it_is_taken_belongs_to_nobody(tmp_path, monkeypatch):
    """Another process may have made, and taken, the next file of this name."""
    path = tmp_path / "trial.lock"

    def flock(file, operation):
        path.unlink()

    monkeypatch.setattr("fcntl.flock", flock)
    with claim(path) as mine:
        assert not mine


def backend() -> str:
    return jax.default_backend()


def end_at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ConfigError("give another one")


@pytest.mark.slow
def test_what_runs_apart_holds_nothing_afterwards():
    before = multiprocessing.active_children()
    assert apart(backend) == "cpu" and apart(os.getpid) != os.getpid()
    with pytest.raises(ConfigError, match="give another one"):
        apart(refuse)
    with pytest.raises(RunError, match="the process of end_at_once was killed"):
        apart(end_at_once)
    began = time.monotonic()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    earlier = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))
    timer.start()
    try:
        with pytest.raises(SystemExit):
            apart(time.sleep, 600)
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert time.monotonic() - began < 60 and multiprocessing.active_children() == before


def test_a_killed_process_gives_its_claim_back(tmp_path):
    path = tmp_path / "trial.lock"
    held = script(
        """
        import os, pathlib, signal
        from experiments.jobs import claim
        with claim(pathlib.Path({path!r})) as mine:
            assert mine
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        path=str(path),
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, *held], env=environment).returncode == -signal.SIGKILL
    assert path.exists()
    with claim(path) as mine:
        assert mine


@pytest.mark.parametrize(
    ("count", "jobs", "expected"),
    [
        (4, 2, [{0, 2}, {1, 3}]),
        (5, 2, [{0, 2, 4}, {1, 3}]),
        (2, 3, [{0}, {1}, {0}]),
        (1, 1, [{0}]),
    ],
)
def test_cores_are_divided(count, jobs, expected):
    assert shares(range(count), jobs) == expected


def test_jobs_run_at_once_on_cores_of_their_own(tmp_path):
    meet = """
        import os, pathlib, time
        folder = pathlib.Path({folder!r})
        (folder / str(os.getpid())).write_text(repr(sorted(os.sched_getaffinity(0))))
        # Ends only where the other one is there too.
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)
        """
    assert run_jobs(script(meet, folder=str(tmp_path)), 2) == 0
    found = sorted(path.read_text() for path in tmp_path.iterdir())
    assert found == sorted(repr(sorted(share)) for share in shares(sorted(host.cores()), 2))


def test_where_one_fails_the_others_are_stopped(tmp_path):
    one_fails = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
        try:
            pathlib.Path({first!r}).touch(exist_ok=False)
        except FileExistsError:
            sys.exit(2)
        time.sleep(60)
        """
    began = time.monotonic()
    assert run_jobs(script(one_fails, first=str(tmp_path / "first")), 2) == 2
    assert time.monotonic() - began < 30


def test_a_signal_reaches_all_jobs_and_each_once(tmp_path):
    # The first one to end does so while the other cannot bear another signal.
    waits = """
        import os, pathlib, signal, sys, time
        folder = pathlib.Path({folder!r})
        first = not any(folder.iterdir())
        def leave(*_):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(0 if first else 1)
            sys.exit(42)
        signal.signal(signal.SIGTERM, leave)
        (folder / str(os.getpid())).touch()
        time.sleep(60)
        """

    def stop():
        while len(list(Path(tmp_path).iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert run_jobs(script(waits, folder=str(tmp_path)), 2) == 42
    stopping.join()


@pytest.mark.slow
def test_rows_of_several_processes_are_all_there(tmp_path):
    adds = """
        import os
        from flaxnmt.ledger import Ledger
        for i in range(20):
            Ledger({path!r}).add({{"key": f"{{os.getpid()}}-{{i}}"}})
        """
    path = tmp_path / "rows.jsonl"
    assert run_jobs(script(adds, path=str(path)), 3) == 0
    assert len(Ledger(path).keys()) == 60


@pytest.mark.slow
def test_two_jobs_train_each_trial_once(tmp_path):
    command = script(SWEEP, tests=str(Path(__file__).parent), folder=str(tmp_path))
    assert run_jobs([*command, "--log-files"], 2) == 0
    rows = Ledger(tmp_path / "tiny.jsonl").rows()
    assert sorted(row["name"] for row in rows) == ["first", "fourth", "second", "third"]
    names = [row["name"] for row in rows]
    assert names.index("first") < names.index("second") < names.index("fourth")
    left = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert left == sorted(
        [
            "first-seed1",
            "second-seed1",
            "tiny.jsonl",
            *(f"{name}-seed1.log" for name in ("first", "second", "third", "fourth")),
        ]
    )
    log = (tmp_path / "runs" / "third-seed1.log").read_text()
    assert "finished: 4 updates" in log


@pytest.mark.slow
def test_the_command_divides_itself(tmp_path):
    """`--jobs 2` of a sweep as it is, stopped once both have begun; the logs say on what."""
    arguments = [
        "documents",
        "--runs",
        str(tmp_path / "runs"),
        "--results",
        str(tmp_path),
        "--only",
        "sentence",
    ]
    code = []

    def stop():
        logs = [tmp_path / "runs" / f"sentence-seed{seed}.log" for seed in (1, 2)]
        while not code and not all(log.exists() and "devices: 1 x cpu" in log.read_text() for log in logs):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    code.append(sweep.main([*arguments, "--jobs", "2"]))
    stopping.join()
    assert code == [42]
    assert not (tmp_path / "documents.jsonl").exists()
