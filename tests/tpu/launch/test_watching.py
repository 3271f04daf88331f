"""Watching a queued resource: what follows in every state, through a stand-in for gcloud on PATH."""

import dataclasses

import pytest
from cases import slow_but
from launching import IMAGE

from flaxnmt.errors import ConfigError
from tpu import queued, watch
from tpu.command import CommandFailed, Runner
from tpu.job import Job, Place
from tpu.patience import UNREACHED
from tpu.queued import PATIENCE
from tpu.slices import parse_slice

pytestmark = pytest.mark.usefixtures("in_process")

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
    """Watches a job through states of the resource in turn; exit code, lines, seconds slept, which is all that lasts."""

    def run(
        *events: dict, spot: bool = True, fail: dict | None = None, looks: int = 20, **options
    ) -> tuple[int, list[str], list[float]]:
        lines, slept = [], []
        runner = Runner(say=lines.append)
        now = cloud.folder / "now.json"
        now.write_text("0")
        watch.create(job(spot), runner)
        cloud.plan(states=list(events), fail=fail or {})

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            assert len(slept) < looks, "it waits for ever"
            now.write_text(str(sum(slept)))

        watcher = watch.Watcher(job(spot), runner, sleep=sleep, clock=lambda: sum(slept), **options)
        return watcher.watch(), lines, slept

    return run


def state(name: str, codes: dict | None = None) -> dict:
    return {"state": name, "codes": codes or {}}


WAITING = [state("WAITING_FOR_RESOURCES"), state("PROVISIONING")]


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


def test_a_training_that_saved_is_run_again_on_machines_that_stay(watched, cloud):
    one_left = ended(42, {"0-3": "running"})
    code, lines, slept = watched(
        state("ACTIVE", one_left),
        *[state("ACTIVE", ended(42))] * 5,
        state("ACTIVE", RUNNING),
        state("ACTIVE", ended(0)),
    )
    assert code == 0 and cloud.verbs == ["rm", "create", "rm", "ssh", "delete"]
    assert slept == [30.0] * 5 + [60.0, 30.0]
    (ssh,) = (call for call in cloud.calls if "ssh" in call)
    assert "--worker=all" in ssh and "--node=all" in ssh
    command = (
        "sudo setsid --fork bash /var/lib/flaxnmt/startup.sh again python -m experiments.train text_small"
    )
    assert f"--command={command}" in ssh


def test_machines_that_are_about_to_go_are_not_asked_to_run_what_saved(watched, cloud):
    saved = [state("ACTIVE", ended(42))] * 3
    code, *_ = watched(*saved, state("SUSPENDING"), state("SUSPENDED"), state("ACTIVE", ended(0)))
    assert code == 0 and "ssh" not in cloud.verbs and cloud.verbs.count("create") == 2


def test_what_cannot_be_reached_is_given_up_soon(watched, monkeypatch):
    limits = {}
    run = Runner.run

    def noted(self, argv, missing_ok=False, limit=None):
        limits[argv[4] if argv[1] == "compute" else argv[2]] = limit
        return run(self, argv, missing_ok, limit)

    monkeypatch.setattr(Runner, "run", noted)
    watched(*[state("ACTIVE", ended(42))] * 5, state("ACTIVE", ended(0)))
    assert limits["ssh"] == queued.SSH_LIMIT and limits["delete"] is None


@pytest.mark.parametrize(
    "name, spot", slow_but([("ACTIVE", False)], [("ACTIVE", True), ("ACTIVE", False), ("SUSPENDED", True)])
)
@pytest.mark.parametrize(
    "exit_code, code, why", [(2, 2, "a mistake to correct"), (3, 1, "a defect"), (126, 1, "a defect")]
)
def test_mistakes_and_defects_end_the_watch_at_once(watched, cloud, name, spot, exit_code, code, why):
    found, lines, _ = watched(state("ACTIVE", RUNNING), state(name, {**RUNNING, "0-2": exit_code}), spot=spot)
    assert found == code and cloud.verbs == ["rm", "create"]
    assert f"{why}" in lines[-3] and lines[-3].endswith(f"exit code {exit_code} of worker 0-2")
    assert "gs://my-bucket/launch/wmt/log/0-2" in lines[-2] and "cost money" in lines[-1]


