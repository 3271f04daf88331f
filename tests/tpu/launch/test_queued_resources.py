"""Queued resources: what is asked of gcloud, in every state, through a stand-in on PATH."""

import itertools
import json
import shlex
from pathlib import Path

import pytest
from launching import CREATE, DATA, IMAGE, MACHINES

from tpu import queued, watch
from tpu.command import ADVICE, KINDS, CommandFailed, Runner
from tpu.job import Job, Place
from tpu.queued import Action, Outcome, Progress, Resource, decide, read_progress
from tpu.slices import parse_slice

NAME = ["text_small", "--name", "wmt"]
RUNNING = {f"0-{worker}": "running" for worker in range(4)}


def ended(code: int, but: dict | None = None) -> dict:
    return dict.fromkeys(RUNNING, code) | (but or {})


def job(spot: bool = True, slices: int = 1) -> Job:
    return Job(
        name="wmt",
        place=Place(),
        slice=parse_slice("v5e-16"),
        slices=slices,
        bucket="gs://my-bucket",
        run="gs://my-bucket/runs/wmt",
        image=IMAGE,
        command=("python", "-m", "experiments.train", "text_small"),
        environment={},
        spot=spot,
    )


@pytest.fixture
def watched(cloud):
    """Watches a job through states of the resource in turn; exit code, lines, seconds slept."""

    def run(
        *events: dict, spot: bool = True, fail: dict | None = None, **options
    ) -> tuple[int, list[str], list[float]]:
        lines, slept, now = [], [], itertools.count(step=100)
        runner = Runner(say=lines.append)
        watch.create(job(spot), runner)
        cloud.plan(states=list(events), fail=fail or {})

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            assert len(slept) < 20, "it waits for ever"

        watcher = watch.Watcher(job(spot), runner, sleep=sleep, clock=lambda: next(now), **options)
        return watcher.watch(), lines, slept

    return run


def state(name: str, codes: dict | None = None) -> dict:
    return {"state": name, "codes": codes or {}}


WAITING = [state("WAITING_FOR_RESOURCES"), state("PROVISIONING")]


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
        ),
        *(*DATA, "--test", f"gs://b/{flags[1]}"),
    ]
    assert (
        "JAX_COMPILATION_CACHE_DIR=gs://my-bucket/cache/jax" in metadata["flaxnmt-environment"].splitlines()
    )
    assert metadata["startup-script"] == (Path(watch.STARTUP)).read_text()


def test_several_slices_are_nodes_of_one_resource(cloud, command):
    assert command([*CREATE, "--slices", "2", "--", *DATA])[0] == 0
    given = cloud.resources["wmt"]["flags"]
    assert given["--node-count"] == "2" and given["--node-prefix"] == "wmt" and "--node-id" not in given
    assert "2 x v5litepod-16" in command(["status", *NAME])[1]


def test_what_an_earlier_job_of_this_name_said_is_forgotten(cloud, command):
    cloud.put("my-bucket/launch/wmt/exit/0-0", "wmt 0-0 0\n")
    assert command([*CREATE, "--", *DATA])[0] == 0
    assert "none has started" in command(["status", *NAME, "--bucket", "gs://my-bucket"])[1]


def test_finished_machines_are_given_back(cloud, watched):
    code, lines, slept = watched(
        *WAITING,
        state("ACTIVE"),
        state("ACTIVE", {"0-0": "running"}),
        state("ACTIVE", RUNNING),
        state("ACTIVE", ended(0)),
    )
    assert code == 0 and cloud.resources == {} and len(slept) == 5
    said = [line.partition("wmt: ")[2] for line in lines]
    assert said == [
        "WAITING_FOR_RESOURCES, not started",
        "PROVISIONING, not started",
        "ACTIVE, not started",
        "ACTIVE, 1 of 4 workers have started",
        "ACTIVE, running on 4 workers",
        "ACTIVE, finished",
        "the training has finished: gs://my-bucket/runs/wmt",
        "the machines are given back",
    ]


def test_finished_machines_may_be_kept(cloud, watched):
    code, lines, _ = watched(state("ACTIVE", ended(0)), keep=True)
    assert code == 0 and "wmt" in cloud.resources and "cost money" in lines[-1]


def test_suspended_spot_machines_are_asked_for_again_and_go_on(cloud, watched):
    code, lines, _ = watched(
        state("ACTIVE", RUNNING),
        state("SUSPENDING", ended(42)),
        state("SUSPENDED"),
        state("WAITING_FOR_RESOURCES"),
        state("ACTIVE", RUNNING),
        state("ACTIVE", ended(0)),
    )
    assert code == 0
    assert cloud.verbs == ["rm", "create", "delete", "rm", "create", "delete"]
    assert any(
        "the resource is SUSPENDED; asking for it again, restart 1 of at most 50" in line for line in lines
    )
    asked = [call for call in cloud.calls if "create" in call]
    assert asked[0] == asked[1] and "--spot" in asked[0]


