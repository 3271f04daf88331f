"""A sweep as one job for each trial: each call does what is next for all of them."""

import dataclasses
import json
import time

import pytest
from launching import MACHINES

from experiments import sweep
from experiments.trial import Sweep, Trial
from flaxnmt.errors import ConfigError
from flaxnmt.ledger import Ledger
from tpu import names, sweeping
from tpu.launch import VERBS
from tpu.restarts import read_restarts
from tpu.watch import SILENCE

pytestmark = pytest.mark.usefixtures("in_process")

FILES = ("--train", "$FLAXNMT_DATA/a.jsonl", "--dev", "$FLAXNMT_DATA/b.jsonl", "--data.rows-multiple", "16")
FIRST = Trial("base", "text_small", FILES)
NEXT = Trial("2-to-1", "text_small", FILES, after="base")
OTHER = Trial("other", "text_small", FILES)
TRIALS = (FIRST, NEXT, OTHER)
COMMAND = ["sweep", "tests", *MACHINES, "--spot", "--data", "gs://my-bucket/data", "--at-most", "5"]
BASE, SECOND, THIRD = (sweeping.job_name("tests", trial.directory) for trial in TRIALS)
WORKERS = [f"0-{worker}" for worker in range(4)]


@pytest.fixture
def three_trials(cloud, monkeypatch, tmp_path):
    """A sweep of three trials, the second of which starts from the first."""
    monkeypatch.setattr(sweep, "load", lambda name: Sweep(TRIALS, measure=lambda directory, trial: {}))
    monkeypatch.setattr(sweeping, "RESULTS", tmp_path / "results")
    return cloud


def ended(cloud, name: str, code, ago: float = 0.0) -> None:
    for worker in WORKERS:
        cloud.put(
            f"my-bucket/launch/{name}/exit/{worker}", f"{name} {worker} {code} {time.time() - ago:.0f}\n"
        )


def becomes(cloud, name: str, state: str) -> None:
    """A resource gets into a state."""
    resources = cloud.resources
    resources[name]["state"] = state
    (cloud.folder / "resources.json").write_text(json.dumps(resources))


def created(cloud) -> list[str]:
    return [call[5] for call in cloud.calls if call[4:5] == ["create"]]


def test_one_job_for_each_trial_and_those_that_start_from_others_wait(three_trials, command):
    cloud = three_trials
    code, out, err = command(COMMAND)
    assert (code, err) == (0, "") and created(cloud) == [BASE, THIRD]
    assert f"{SECOND}: waits for {BASE}" in out and "0 of 3 jobs finished" in out
    words = cloud.resources[BASE]["metadata"]["flaxnmt-command"].splitlines()
    assert words[3:] == [
        *("text_small", "--run", "gs://my-bucket/runs/tests/base-seed1", "--processes", "0"),
        *("--expect-processes", "4", "--expect-devices", "16", "--seed", "1"),
        *("--train", "gs://my-bucket/data/a.jsonl", "--dev", "gs://my-bucket/data/b.jsonl"),
        *FILES[-2:],
    ]
    ended(cloud, BASE, 0)
    code, out, _ = command(COMMAND)
    assert code == 0 and created(cloud) == [BASE, THIRD, SECOND] and BASE not in cloud.resources
    words = cloud.resources[SECOND]["metadata"]["flaxnmt-command"].splitlines()
    assert words[words.index("--init-from") + 1] == "gs://my-bucket/runs/tests/base-seed1"
    assert "1 of 3 jobs finished" in out
    for name in (SECOND, THIRD):
        ended(cloud, name, 0)
    code, out, _ = command(COMMAND)
    assert "3 of 3 jobs finished" in out and cloud.resources == {}
    assert "3 of 3 jobs finished" in command(COMMAND)[1] and len(created(cloud)) == 3


def test_spot_machines_of_a_trial_are_asked_for_again(three_trials, command):
    cloud = three_trials
    command(COMMAND)
    becomes(cloud, THIRD, "SUSPENDED")
    assert command(COMMAND)[0] == 0 and created(cloud) == [BASE, THIRD, THIRD]
    assert cloud.resources[THIRD]["state"] == "ACCEPTED"


def test_a_trial_that_failed_is_started_again_only_where_it_is_wanted(three_trials, command):
    cloud = three_trials
    ended(cloud, THIRD, 1)
    _, out, _ = command([*COMMAND, "--only", "other"])
    assert (
        created(cloud) == []
        and f"{THIRD}: failed before with exit code 1; gs://my-bucket/launch/{THIRD}/log/0-0" in out
    )
    command([*COMMAND, "--only", "other", "--retry"])
    assert created(cloud) == [THIRD]
    # On machines that it has left on, too.
    becomes(cloud, THIRD, "ACTIVE")
    ended(cloud, THIRD, 2)
    command([*COMMAND, "--only", "other"])
    assert cloud.verbs[-1] != "ssh"
    _, out, _ = command([*COMMAND, "--only", "other", "--retry"])
    assert cloud.verbs[-2:] == ["rm", "ssh"] and "failed before, and is started again" in out


