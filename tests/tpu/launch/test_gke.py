"""GKE: workloads through a stand-in for xpk on PATH, and the JobSet that is written beside it."""

import dataclasses
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from launching import CREATE, DATA, IMAGE

from experiments import configs
from flaxnmt.config import MeshConfig
from flaxnmt.errors import ConfigError, RunError
from tpu import gke
from tpu.command import Runner
from tpu.engines import Gke
from tpu.job import Job, Place, check_mesh, with_training
from tpu.patience import UNREACHED
from tpu.slices import parse_slice

CLUSTER = ["--cluster", "pods"]
NAME = ["text_small", "--name", "wmt", *CLUSTER]


def job(slice_: str = "v5p-16", **changes) -> Job:
    fields = dict(
        name="wmt",
        place=Place(cluster="pods"),
        slice=parse_slice(slice_),
        slices=1,
        bucket="gs://my-bucket",
        run="gs://my-bucket/runs/wmt",
        image=IMAGE,
        command=("bash", "hello"),
        environment={},
    )
    return Job(**{**fields, **changes})


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


# What xpk writes for `--tpu-type=v5p-8 --num-slices=1 --command "bash hello"`, field by field:
# recipes/Workload_create_with_output-manifest-file.md of https://github.com/AI-Hypercomputer/xpk (2026-06).
XPK = {
    "metadata.labels": {"kueue.x-k8s.io/queue-name": "multislice-queue", "xpk.google.com/workload": "wmt"},
    "spec.ttlSecondsAfterFinished": 43200,
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata.annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
    "spec.failurePolicy.rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    "spec.replicatedJobs.0.name": "slice-job",
    "spec.replicatedJobs.0.replicas": 1,
    "spec.replicatedJobs.0.template.spec.parallelism": 1,
    "spec.replicatedJobs.0.template.spec.completions": 1,
    "spec.replicatedJobs.0.template.spec.backoffLimit": 0,
    "spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.0.action": "FailJob",
    "spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.0.onPodConditions": [],
    "spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.0.onExitCodes": {
        "containerName": "jax-tpu",
        "operator": "NotIn",
        # xpk's own codes, and that of --restart-on-exit-codes=43.
        "values": [42, 43, *range(127, 256)],
    },
    "spec.replicatedJobs.0.template.spec.template.spec.restartPolicy": "Never",
    "spec.replicatedJobs.0.template.spec.template.spec.hostNetwork": True,
    "spec.replicatedJobs.0.template.spec.template.spec.dnsPolicy": "ClusterFirstWithHostNet",
    "spec.replicatedJobs.0.template.spec.template.spec.nodeSelector": {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x1",
    },
    "spec.replicatedJobs.0.template.spec.template.spec.tolerations": [{"operator": "Exists", "key": "google.com/tpu"}],
    "spec.replicatedJobs.0.template.spec.template.spec.containers.0.name": "jax-tpu",
    "spec.replicatedJobs.0.template.spec.template.spec.containers.0.securityContext": {"privileged": True},
    "spec.replicatedJobs.0.template.spec.template.spec.containers.0.resources.limits": {"google.com/tpu": 4},
}  # fmt: skip


def at(tree, path: str):
    for part in path.split("."):
        tree = tree[int(part) if part.isdecimal() else part]
    return tree


@pytest.mark.parametrize("path", XPK)
def test_the_manifest_is_that_of_xpk_where_it_matters(path):
    assert at(gke.manifest(job("v5p-8"), 50), path) == XPK[path]


# Machines of a slice and chips of each, as xpk has them (src/xpk/core/system_characteristics.py).
NODES = [
    *[("v5e-1", 1, 1), ("v5e-4", 1, 4), ("v5e-8", 2, 4), ("v5e-16", 4, 4)],
    *[("v4-64", 8, 4), ("v5p-128", 16, 4), ("v6e-256", 64, 4), ("tpu7x-16", 2, 4)],
]


@pytest.mark.parametrize("name, nodes, chips", NODES)
def test_every_machine_of_every_slice_has_one_process(name, nodes, chips):
    made = gke.manifest(job(name, slices=3, spot=True), 5)
    jobs = made["spec"]["replicatedJobs"][0]
    assert jobs["replicas"] == 3 and made["spec"]["failurePolicy"]["maxRestarts"] == 5
    assert jobs["template"]["spec"]["parallelism"] == jobs["template"]["spec"]["completions"] == nodes
    command = with_training(job(name, slices=3), "text_small", []).command
    assert command[command.index("--expect-processes") + 1] == str(3 * nodes)
    assert command[command.index("--expect-devices") + 1] == str(3 * parse_slice(name).devices)
    pod = jobs["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}
    assert (
        pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
        and pod["terminationGracePeriodSeconds"] >= 120
    )


def test_the_manifest_is_written_for_kubectl(cloud, command):
    code, out, _ = command(
        [
            *CREATE,
            *CLUSTER,
            "--manifest",
            "two words.json",
            "--env",
            "HF_TOKEN=abc",
            "COLOUR=light red",
            "--",
            *DATA,
        ]
    )
    assert (
        code == 0
        and "kubectl apply --filename 'two words.json'" in out
        and "abc" not in out
        and cloud.calls == []
    )
    made = json.loads(Path("two words.json").read_text())
    variables = at(made, "spec.replicatedJobs.0.template.spec.template.spec.containers.0.env")
    assert {"name": "HF_TOKEN", "value": "abc"} in variables and {
        "name": "COLOUR",
        "value": "light red",
    } in variables
    secret = ["--env", "HF_TOKEN=abc", "--dry-run", "--", *DATA]
    for line in ([*CREATE, *CLUSTER, "--manifest", "m", *secret], [*CREATE, *CLUSTER, *secret]):
        _, out, _ = command(line)
        assert "HF_TOKEN" in out and "***" in out and "abc" not in out


def expanded(text: str, variables: dict[str, str]) -> str:
    """As Kubernetes expands commands: $(NAME) of a known variable, $$ to $, and all else as it is."""
    return re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else variables.get(found[2], found[0]),
        text,
    )