@pytest.mark.parametrize("name", ["SUSPENDED", "FAILED:capacity"])
def test_other_machines_are_not_asked_for_again(watched, cloud, name):
    code, lines, _ = watched(state("ACTIVE", RUNNING), state(name), spot=False)
    assert code == 1 and cloud.verbs == ["rm", "create"]
    assert "it will not be asked for again" in lines[-1] and name.partition(":")[0] in lines[-1]


def test_failed_spot_machines_are_asked_for_again_ever_more_slowly(watched, cloud):
    failing = [state("FAILED:capacity")] * 3
    code, lines, slept = watched(*failing, state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs.count("create") == 4
    assert slept == [60.0, 120.0, 240.0]
    assert any("There is no more capacity in the zone" in line for line in lines)


def test_what_the_quota_forbids_is_not_asked_for_again(watched, cloud):
    code, lines, _ = watched(state("FAILED:quota"))
    assert code == 1 and cloud.verbs == ["rm", "create"] and "Quota limit" in lines[-1]


def test_restarts_have_a_limit(watched, cloud):
    code, lines, _ = watched(*[state("SUSPENDED")] * 3, restarts=1)
    assert code == 1 and cloud.verbs.count("create") == 2 and "stopped after 1 restarts" in lines[-1]


def test_a_training_that_saved_is_run_again_on_machines_that_are_there(watched, cloud):
    one_left = ended(42, {"0-3": "running"})
    code, lines, _ = watched(
        state("ACTIVE", one_left),
        state("ACTIVE", ended(42)),
        state("ACTIVE", RUNNING),
        state("ACTIVE", ended(0)),
    )
    assert code == 0 and cloud.verbs == ["rm", "create", "rm", "ssh", "delete"]
    (ssh,) = (call for call in cloud.calls if "ssh" in call)
    assert "--worker=all" in ssh and "--node=all" in ssh
    command = (
        "sudo setsid --fork bash /var/lib/flaxnmt/startup.sh again python -m experiments.train text_small"
    )
    assert f"--command={command}" in ssh


@pytest.mark.parametrize("name", ["ACTIVE", "SUSPENDED"])
@pytest.mark.parametrize(
    "exit_code, code, why", [(2, 2, "a mistake to correct"), (1, 1, "a defect"), (125, 1, "a defect")]
)
def test_mistakes_and_defects_end_the_watch_at_once(watched, cloud, name, exit_code, code, why):
    found, lines, _ = watched(state("ACTIVE", RUNNING), state(name, {**RUNNING, "0-2": exit_code}))
    assert found == code and cloud.verbs == ["rm", "create"]
    assert f"{why}" in lines[-3] and lines[-3].endswith(f"exit code {exit_code} of worker 0-2")
    assert "gs://my-bucket/launch/wmt/log/0-2" in lines[-2] and "cost money" in lines[-1]


def test_killed_processes_are_no_defect_while_the_machines_are_being_taken_away(watched, cloud):
    killed = {**RUNNING, "0-1": 134}
    code, *_ = watched(state("ACTIVE", killed), state("SUSPENDED"), state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs.count("create") == 2


def test_killed_processes_on_machines_that_stay_are_a_defect(watched):
    killed = state("ACTIVE", {**RUNNING, "0-1": 137})
    code, lines, _ = watched(*[killed] * 9)
    assert code == 1 and "exit code 137 of worker 0-1" in lines[-3]


def test_lost_processes_are_started_again_on_machines_that_stay_but_not_for_ever(watched, cloud):
    lost = [state("ACTIVE", ended(43, {"0-2": 42})), state("ACTIVE", ended(43))]
    code, *_ = watched(*lost, state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs == ["rm", "create", "rm", "ssh", "delete"]
    cloud.plan()
    (cloud.folder / "calls.jsonl").unlink()
    code, lines, _ = watched(*lost * 4)
    assert code == 1 and cloud.verbs.count("ssh") == 3
    assert "processes were lost 4 times within an hour: exit code 43" in lines[-3]


def test_a_restart_that_fails_is_tried_again(watched, cloud):
    code, *_ = watched(
        *[state("ACTIVE", ended(42))] * 2,
        state("ACTIVE", RUNNING),
        state("ACTIVE", ended(0)),
        fail={"ssh": ["network"]},
    )
    assert code == 0 and cloud.verbs.count("ssh") == 2


def test_a_deleted_resource_ends_the_watch(watched):
    code, lines, _ = watched(state("ACTIVE", RUNNING), state("GONE"))
    assert code == 1 and "somebody has deleted it" in lines[-1]


def test_a_passing_failure_of_gcloud_is_waited_out(watched, cloud):
    code, lines, _ = watched(
        state("ACTIVE", RUNNING), state("ACTIVE", ended(0)), fail={"describe": ["", "network", "network"]}
    )
    assert code == 0 and sum("will try again" in line for line in lines) == 1


def test_a_lasting_failure_of_gcloud_is_not(watched):
    with pytest.raises(CommandFailed, match="Could not reach the server"):
        watched(state("ACTIVE", RUNNING), fail={"describe": ["network"] * 9})


def test_expired_credentials_end_the_watch_with_what_to_do(watched):
    with pytest.raises(CommandFailed, match="gcloud auth login, then the same command again"):
        watched(state("ACTIVE", RUNNING), fail={"describe": ["", "credentials"]})


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


def test_a_program_that_is_missing_is_said(command, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, err = command(["status", *NAME])
    assert code == 2 and err == "error: gcloud is not installed: https://cloud.google.com/sdk/docs/install\n"


def test_status_says_state_and_workers(cloud, command):
    command([*CREATE, "--", *DATA])
    cloud.plan(states=[state("ACTIVE", {"0-0": "running", "0-1": 42})])
    _, out, _ = command(["status", *NAME, "--bucket", "gs://my-bucket"])
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        ["name", "wmt"],
        ["state", "ACTIVE"],
        ["slices", "1 x v5litepod-16"],
        ["workers", "0-0 running, 0-1 42"],
    ]


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


@pytest.mark.parametrize("spot", [True, False])
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(
    "name", [*queued.WAITING, "ACTIVE", "SUSPENDED", "FAILED", "NOT_FOUND", "SOMETHING_NEW"]
)
def test_the_state_machine_never_loops_over_a_defect_nor_forgets_what_has_finished(name, outcome, spot):
    action, _ = decide(Resource(name), spot, Progress(outcome, 1, "0-0"))
    if outcome is Outcome.FINISHED:
        assert action is Action.FINISH
    elif outcome in (Outcome.MISTAKE, Outcome.DEFECT):
        assert action is Action.STOP
    elif name in ("SUSPENDED", "FAILED"):
        assert action is (Action.RECREATE if spot else Action.STOP)
    elif name == "ACTIVE" and outcome is Outcome.PREEMPTED:
        assert action is Action.RUN
    elif name == "ACTIVE" and outcome is Outcome.LOST:
        assert (
            action is Action.WAIT
            and decide(Resource(name), spot, Progress(outcome, 43), 200)[0] is Action.RUN
        )
    else:
        assert action is (Action.STOP if name == "NOT_FOUND" else Action.WAIT)


@pytest.mark.parametrize(
    "lines, outcome, code",
    [
        ([], Outcome.RUNNING, None),
        (["wmt 0-0 0"], Outcome.RUNNING, None),
        (["wmt 0-0 0", "wmt 0-1 running"], Outcome.RUNNING, None),
        (["wmt 0-0 0", "wmt 0-1 0"], Outcome.FINISHED, 0),
        (["wmt 0-0 0", "other 0-1 0"], Outcome.RUNNING, None),
        (["wmt 0-0 42", "wmt 0-1 running"], Outcome.RUNNING, None),
        (["wmt 0-0 42", "wmt 0-1 0"], Outcome.PREEMPTED, 42),
        (["wmt 0-0 running", "wmt 0-1 2"], Outcome.MISTAKE, 2),
        (["wmt 0-0 134", "wmt 0-1 1"], Outcome.DEFECT, 1),
        (["wmt 0-0 134", "wmt 0-1 2"], Outcome.MISTAKE, 2),
        (["wmt 0-0 143", "wmt 0-1 42"], Outcome.KILLED, 143),
        (["wmt 0-0 running", "wmt 0-1 43"], Outcome.LOST, 43),
        (["wmt 0-0 43", "wmt 0-1 1"], Outcome.DEFECT, 1),
        (["torn", "", "wmt 0-0"], Outcome.RUNNING, None),
    ],
)
def test_how_machines_ended_together(lines, outcome, code):
    found = read_progress("\n".join(lines), "wmt", 2)
    assert (found.outcome, found.code) == (outcome, code)


def test_resources_are_read_as_the_api_describes_them():
    text = json.dumps(
        {"state": {"state": "ACCEPTED", "acceptedData": {}}, "tpu": {"nodeSpec": [{"nodeId": "a"}]}}
    )
    assert queued.read_resource(text) == Resource("ACCEPTED", "", "", 1)
    assert queued.read_resource("") == Resource("NOT_FOUND")
