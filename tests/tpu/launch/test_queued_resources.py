"""Queued resources: what is asked of gcloud, through a stand-in on PATH."""

import json
import shlex
from pathlib import Path

import pytest
from launching import CREATE, DATA, MACHINES

from tpu import queued, watch
from tpu.command import ADVICE, KINDS, CommandFailed, Runner
from tpu.job import Place
from tpu.queued import Resource

NAME = ["text_small", "--name", "wmt"]


def test_create_asks_for_the_machines_with_the_training_as_data(cloud, command):
    flags = ["--note", "two words; $(rm -rf /) 'x' \"y\", ünï"]
    code, out, _ = command(
        [*CREATE, "--spot", "--zone", "us-west4-a", "--", *DATA, "--data.source-language", flags[1]]
    )
    assert code == 2  # not a flag of this training: found here, and not on the pod
    code, out, _ = command(
        [*CREATE, "--spot", "--zone", "us-west4-a", "--", *DATA, "--test", f"gs://b/{flags[1]}"]
    )
    assert code == 0 and "asked for 1 x v5e-16; the run directory is gs://my-bucket/runs/wmt" in out
    (resource,) = cloud.resources.values()
    given, metadata = resource["flags"], resource["metadata"]
    assert (
        given["--accelerator-type"] == "v5litepod-16" and given["--runtime-version"] == "v2-alpha-tpuv5-lite"
    )
    assert given["--node-id"] == "wmt" and "--spot" in given and "--node-count" not in given
    assert metadata["flaxnmt-command"].splitlines() == [
        *(
            "python",
            "-m",
            "experiments.train",
            "text_small",
            "--run",
            "gs://my-bucket/runs/wmt",
            "--processes",
            "0",
            "--expect-processes",
            "4",
            "--expect-devices",
            "16",
        ),
        *(*DATA, "--test", f"gs://b/{flags[1]}"),
    ]
    assert (
        "JAX_COMPILATION_CACHE_DIR=gs://my-bucket/cache/jax" in metadata["flaxnmt-environment"].splitlines()
    )
    assert metadata["startup-script"] == (Path(watch.STARTUP)).read_text()


@pytest.mark.parametrize("name, processes, devices", [("v5e-8", 2, 16), ("v4-16", 4, 16), ("v3-32", 8, 64)])
def test_the_training_is_told_how_many_processes_and_devices_it_should_find(
    cloud, command, name, processes, devices
):
    line = [name if word == "v5e-16" else word for word in CREATE]
    assert command([*line, "--slices", "2", "--", *DATA])[0] == 0
    words = cloud.resources["wmt"]["metadata"]["flaxnmt-command"].splitlines()
    assert words[words.index("--expect-processes") + 1] == str(processes)
    assert words[words.index("--expect-devices") + 1] == str(devices)


def test_several_slices_are_nodes_of_one_resource(cloud, command):
    assert command([*CREATE, "--slices", "2", "--", *DATA])[0] == 0
    given = cloud.resources["wmt"]["flags"]
    assert given["--node-count"] == "2" and given["--node-prefix"] == "wmt" and "--node-id" not in given
    assert "2 x v5litepod-16" in command(["status", *NAME])[1]


def test_what_an_earlier_job_of_this_name_said_is_forgotten(cloud, command):
    cloud.put("my-bucket/launch/wmt/exit/0-0", "wmt 0-0 0 1700000000\n")
    assert command([*CREATE, "--", *DATA])[0] == 0
    assert "none has started" in command(["status", *NAME, "--bucket", "gs://my-bucket"])[1]


def test_what_a_job_that_is_there_has_said_is_kept(cloud, command):
    assert command([*CREATE, "--", *DATA])[0] == 0
    cloud.put("my-bucket/launch/wmt/exit/0-0", "wmt 0-0 running 1700000000\n")
    before = cloud.verbs
    code, _, err = command([*CREATE, "--", *DATA])
    assert code == 2 and "wmt is ACCEPTED; the name is taken: continue with run or watch" in err
    assert cloud.verbs == before
    assert "0-0 running" in command(["status", *NAME, "--bucket", "gs://my-bucket"])[1]