ONE = [*COMMAND, "--only", "other"]


@pytest.mark.parametrize("code", [43, 137, 125])
def test_lost_and_killed_processes_end_or_go_on_by_when_they_ended(three_trials, command, code):
    cloud = three_trials
    command(ONE)
    becomes(cloud, THIRD, "ACTIVE")
    ended(cloud, THIRD, code, ago=10)
    _, out, _ = command(ONE)
    assert cloud.verbs[-1] == "list" and f"{THIRD}: ACTIVE, " in out
    ended(cloud, THIRD, code, ago=200)
    _, out, _ = command(ONE)
    if code == 43:
        assert cloud.verbs[-2:] == ["rm", "ssh"] and "running it again, restart 1 of at most 50" in out
    else:
        assert "ssh" not in cloud.verbs and f"exit code {code} of worker 0-0" in out
        command([*ONE, "--retry"])
        assert cloud.verbs[-2:] == ["rm", "ssh"]


@pytest.mark.parametrize("code", [43, 137])
def test_lost_and_killed_processes_of_machines_that_are_gone_are_started_where_it_is_wanted(
    three_trials, command, code
):
    ended(three_trials, THIRD, code)
    assert f"{THIRD}: failed before with exit code {code}" in command(ONE)[1] and created(three_trials) == []
    command([*ONE, "--retry"])
    assert created(three_trials) == [THIRD]


def test_restarts_are_counted_over_all_calls(three_trials, command):
    cloud, line = three_trials, [*ONE, "--restarts", "2"]
    command(line)
    for number in (1, 2):
        becomes(cloud, THIRD, "SUSPENDED")
        assert f"restart {number} of at most 2" in command(line)[1]
    becomes(cloud, THIRD, "SUSPENDED")
    assert "stopped after 2 restarts" in command(line)[1] and len(created(cloud)) == 3
    assert (
        "failed before, and is started again" in command([*line, "--retry"])[1] and len(created(cloud)) == 4
    )
    becomes(cloud, THIRD, "SUSPENDED")
    assert "restart 1 of at most 2" in command(line)[1]


def test_the_next_call_goes_on_with_a_restart_that_failed_half_way(three_trials, command):
    cloud, line = three_trials, [*ONE, "--restarts", "1"]
    command(line)
    becomes(cloud, THIRD, "ACTIVE")
    ended(cloud, THIRD, 43, ago=200)
    cloud.plan(fail={"ssh": ["network"]})
    assert "restart 1 of at most 1" in command(line)[1] and "restart" not in command(line)[1]
    assert cloud.verbs[-5:] == ["rm", "ssh", "list", "rm", "ssh"]
    # Also where nothing is left but how it ended.
    line[-1] = "2"
    ended(cloud, THIRD, 43)
    becomes(cloud, THIRD, "SUSPENDED")
    cloud.plan(fail={"storage rm": ["network"]})
    assert "restart 2 of at most 2" in command(line)[1] and cloud.resources == {}
    assert command(line)[0] == 0 and created(cloud) == [THIRD, THIRD]
    becomes(cloud, THIRD, "SUSPENDED")
    assert "stopped after 2 restarts" in command(line)[1]


def test_machines_that_say_nothing_are_given_up_over_all_calls(three_trials, command):
    cloud = three_trials
    command(ONE)
    becomes(cloud, THIRD, "ACTIVE")
    assert "no machine has said anything" not in command(ONE)[1]
    kept = cloud.folder / f"objects/my-bucket/launch/{THIRD}/exit/watch"
    (known,) = read_restarts(kept.read_text()).values()
    kept.write_text(dataclasses.replace(known, silent_since=known.silent_since - SILENCE).line(THIRD))
    assert "no machine has said anything" in command(ONE)[1]


def test_one_zone_without_capacity_does_not_keep_the_others_waiting(three_trials, command):
    three_trials.plan(fail={"create": ["capacity", ""]})
    code, out, _ = command(COMMAND)
    assert code == 0 and list(three_trials.resources) == [THIRD] and "no such TPU free" in out


def test_other_images_leave_what_runs_as_it_is(three_trials, command):
    command(ONE)
    becomes(three_trials, THIRD, "ACTIVE")
    line = [word.replace("flaxnmt:1", "flaxnmt:2") for word in ONE]
    code, out, _ = command(line)
    assert code == 0 and f"{THIRD}: its machines were made with another --image" in out


