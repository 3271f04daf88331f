"""Trainings on GKE: the commands of xpk, and the JobSet that they make, as a manifest of our own.

Commands, names and the table of workloads: xpk (https://github.com/AI-Hypercomputer/xpk, docs/usage/workloads.md and
recipes/Workload_create_with_output-manifest-file.md). JobSet: https://jobset.sigs.k8s.io, jobset.x-k8s.io/v1alpha2.
What a pod's failure means: Kubernetes, "Pod failure policy".
"""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from experiments.supervise import LOST, PREEMPTED
from flaxnmt.errors import ConfigError, RunError
from tpu.job import Job, Place
from tpu.slices import Slice, default_topology

XPK = ("xpk", "workload")
CONTAINER = "jax-tpu"
REPLICATED = "slice-job"
QUEUE = "multislice-queue"
"""Names that xpk gives to the container, to the jobs of a slice, and to the queue of a cluster."""
SMALLEST_V5E = 8
KEPT = 43200
"""Seconds after which what has ended is removed, as xpk does."""

RESTART_CODES = (PREEMPTED, LOST, *range(127, 256))
"""A save, a lost process and, as in xpk's own list, what processes leave with that were killed, as where a machine was
taken away. A mistake (2) and an error of Python (1) end the JobSet."""
GRACE = 300
"""Seconds from SIGTERM to SIGKILL: longer than a step and a save."""

WAITING, ACTIVE, FAILED, FINISHED, MISSING = "WAITING", "ACTIVE", "FAILED", "FINISHED", "NOT_FOUND"
STATES = {"Admitted": ACTIVE, "QuotaReserved": WAITING, "Evicted": WAITING}


def literal(text: str) -> str:
    """Text that Kubernetes leaves as it is: it reads $(NAME) in commands as a variable, and $$ as $."""
    return text.replace("$", "$$")


def shell_command(words: Sequence[str]) -> str:
    """For `bash -c`: the training in the shell's place, so that it gets the signal that asks it to save."""
    return literal(f"exec {shlex.join(words)}")


def tpu_type(slice_: Slice) -> str:
    """As xpk has it: v5p-128, or v5p-4x4x12 where the shape is not the usual one.

    Raises:
      ConfigError: for slices of v5e that its table, src/xpk/core/system_characteristics.py, does not have.
    """
    if slice_.generation.name == "v5e" and slice_.chips < SMALLEST_V5E:
        raise ConfigError(
            f"--slice {slice_.name}: xpk has v5e from {SMALLEST_V5E} chips on; give v5e-{SMALLEST_V5E}, or v6e-"
            f"{slice_.chips}, or write --manifest for kubectl"
        )
    try:
        usual = default_topology(slice_.chips, slice_.generation.dimensions) == slice_.topology
    except ConfigError:
        usual = False
    return slice_.accelerator_type if usual else f"{slice_.generation.accelerator}-{slice_.shape}"


def create(job: Job, restarts: int) -> list[str]:
    """Starts a workload; it is started again by the cluster, at most `restarts` times.

    Raises:
      ConfigError: for a variable that would not arrive as it is: xpk writes values between quotation marks as they are.
    """
    for name, value in job.environment.items():
        if '"' in value or "\\" in value:
            raise ConfigError(
                f'--env {name}: xpk loses " and \\ in values: leave them out, or write --manifest'
            )
    return [
        *XPK,
        "create",
        f"--cluster={job.place.cluster}",
        f"--workload={job.name}",
        *job.place.flags,
        f"--tpu-type={tpu_type(job.slice)}",
        f"--num-slices={job.slices}",
        f"--docker-image={job.image}",
        f"--max-restarts={restarts}",
        f"--restart-on-exit-codes={PREEMPTED},{LOST}",
        f"--termination-grace-period-seconds={GRACE}",
        "--no-use-parallel-containers",
        *(["--spot"] if job.spot else []),
        *(f"--env={name}={literal(value)}" for name, value in job.environment.items()),
        f"--command={shell_command(job.command)}",
    ]