@pytest.mark.parametrize(
    "kind, said",
    [
        ("credentials", "gcloud auth login"),
        ("account", "gcloud auth login"),
        ("quota", "delete resources that are SUSPENDED or FAILED"),
        ("permission", "it needs the roles that tpu/README.md lists"),
        ("disabled", "gcloud services enable tpu.googleapis.com"),
        ("exists", "continue with run or watch"),
        ("runtime", "compare --slice, --zone and --runtime-version"),
    ],
)
def test_what_google_refuses_is_one_line_with_what_to_do(cloud, command, kind, said):
    cloud.plan(fail={"create": [kind]})
    code, out, err = command([*CREATE, "--", *DATA])
    assert code == 2 and err.count("\n") == 1 and err.startswith("error: ") and said in err
    assert cloud.resources == {} and "asked for" not in out


def test_a_job_is_called_like_its_configuration(cloud, command):
    assert command(["create", "text_small", *MACHINES, "--", *DATA])[0] == 0
    assert list(cloud.resources) == ["text-small"]


def test_a_resource_that_is_not_there(cloud, command):
    assert "NOT_FOUND" in command(["status", *NAME])[1]
    code, _, err = command(["delete", *NAME])
    assert code == 2 and "there is none of this name" in err
    code, _, err = command(["watch", *NAME, *MACHINES, "--", *DATA])
    assert code == 1


def test_every_kind_of_failure_says_what_to_do():
    assert set(ADVICE) == {kind for kind, _ in KINDS}


def test_no_token_is_repeated(cloud, command):
    cloud.plan(fail={"describe": ["leak"]})
    code, out, err = command(["status", *NAME])
    assert code == 2 and "ya29" not in out + err and "***" in err
    code, out, err = command([*CREATE, "--dry-run", "--env", "HF_TOKEN=abc123", "COLOUR=red", "--", *DATA])
    assert code == 0 and "abc123" not in out + err and "HF_TOKEN=***" in out and "COLOUR=red" in out
    assert command([*CREATE, "--env", "HF_TOKEN=abc123", "--", *DATA])[0] == 0
    assert "HF_TOKEN=abc123" in cloud.resources["wmt"]["metadata"]["flaxnmt-environment"]
    assert (Path("runs/launch/wmt/environment").stat().st_mode & 0o077) == 0


def test_a_bucket_that_is_none_is_said_before_any_machine_is_asked_for(cloud, command):
    cloud.plan(fail={"storage rm": ["no bucket"]})
    code, _, err = command([*CREATE, "--", *DATA])
    assert code == 2 and "there is no such bucket: correct --bucket" in err and cloud.resources == {}


def test_a_program_that_hangs_is_ended(monkeypatch, cloud):
    monkeypatch.setattr("tpu.command.TIME_LIMIT", 0.2)
    # What it has started itself goes on, and holds what it writes to open.
    with pytest.raises(
        CommandFailed, match="sh did not end within 0.2 s; the command was: sh -c 'sleep 5; true'"
    ):
        Runner().run(["sh", "-c", "sleep 5; true"])


def test_a_program_that_is_missing_is_said(command, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, err = command(["status", *NAME])
    assert code == 2 and err == "error: gcloud is not installed: https://cloud.google.com/sdk/docs/install\n"


def test_status_says_state_and_workers(cloud, command):
    command([*CREATE, "--", *DATA])
    cloud.plan(states=[{"state": "ACTIVE", "codes": {"0-0": "running", "0-1": 42}}])
    _, out, _ = command(["status", *NAME, "--bucket", "gs://my-bucket"])
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        ["name", "wmt"],
        ["state", "ACTIVE"],
        ["slices", "1 x v5litepod-16"],
        ["workers", "0-0 running, 0-1 42"],
    ]