@pytest.mark.parametrize("names", [["ACTIVE", "SUSPENDING", "SUSPENDED"], ["SUSPENDED"]])
def test_code_1_on_spot_machines_that_are_taken_away_is_forgiven_once(watched, cloud, names):
    taken = [state(name, {**RUNNING, "0-2": 1}) for name in names]
    code, lines, _ = watched(*taken, state("ACTIVE", RUNNING), state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs.count("create") == 2
    cloud.plan()
    code, lines, _ = watched(*taken, *taken)
    assert code == 1 and "failed a second time: a defect: exit code 1 of worker 0-2" in lines[-3]


@pytest.mark.parametrize("spot, seconds", [(True, PATIENCE), (False, 0.0)])
def test_code_1_on_machines_that_stay_is_a_defect(watched, spot, seconds):
    failed = state("ACTIVE", {**RUNNING, "0-2": 1})
    code, lines, slept = watched(*[failed] * 9, spot=spot)
    assert code == 1 and sum(slept) == seconds and lines[-3].endswith("exit code 1 of worker 0-2")


def test_an_image_that_could_not_be_had_is_no_defect_while_the_machines_are_being_taken_away(watched, cloud):
    missed = state("ACTIVE", {**RUNNING, "0-1": 125})
    code, *_ = watched(missed, state("SUSPENDED"), state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs.count("create") == 2
    code, lines, slept = watched(*[missed] * 9)
    assert code == 1 and sum(slept) == PATIENCE and lines[-3].endswith("exit code 125 of worker 0-1")


def test_killed_processes_are_no_defect_while_the_machines_are_being_taken_away(watched, cloud):
    killed = {**RUNNING, "0-1": 134}
    code, *_ = watched(state("ACTIVE", killed), state("SUSPENDED"), state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs.count("create") == 2


def test_killed_processes_on_machines_that_stay_are_a_defect(watched):
    killed = state("ACTIVE", {**RUNNING, "0-1": 137})
    code, lines, _ = watched(*[killed] * 9)
    assert code == 1 and "exit code 137 of worker 0-1" in lines[-3]


def test_lost_processes_are_started_again_on_machines_that_stay_but_not_for_ever(watched, cloud):
    lost = [state("ACTIVE", ended(43, {"0-2": 42})), *[state("ACTIVE", ended(43))] * 5]
    code, *_ = watched(*lost, state("ACTIVE", ended(0)))
    assert code == 0 and cloud.verbs == ["rm", "create", "rm", "ssh", "delete"]
    cloud.plan()
    (cloud.folder / "calls.jsonl").unlink()
    code, lines, _ = watched(*lost * 4, looks=30)
    assert code == 1 and cloud.verbs.count("ssh") == 3
    assert "processes were lost 4 times within an hour: exit code 43" in lines[-3]


def test_another_watch_goes_on_counting(watched, cloud):
    """Each look is that of another watcher, as where one is ended and started again, or a sweep is called."""
    lines, now = [], 0.0
    runner, one = Runner(say=lines.append), job()
    watch.create(one, runner)

    def look(seconds: float, name: str, codes: dict | None = None, restarts: int = 50) -> int | None:
        nonlocal now
        (cloud.folder / "now.json").write_text(str(now))
        now += seconds
        cloud.plan(states=[state(name, codes)])
        return watch.Watcher(one, runner, restarts, clock=lambda: now).step()

    for _ in range(3):
        assert look(60, "ACTIVE", ended(43)) is None and look(60, "ACTIVE") is None
    assert cloud.verbs.count("ssh") == 3 and look(PATIENCE, "ACTIVE", ended(43)) == 1
    assert "processes were lost 4 times within an hour" in lines[-3]
    now += 3600
    assert look(0, "ACTIVE") is None and "restart 4 of at most 50" in lines[-1]
    assert look(0, "SUSPENDED", restarts=4) == 1 and "stopped after 4 restarts" in lines[-1]
    assert look(0, "ACTIVE") is None and look(watch.SILENCE, "ACTIVE") == 1
    assert "no machine has said anything" in lines[-1]
    # Whoever starts it by hand allows all of it again.
    watch.run(one, runner)
    assert look(0, "SUSPENDED", restarts=1) is None and "restart 1 of at most 1" in lines[-1]


def test_a_restart_that_fails_is_tried_again(watched, cloud):
    code, *_ = watched(
        *[state("ACTIVE", ended(42))] * 6,
        state("ACTIVE", RUNNING),
        state("ACTIVE", ended(0)),
        fail={"ssh": ["network"]},
    )
    assert code == 0 and cloud.verbs.count("ssh") == 2


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"image": IMAGE[:-1] + "2"}, f"another --image {IMAGE} and keep it"),
        ({"environment": {"COLOUR": "red"}}, "another --env COLOUR and keep it"),
        ({"slice": parse_slice("v5e-64")}, "its machines are 1 x v5litepod-16, and not 1 x v5litepod-64"),
        ({"slices": 2}, "its machines are 1 x v5litepod-16, and not 2 x v5litepod-16"),
    ],
)
def test_machines_keep_their_image_and_variables(cloud, changes, said):
    runner = Runner(say=lambda line: None)
    watch.create(job(), runner)
    other = dataclasses.replace(job(), **changes)
    cloud.plan(states=[state("ACTIVE", RUNNING)])
    with pytest.raises(ConfigError, match="needs delete and create") as error:
        watch.Watcher(other, runner).step()
    assert said in str(error.value) and cloud.verbs == ["rm", "create"]


def test_a_deleted_resource_ends_the_watch(watched):
    code, lines, _ = watched(state("ACTIVE", RUNNING), state("GONE"))
    assert code == 1 and "it was deleted, or never created" in lines[-1]


