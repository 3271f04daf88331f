"""GKE: workloads through a stand-in for xpk on PATH."""

import json

import pytest
from launching import CLUSTER, CREATE, DATA, IMAGE, NAME, job

from flaxnmt.errors import ConfigError, RunError
from tpu import gke
from tpu.command import Runner
from tpu.engines import Gke
from tpu.patience import UNREACHED
from tpu.slices import parse_slice


def called(cloud, verb: str) -> list[list[str]]:
    return [call for call in cloud.calls if call[:3] == ["xpk", "workload", verb]]


def test_create_starts_a_workload_that_the_cluster_starts_again(cloud, command):
    code, out, _ = command([*CREATE, *CLUSTER, "--slices", "2", "--spot", "--restarts", "7", "--", *DATA])
    assert code == 0 and "asked for 2 x v5e-16" in out
    (call,) = called(cloud, "create")
    assert {
        "--tpu-type=v5litepod-16",
        "--num-slices=2",
        f"--docker-image={IMAGE}",
        "--max-restarts=7",
        "--restart-on-exit-codes=42,43",
        "--env=JAX_COMPILATION_CACHE_DIR=gs://my-bucket/cache/jax",
        "--spot",
    } <= set(call)
    (training,) = (word for word in call if word.startswith("--command="))
    assert training.startswith(
        "--command=exec python -m experiments.train text_small --run gs://my-bucket/runs/wmt "
    )


def test_a_workload_that_is_there_is_not_replaced(cloud, command):
    assert command([*CREATE, *CLUSTER, "--", *DATA])[0] == 0
    code, _, err = command([*CREATE, *CLUSTER, "--", *DATA])
    assert code == 2 and "is there already" in err and len(called(cloud, "create")) == 1
    assert command(["run", *CREATE[1:], *CLUSTER, "--", *DATA])[0] == 0
    assert len(called(cloud, "delete")) == 1 and len(called(cloud, "create")) == 2
    # Also where it ended so long ago that nothing is left of it.
    assert command(["delete", *NAME])[0] == 0
    assert command(["run", *CREATE[1:], *CLUSTER, "--", *DATA])[0] == 0 and len(called(cloud, "create")) == 3


@pytest.mark.parametrize(
    "events, code, said",
    [
        ([("Admitted", "The workload is admitted"), ("Finished", "Job finished successfully")], 0, "has finished"),
        ([("QuotaReserved", ""), ("Evicted", "preempted"), ("Finished", "jobset failed")], 1, "exit code 2 is a mistake"),
    ],
)  # fmt: skip
def test_watch_follows_a_workload_to_its_end(cloud, events, code, said):
    cloud.plan(states=[("wmt", *event) for event in events])
    lines, slept = [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 9, "it waits for ever"

    found = Gke(Runner(say=lines.append), sleep=sleep).watch(job(), 5.0, 9, False)
    assert (
        found == code
        and slept == [5.0] * (len(events) - 1)
        and said in lines[-1]
        and len(lines) == len(events) + 1
    )


def test_watch_waits_a_passing_failure_out(cloud):
    cloud.plan(
        states=[("wmt", "Finished", "Job finished successfully")], fail={"list": ["Connection refused"] * 2}
    )
    lines = []
    assert Gke(Runner(say=lines.append), sleep=lambda _: None).watch(job(), 5.0, 9, False) == 0
    assert sum("will try again" in line for line in lines) == 1
    cloud.plan(fail={"list": ["Connection refused"] * 30})
    slept = []
    watcher = Gke(Runner(say=lines.append), sleep=slept.append, clock=lambda: sum(slept))
    assert watcher.watch(job(), 5.0, 9, False) == UNREACHED
    assert sum(slept) >= 3600 and slept[:3] == [10.0, 20.0, 40.0] and "Connection refused" in lines[-1]


def test_watch_ends_where_nothing_is_left(cloud):
    lines = []
    assert Gke(Runner(say=lines.append)).watch(job(), 5.0, 9, False) == 1 and "it is gone" in lines[-1]


def test_status_logs_and_delete(cloud, command):
    assert "NOT_FOUND" in command(["status", *NAME])[1]
    command([*CREATE, *CLUSTER, "--", *DATA])
    _, out, _ = command(["status", *NAME])
    assert "ACTIVE" in out and "The workload is admitted" in out
    assert command(["logs", *NAME, "--node", "1", "--worker", "3"])[0] == 0
    labels = "jobset.sigs.k8s.io/jobset-name=wmt,jobset.sigs.k8s.io/job-index=1,batch.kubernetes.io/job-completion-index=3"
    assert cloud.calls[-1][:4] == ["kubectl", "logs", "--follow", f"--selector={labels}"]
    assert command(["delete", *NAME])[0] == 0
    code, _, err = command(["delete", *NAME])
    assert code == 2 and "there is none of this name" in err


@pytest.mark.parametrize(
    "text, said",
    [
        ("There was a problem refreshing your current auth tokens: invalid_grant", "gcloud auth login"),
        ("ERROR: (gcloud.container.clusters.get-credentials) ResponseError: code=404, message=Not found: "
         "projects/my-project/zones/us-west4-a/clusters/pods was not found", "there is none of this name"),
        ('Error from server (Forbidden): User "me" does not have permission to access jobsets', "the account may not do"),
    ],
)  # fmt: skip
def test_what_xpk_says_is_one_line_with_what_to_do(cloud, command, text, said):
    cloud.plan(fail={"list": [text]})
    code, _, err = command(["status", *NAME])
    assert code == 2 and said in err and err.count("\n") == 1


def test_another_table_is_an_error_and_not_a_workload_that_is_gone():
    with pytest.raises(RunError, match="no table"):
        gke.read_listing("[XPK] Starting xpk", "wmt")


def test_names_in_the_table_are_whole_names(cloud, command):
    cloud.plan(states=[("wmt-2", "Admitted", "")])
    assert "NOT_FOUND" in command(["status", *NAME])[1]


def test_shapes_that_are_not_the_usual_ones_are_named():
    assert gke.tpu_type(parse_slice("v5p-128")) == "v5p-128"
    assert gke.tpu_type(parse_slice("v5p-384")) == "v5p-384"
    assert gke.tpu_type(parse_slice("v5p-512", "4x4x16")) == "v5p-4x4x16"
    assert gke.tpu_type(parse_slice("v4-256", "4x4x8")) == "v4-256"
    with pytest.raises(
        ConfigError, match="xpk has v5e from 8 chips on; give v5e-8, or v6e-1, or write --manifest"
    ):
        gke.tpu_type(parse_slice("v5e-1"))


@pytest.mark.parametrize("value", ['say "hi"', "a\\nb"])
def test_variables_that_xpk_would_change_are_refused(cloud, command, value, tmp_path):
    line = [*CREATE, *CLUSTER, "--env", f"GREETING={value}"]
    code, _, err = command([*line, "--", *DATA])
    assert code == 2 and "--env GREETING: xpk loses" in err and value not in err
    assert not any("create" in call for call in cloud.calls)
    # As JSON they are what they are.
    assert command([*line, "--manifest", "jobset.json", "--", *DATA])[0] == 0
    text = (tmp_path / "jobset.json").read_text()
    assert json.dumps({"name": "GREETING", "value": value}, indent=0)[2:-2].splitlines()[-1] in text


def test_what_xpk_has_not_is_refused(cloud, command):
    line = ["v3-64" if word == "v5e-16" else word for word in CREATE]
    code, _, err = command([*line, *CLUSTER, "--", *DATA])
    assert code == 2 and "v3-64: xpk has no v3: leave --cluster out" in err and cloud.calls == []