def test_run_goes_on_with_the_machines_as_they_were_made(cloud, command):
    command([*CREATE, "--env", "HF_TOKEN=abc", "--", *DATA])
    cloud.plan(states=[{"state": "ACTIVE"}] * 4)
    run = ["run", *CREATE[1:]]
    for line, said in (
        ([*run[:-1], f"{run[-1]}2", "--env", "HF_TOKEN=abc", "--", *DATA], "another --image us-docker"),
        ([*run, "--env", "HF_TOKEN=def", "--", *DATA], "another --env HF_TOKEN and keep it"),
        ([*run, "--", *DATA], "another --env HF_TOKEN and keep it"),
        (
            [*run, "--slice", "v5e-8", "--", *DATA],
            "its machines are 1 x v5litepod-16, and not 1 x v5litepod-8",
        ),
    ):
        code, _, err = command(line)
        assert code == 2 and err.count("\n") == 1 and said in err and "needs delete and create" in err
        assert "abc" not in err and "def" not in err and "ssh" not in cloud.verbs
    assert command([*run, "--env", "HF_TOKEN=abc", "--", *DATA])[0] == 0 and cloud.verbs[-2:] == ["rm", "ssh"]


def test_run_needs_machines_that_are_there(cloud, command):
    run = ["run", *CREATE[1:], "--", *DATA]
    code, _, err = command(run)
    assert code == 2 and "wmt is NOT_FOUND, and run starts" in err and "create asks for them" in err
    command([*CREATE, "--", *DATA])
    cloud.plan(states=[{"state": "SUSPENDED"}])
    code, _, err = command(run)
    assert code == 2 and "wmt is SUSPENDED, and run starts" in err and cloud.verbs == ["rm", "create"]


def test_machines_that_ssh_leaves_out_are_no_success(cloud, command):
    command([*CREATE, "--", *DATA])
    with pytest.raises(CommandFailed, match="Could not prepare all 1 nodes") as error:
        Runner().run(queued.ssh("wmt", Place(), ["true"]))
    assert error.value.kind == "other"


def test_a_configuration_that_is_none_is_no_resource_that_is_gone(cloud, command):
    for verb in ("status", "logs", "delete"):
        code, _, err = command([verb, "text_smal"])
        assert code == 2 and "no configuration 'text_smal', did you mean 'text_small'?" in err
    assert cloud.calls == []


def test_logs_of_a_machine_and_of_one_that_is_gone(cloud, command):
    command([*CREATE, "--", *DATA])
    assert command(["logs", *NAME, "--worker", "3"])[0] == 0
    assert "--command=sudo tail -n 100 -F /var/lib/flaxnmt/log" in cloud.calls[-1]
    cloud.put("my-bucket/launch/wmt/log/0-3", "Traceback\n")
    assert command(["logs", *NAME, "--worker", "3", "--bucket", "gs://my-bucket"])[0] == 0
    assert cloud.calls[-1] == ["gcloud", "storage", "cat", "gs://my-bucket/launch/wmt/log/0-3"]


def test_a_dry_run_calls_nothing_and_writes_nothing(cloud, command):
    for verb in (CREATE, ["run", *CREATE[1:]], ["watch", *CREATE[1:], "--spot"]):
        assert command([*verb, "--dry-run", "--", *DATA])[0] == 0
    for verb in ("status", "logs", "delete"):
        assert command([verb, *NAME, "--dry-run"])[0] == 0
    assert cloud.calls == [] and not Path("runs").exists()


def test_a_dry_run_prints_what_runs(cloud, command):
    """The commands that are printed are those that are called, word by word."""
    _, out, _ = command([*CREATE, "--spot", "--dry-run", "--", *DATA])
    printed = [shlex.split(line) for line in out.splitlines() if not line.startswith("#")]
    command([*CREATE, "--spot", "--", *DATA])
    assert printed == cloud.calls


def test_resources_are_read_as_the_api_describes_them():
    text = json.dumps(
        {"state": {"state": "ACCEPTED", "acceptedData": {}}, "tpu": {"nodeSpec": [{"nodeId": "a"}]}}
    )
    assert queued.read_resource(text) == Resource("ACCEPTED", "", "", 1)
    assert queued.read_resource("") == Resource("NOT_FOUND")