def test_a_passing_failure_of_gcloud_is_waited_out(watched, cloud):
    code, lines, _ = watched(
        state("ACTIVE", RUNNING), state("ACTIVE", ended(0)), fail={"describe": ["", "network", "network"]}
    )
    assert code == 0 and sum("will try again" in line for line in lines) == 1


def test_a_lasting_failure_of_gcloud_is_waited_out_for_an_hour(watched):
    code, lines, slept = watched(state("ACTIVE", RUNNING), fail={"describe": ["network"] * 30})
    assert code == UNREACHED and "Could not reach the server" in lines[-1] and "the same watch" in lines[-1]
    assert sum(slept) >= 3600 and slept[:6] == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


@pytest.mark.slow
def test_spot_machines_are_asked_for_until_there_are_any(watched, cloud):
    code, lines, slept = watched(
        state("SUSPENDED"), state("ACTIVE", ended(0)), fail={"create": [*["capacity"] * 15, ""]}
    )
    assert code == 0 and sum(slept) > 2 * 3600 and cloud.verbs.count("create") == 17


def test_expired_credentials_end_the_watch_with_what_to_do(watched):
    with pytest.raises(CommandFailed, match="gcloud auth login, then the same command again"):
        watched(state("ACTIVE", RUNNING), fail={"describe": ["", "credentials"]})


def test_a_restart_that_was_half_done_is_finished_and_no_resource_that_somebody_has_deleted(watched, cloud):
    code, lines, _ = watched(
        state("SUSPENDED"), state("ACTIVE", ended(0)), fail={"create": ["network", "capacity", ""]}
    )
    assert code == 0 and cloud.verbs == ["rm", "create", *["delete", "rm", "create"] * 3, "delete"]
    assert sum("restart 1 of at most 50" in line for line in lines) == 1


@pytest.fixture
def looked(cloud):
    """Looks once, each time as another watcher: exit code; with the lines that all of them said."""
    lines, one = [], job()
    runner = Runner(say=lines.append)
    watch.create(one, runner)

    def look(name: str, codes: dict | None = None, **fail) -> int | None:
        cloud.plan(states=[state(name, codes)], fail=fail)
        return watch.Watcher(one, runner, clock=lambda: PATIENCE).step()

    return look, lines


@pytest.mark.parametrize("step", ["storage rm", "create"])
def test_another_watch_asks_again_for_what_was_deleted_for_that(cloud, looked, step):
    look, lines = looked
    assert look("SUSPENDED", ended(42), **{step: ["network"]}) is None and cloud.resources == {}
    assert look("GONE", create=["capacity"]) is None and look("GONE") is None and "wmt" in cloud.resources
    assert sum("restart 1 of at most 50" in line for line in lines) == 1
    # What has been asked for, and is not there any more, was deleted by somebody.
    assert look("GONE") == 1 and "it was deleted, or never created" in lines[-1] and cloud.resources == {}


def test_another_watch_waits_for_a_deletion_and_asks_again(cloud, looked):
    look, _ = looked
    assert look("SUSPENDED", {**RUNNING, "0-2": 1}, delete=["network"]) is None
    assert look("DELETING") is None and cloud.verbs[-1] == "delete"
    assert look("GONE") is None and "wmt" in cloud.resources


def test_another_watch_runs_again_what_was_forgotten_for_that(cloud, looked):
    look, lines = looked
    assert look("ACTIVE", ended(42), ssh=["network"]) is None
    assert look("ACTIVE", ssh=["network"]) is None and look("ACTIVE") is None
    assert cloud.verbs == ["rm", "create", *["rm", "ssh"] * 3]
    assert sum("restart 1 of at most 50" in line for line in lines) == 1
    # Once, and not on machines that are being taken away.
    assert look("ACTIVE") is None and cloud.verbs[-1] == "ssh" and cloud.verbs.count("ssh") == 3
    assert look("ACTIVE", ended(42), ssh=["network"]) is None and look("SUSPENDING") is None
    assert look("SUSPENDED") is None and cloud.verbs[-2:] == ["rm", "create"]


def test_what_has_been_asked_for_is_not_deleted_where_that_could_not_be_written_down(cloud, looked):
    look, lines = looked
    assert look("SUSPENDED", **{"storage cp": ["", "network"]}) is None and "wmt" in cloud.resources
    assert look("ACCEPTED") is None and cloud.verbs.count("create") == 2
    assert look("GONE") == 1 and "it was deleted, or never created" in lines[-1]


def test_machines_that_say_nothing_end_the_watch(watched, cloud):
    code, lines, slept = watched(*[state("PROVISIONING")] * 3, *[state("ACTIVE")] * 16, delay=100)
    assert code == 1 and "no machine has said anything for 20 minutes" in lines[-1] and len(slept) == 15


def test_machines_of_which_one_has_said_something_are_waited_for(watched):
    code, *_ = watched(*[state("ACTIVE", {"0-2": "running"})] * 17, state("ACTIVE", ended(0)), delay=100)
    assert code == 0