def test_every_word_arrives_as_it_was_given_through_kubernetes_and_the_shell(tmp_path):
    words = [
        "two words",
        "",
        "it's",
        '"hi"',
        "a;b",
        "$(HOME)",
        "$$",
        "$$(HOME)",
        "$HOME",
        "`id`",
        "*",
        "\\",
        "ünï",
        "{args}",
    ]
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    python.chmod(0o755)
    made = gke.manifest(with_training(job(), "text_small", words), 1)
    command = at(made, "spec.replicatedJobs.0.template.spec.template.spec.containers.0.command")
    argv = [expanded(word, {"HOME": "/root"}) for word in command]
    done = subprocess.run(
        argv, env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1][-len(words) :] == words
    # xpk puts its --command into the same place, inside parentheses.
    (sent,) = (word for word in gke.create(job(command=tuple(words)), 1) if word.startswith("--command="))
    assert shlex.split(expanded(sent.removeprefix("--command=exec "), {})) == words


def test_shapes_that_are_not_the_usual_ones_are_named():
    assert gke.tpu_type(parse_slice("v5p-128")) == "v5p-128"
    assert gke.tpu_type(parse_slice("v5p-384")) == "v5p-384"
    assert gke.tpu_type(parse_slice("v5p-512", "4x4x16")) == "v5p-4x4x16"
    assert gke.tpu_type(parse_slice("v5e-16", "2x8")) == "v5litepod-2x8"


def test_what_is_to_be_had_where():
    with pytest.raises(ConfigError, match="on GKE only: give --cluster"):
        job("tpu7x-16", place=Place())
    with pytest.raises(ConfigError, match="leave --cluster out"):
        job("v3-8")
    with pytest.raises(ConfigError, match="choose one of them"):
        dataclasses.replace(job(), spot=True, reserved=True)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--", *DATA, "--mesh.fsdp", "3"], "does not fit 16 devices"),
        (["--", *DATA, "--mesh.data", "32"], "does not fit 16 devices"),
        (["--", *DATA, "--data.rows-multiple", "8"], "do not divide by the 16 devices"),
        (["--slices", "3", "--", *DATA, "--data.rows-multiple", "48", "--mesh.data", "1", "--mesh.fsdp", "48"],
         "3 slices share the data axis alone, so make --mesh.data a multiple of 3"),
        (["--", *DATA, "--mesh.data", "-1", "--mesh.fsdp", "-1"], "at most one is -1"),
        (["--", *DATA, "--model.encoder.attention.heads", "7"], "7 heads do not divide d_model"),
        (["--", *DATA, "--training.label-smoothing", "2"], "--training.label-smoothing 2.0: a share"),
        (["--", "--train", "train.en", "train.de"], "machines in the cloud do not have it"),
        (["--", *DATA, "--init-from", "runs/x"], "--init-from runs/x: machines in the cloud do not have it"),
        (["--", *DATA, "--data.tokenizer.source-model", "a.model"], "machines in the cloud do not have it"),
        (["--", "--nosuch"], "Unrecognized options: --nosuch"),
        (["--", "--help"], "python -m experiments.train text_small --help"),
        (["--slices", "0", "--", *DATA], "--slices 0: at least 1"),
        (["--restarts", "-1", "--", *DATA], "--restarts -1: at least 0"),
        (["--topology", "2x8", "--", *DATA], "--topology: queued resources have the usual shape"),
        (["--manifest", "m.json", "--", *DATA], "--manifest is of GKE"),
        (["--runtime-version", "a;b", "--", *DATA], "--runtime-version"),
        (["--valid-until-duration", "soon", "--", *DATA], "--valid-until-duration"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_any_machine_is_asked_for(cloud, command, options, said):
    code, _, err = command([*CREATE, *options])
    assert code == 2 and said in err and err.count("\n") == 1 and cloud.calls == []


def test_branches_apart_share_the_rows_among_all_devices():
    config = configs.load("text_small")
    data = dataclasses.replace(config.data, rows_multiple=8)
    together = config.replace(data=data, mesh=MeshConfig(model=2))
    check_mesh(together, job("v5e-16"))
    with pytest.raises(ConfigError, match="do not divide by the 16 devices"):
        check_mesh(together.replace(mesh=MeshConfig(model=2, branches=True)), job("v5e-16"))


@pytest.mark.parametrize(
    "line",
    [
        [*CREATE, "--reserved"],
        [*CREATE, "--service-account", "me@my-project.iam.gserviceaccount.com"],
        [*CREATE, "--runtime-version", "v2-alpha-tpuv5"],
        [*CREATE, "--valid-until-duration", "6h"],
        [*CREATE, "--internal-ips"],
        ["watch", *CREATE[1:], "--keep"],
        ["status", *NAME[:3], "--bucket", "gs://my-bucket"],
        ["logs", *NAME[:3], "--bucket", "gs://my-bucket"],
    ],
)  # fmt: skip
def test_what_means_nothing_on_a_cluster_is_refused(cloud, command, line):
    training = ["--", *DATA] if line[0] in ("create", "watch") else []
    code, _, err = command([*line, *CLUSTER, *training])
    assert code == 2 and "is of queued resources: leave it out with --cluster" in err and cloud.calls == []


def test_flags_of_the_training_belong_to_what_starts_it(command):
    code, _, err = command(["status", *NAME, "--", "--max-steps", "9"])
    assert code == 2 and "are given to create, run and watch" in err