def test_no_more_than_wanted_are_started(three_trials, command):
    _, out, _ = command([*COMMAND[:-1], "1"])
    assert created(three_trials) == [BASE] and f"{THIRD}: not started, since --at-most 1 were" in out


def test_what_has_a_row_in_the_ledger_is_finished(three_trials, command, tmp_path):
    ledger = Ledger(tmp_path / "results/tests.jsonl")
    ledger.add({"key": FIRST.key})
    ledger.add({"key": OTHER.key})
    _, out, _ = command(COMMAND)
    # What is left starts from the first, whose run directory the bucket does not have.
    assert created(three_trials) == [BASE] and "0 of 2 jobs finished" in out


def test_a_sweep_on_gke(three_trials, command):
    cloud = three_trials
    line = [*COMMAND, "--cluster", "pods"]
    assert command(line)[0] == 0
    assert {*cloud.read("workloads.json")} == {BASE, THIRD}
    cloud.plan(states=[(BASE, "Finished", "Job finished successfully")])
    _, out, _ = command(line)
    assert {*cloud.read("workloads.json")} == {BASE, SECOND, THIRD} and "1 of 3 jobs finished" in out


def forgotten(cloud) -> None:
    """What xpk's list does after twelve hours."""
    (cloud.folder / "workloads.json").write_text("{}")


def test_what_has_finished_is_known_from_the_bucket(three_trials, command):
    cloud = three_trials
    for line in ([*COMMAND, "--cluster", "pods"], COMMAND):
        cloud.put("my-bucket/runs/tests/base-seed1/report.md", "# base\n")
        _, out, _ = command(line)
        assert f"{BASE}: finished" in out and "1 of 3 jobs finished" in out
    assert {*cloud.read("workloads.json")} == {*cloud.resources} == {SECOND, THIRD}
    # As long as the machines are there they say when it has ended.
    cloud.put("my-bucket/runs/tests/other-seed1/report.md", "# other\n")
    becomes(cloud, THIRD, "ACTIVE")
    ended(cloud, THIRD, "running")
    assert "1 of 3 jobs finished" in command(COMMAND)[1] and THIRD in cloud.resources


def test_what_a_cluster_has_forgotten_is_not_started_again_by_itself(three_trials, command):
    cloud, line = three_trials, [*ONE, "--cluster", "pods"]
    command(line)
    forgotten(cloud)
    code, out, _ = command(line)
    assert code == 0 and cloud.read("workloads.json") == {}
    assert f"{THIRD}: was asked for before, has not finished and is gone" in out and "--retry" in out
    command([*line, "--retry"])
    assert {*cloud.read("workloads.json")} == {THIRD}
    forgotten(cloud)
    cloud.put("my-bucket/runs/tests/other-seed1/report.md", "# other\n")
    assert "1 of 1 jobs finished" in command(line)[1] and cloud.read("workloads.json") == {}


def test_a_trial_that_failed_on_gke_is_started_again_where_it_is_wanted(three_trials, command):
    cloud = three_trials
    line = [*COMMAND, "--cluster", "pods", "--restarts", "3", "--only", "other"]
    command(line)
    failed = (THIRD, "Finished", "jobset failed")
    cloud.plan(states=[failed])
    assert f"{THIRD}: FAILED" in command(line)[1]
    assert f"{THIRD}: failed before, and is started again" in command([*line, "--retry"])[1]
    calls = [call for call in cloud.calls if call[:3] == ["xpk", "workload", "create"]]
    assert len(calls) == 2 and all("--max-restarts=3" in call for call in calls)


def test_names_of_jobs_are_names_and_differ():
    for name in sweep.names():
        found = [sweeping.job_name(name, trial.directory) for trial in sweep.load(name).all([])]
        assert len(set(found)) == len(found)
        for job in found:
            assert names.check_name("--name", job).startswith(sweeping.prefix(name))


def test_mistakes(three_trials, command):
    code, _, err = command([*COMMAND, "--name", "mine"])
    assert code == 2 and "jobs of a sweep are called like its trials" in err
    code, _, err = command([*COMMAND, "--at-most", "-3"])
    assert code == 2 and "--at-most -3: at least 0" in err
    code, _, err = command([*COMMAND, "--data", "here"])
    assert code == 2 and "--data 'here': give gs://" in err
    code, _, err = command([*COMMAND, "--only", "nothing"])
    assert code == 2 and "no trial of tests matches 'nothing'; there are base, 2-to-1, other" in err
    line = [word for word in COMMAND if word not in ("--data", "gs://my-bucket/data")]
    code, _, err = command(line)
    assert code == 2 and "give --data gs://" in err and three_trials.calls == []
    with pytest.raises(ConfigError):
        names.check_bucket("/local/data")
    assert "sweep" in VERBS
