"""The JobSet that a workload is on GKE: that of xpk where it matters, and every word as it was given."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from launching import CLUSTER, CREATE, DATA, job

from tpu import gke
from tpu.job import with_training
from tpu.slices import parse_slice

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