def listing(place: Place, name: str) -> list[str]:
    return [*XPK, "list", f"--cluster={place.cluster}", *place.flags, f"--filter-by-job={name}"]


def delete(name: str, place: Place) -> list[str]:
    return [*XPK, "delete", f"--cluster={place.cluster}", f"--workload={name}", *place.flags, "--force"]


def follow(name: str, node: int, worker: int, lines: int) -> list[str]:
    """Streams what the training says on one machine; labels are those of JobSet and of indexed jobs."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": name,
        "jobset.sigs.k8s.io/job-index": node,
        "batch.kubernetes.io/job-completion-index": worker,
    }
    selector = ",".join(f"{label}={value}" for label, value in labels.items())
    return [
        "kubectl",
        "logs",
        "--follow",
        f"--selector={selector}",
        f"--container={CONTAINER}",
        f"--tail={lines}",
    ]


def read_listing(text: str, name: str) -> tuple[str, str]:
    """State of a workload and the cluster's words for it, from xpk's table.

    Raises:
      RunError: where there is no such table.
    """
    lines = text.splitlines()
    head = next((index for index, line in enumerate(lines) if line.startswith("Jobset Name")), None)
    if head is None:
        raise RunError(
            "xpk workload list printed no table of workloads: try it by hand, its version may be another one"
        )
    # Titles stand over their columns, two or more spaces apart.
    titles = list(re.finditer(r"\S+( \S+)*", lines[head]))
    starts = [title.start() for title in titles]
    for line in lines[head + 1 :]:
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None])]
        row = dict(zip((title.group() for title in titles), cells))
        if row["Jobset Name"] != name:
            continue
        status, message = row["Status"], row["Status Message"]
        if status == "Finished":
            return (FAILED if "fail" in message.lower() else FINISHED), message
        return STATES.get(status, WAITING), message
    return MISSING, ""


def manifest(job: Job, restarts: int) -> dict[str, Any]:
    """The JobSet of a workload; kubectl takes it as JSON."""
    selector = {
        "cloud.google.com/gke-tpu-accelerator": job.slice.generation.gke,
        "cloud.google.com/gke-tpu-topology": job.slice.shape,
    }
    if job.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    nodes = job.workers // job.slices
    chips = job.slice.chips // nodes
    container = {
        "name": CONTAINER,
        "image": job.image,
        "command": ["bash", "-c", shell_command(job.command)],
        "env": [{"name": name, "value": literal(value)} for name, value in job.environment.items()],
        "securityContext": {"privileged": True},
        "resources": {"limits": {"google.com/tpu": chips}},
        "volumeMounts": [{"mountPath": "/dev/shm", "name": "shared-memory"}],
    }
    pod = {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": GRACE,
        "nodeSelector": selector,
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}]
        + ([{"key": "cloud.google.com/gke-spot", "operator": "Exists"}] if job.spot else []),
        "containers": [container],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    final = {
        "action": "FailJob",
        "onPodConditions": [],
        "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": list(RESTART_CODES)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            # Without the first nothing waits its turn, and xpk lists what waits in this queue alone.
            "labels": {"kueue.x-k8s.io/queue-name": QUEUE, "xpk.google.com/workload": job.name},
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "ttlSecondsAfterFinished": KEPT,
            "failurePolicy": {
                "maxRestarts": restarts,
                "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [
                {
                    "name": REPLICATED,
                    "replicas": job.slices,
                    "template": {
                        "spec": {
                            "parallelism": nodes,
                            "completions": nodes,
                            "backoffLimit": 0,
                            "podFailurePolicy": {"rules": [final]},
                            "template": {"spec": pod},
                        }
                    },
                }
            ],
        },
    }


def manifest_text(job: Job, restarts: int) -> str:
    """The JobSet as a file; lists of numbers stand in one line."""
    text = json.dumps(manifest(job, restarts), indent=2)
    return (
        re.sub(r"\[[\d,\s]+\]", lambda numbers: f"[{' '.join(numbers.group()[1:-1].split())}]", text) + "\n"
    )
