"""The startup script, really run by bash; docker, curl and gcloud are stand-ins, and so is the training."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import slow_but
from launching import IMAGE

STARTUP = Path(__file__).parents[3] / "tpu/startup.sh"
WORDS = [
    "two words",
    "",
    "it's",
    'say "hi"',
    "a;b",
    "$(touch pwned)",
    "`touch pwned`",
    "${HOME}",
    "*",
    "\\",
    "ünï",
    "#x",
    "-n",
]
COMMAND = ["python", "-m", "experiments.train", "text_small", "--run", "gs://my-bucket/runs/wmt", *WORDS]

# The metadata server of Compute Engine: attributes of the instance by their address.
CURL = """#!/bin/sh
for last; do :; done
case " $* " in *" Metadata-Flavor: Google "*) ;; *) exit 22 ;; esac
cat "$FAKE/metadata/${last##*/attributes/}" || exit 22
"""
# Runs what stands behind the image, with the variables of --env-file alone.
DOCKER = """#!{python} -IS
import json, os, subprocess, sys
from pathlib import Path
argv = sys.argv[1:]
with open(os.environ["FAKE"] + "/docker.jsonl", "a") as file:
    file.write(json.dumps(argv) + "\\n")
if argv[0] in ("rm", "image"):
    sys.exit(1)
if argv[0] == "pull":
    plan = Path(os.environ["FAKE"] + "/registry")
    fails = int(plan.read_text()) if plan.exists() else 0
    plan.write_text(str(max(0, fails - 1)))
    print("denied" if fails else argv[-1], file=sys.stderr if fails else sys.stdout)
    sys.exit(fails > 0)
assert argv[0] == "run", argv
known = {{"--rm", "--init", "--privileged", "--network=host", "--shm-size=16g", "--stop-timeout=300"}}
words, variables = argv[1:], {{}}
while words[0].startswith("-"):
    word = words.pop(0)
    if word == "--env-file":
        lines = Path(words.pop(0)).read_text().splitlines()
        variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    elif word == "--name":
        words.pop(0)
    else:
        assert word in known, word
image, *command = words
path = os.environ["FAKE"] + "/image:" + os.environ["PATH"]
sys.exit(subprocess.run(command, env=variables | {{"PATH": path, "FAKE": os.environ["FAKE"]}}).returncode)
"""
PYTHON = """#!{python} -IS
import json, os, sys
print(json.dumps(sys.argv[1:]))
print(json.dumps({{name: os.environ.get(name) for name in ("COLOUR", "LIBTPU_INIT_ARGS")}}), flush=True)
sys.exit(int(open(os.environ["FAKE"] + "/code").read()))
"""


@pytest.fixture
def machine(cloud, tmp_path, monkeypatch):
    """A machine of a slice whose training ends with a code; runs the script, and gives its home."""
    home = tmp_path / "home"
    image = cloud.folder / "image"
    image.mkdir()
    programs = tmp_path / "bin"
    for path, text in ((programs / "curl", CURL), (programs / "docker", DOCKER), (image / "python", PYTHON)):
        path.write_text(text.format(python=sys.executable) if path.name != "curl" else text)
        path.chmod(0o755)
    metadata = cloud.folder / "metadata"
    metadata.mkdir()
    attributes = {
        "flaxnmt-name": "wmt",
        "flaxnmt-image": IMAGE,
        "flaxnmt-state": "gs://my-bucket/launch/wmt",
        "flaxnmt-command": "".join(f"{word}\n" for word in COMMAND),
        "flaxnmt-environment": "COLOUR=light red\nLIBTPU_INIT_ARGS=--a=true --b=$(id)\n",
        "agent-worker-number": "3",
        "tpu-env": "ACCELERATOR_TYPE: 'v5litepod-16'\nMEGASCALE_SLICE_ID: '1'\nZONE: 'us-west4-a'\n",
    }
    for name, text in attributes.items():
        (metadata / name).write_text(text)
    monkeypatch.setenv("FLAXNMT_HOME", str(home))
    monkeypatch.setenv("FLAXNMT_PAUSE", "0")
    monkeypatch.delenv("HOME", raising=False)

    def start(code: int, *words: str) -> subprocess.CompletedProcess:
        (cloud.folder / "code").write_text(str(code))
        script = home / "startup.sh" if words else STARTUP
        return subprocess.run(
            ["bash", script, *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
        )

    start.home = home
    return start


def trainings(cloud) -> list[list[str]]:
    path = cloud.folder / "docker.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [call for call in map(json.loads, lines) if call[0] == "run"]


def said(cloud, worker: str = "1-3") -> str:
    """How a machine ended, with the time at which it did."""
    *words, when = (cloud.folder / f"objects/my-bucket/launch/wmt/exit/{worker}").read_text().split()
    assert abs(int(when) - time.time()) < 60
    return " ".join(words)


def test_every_word_and_variable_arrives_as_it_was_given(cloud, machine, tmp_path):
    done = machine(0)
    assert done.returncode == 0, done.stderr
    argv, variables = map(json.loads, done.stdout.splitlines()[:2])
    assert argv == COMMAND[1:]
    assert variables == {"COLOUR": "light red", "LIBTPU_INIT_ARGS": "--a=true --b=$(id)"}
    assert not list(tmp_path.rglob("pwned"))
    assert said(cloud) == "wmt 1-3 0"
    assert (cloud.folder / "objects/my-bucket/launch/wmt/log/1-3").read_text() == (
        machine.home / "log"
    ).read_text()
    assert ["gcloud", "auth", "configure-docker", "us-docker.pkg.dev", "--quiet"] in cloud.calls
    (training,) = trainings(cloud)
    assert training[training.index(IMAGE) + 1 :] == COMMAND and "--privileged" in training


@pytest.mark.parametrize(
    "code, times", slow_but([(0, 1), (42, 2)], [(0, 1), (2, 1), (1, 1), (137, 1), (42, 2)])
)
def test_a_machine_that_starts_again_runs_again_only_after_a_save(cloud, machine, code, times):
    machine(code)
    assert said(cloud) == f"wmt 1-3 {code}"
    (cloud.folder / "objects/my-bucket/launch/wmt/exit/1-3").unlink()
    done = machine(code)
    assert done.returncode == 0 and len(trainings(cloud)) == times and said(cloud) == f"wmt 1-3 {code}"


def test_again_runs_with_the_new_command_and_a_later_start_keeps_it(cloud, machine):
    machine(2)
    done = machine(42, "again", "python", "two words", "$x;")
    assert done.returncode == 0 and done.stdout == ""
    assert [call[call.index(IMAGE) + 1 :] for call in trainings(cloud)] == [
        COMMAND,
        ["python", "two words", "$x;"],
    ]
    machine(0)
    assert trainings(cloud)[-1][-3:] == ["python", "two words", "$x;"] and said(cloud) == "wmt 1-3 0"


@pytest.mark.parametrize("words", [(), ("again", "python", "other")])
def test_a_training_that_runs_is_not_started_twice_and_says_that_it_runs(cloud, machine, words):
    machine(2)
    kept = {name: (machine.home / name).read_text() for name in ("command", "code")}
    (cloud.folder / "objects/my-bucket/launch/wmt/exit/1-3").unlink()
    with subprocess.Popen(
        ["flock", machine.home / "lock", "sh", "-c", "echo held; read line"], stdin=-1, stdout=-1
    ) as held:
        assert held.stdout.readline() == b"held\n"
        done = machine(0, *words)
        held.communicate(b"\n")
    log = machine.home / "startup.log"
    assert done.returncode == 0 and "runs already" in (log.read_text() if words else done.stdout)
    assert len(trainings(cloud)) == 1 and said(cloud) == "wmt 1-3 running"
    # What it was started with is as it was.
    assert not (machine.home / "given").exists()
    assert {name: (machine.home / name).read_text() for name in kept} == kept


@pytest.mark.parametrize("fails, code", [(4, 0), (5, 125)])
def test_an_image_that_does_not_come_is_tried_again_a_while(cloud, machine, fails, code):
    (cloud.folder / "registry").write_text(str(fails))
    assert machine(0).returncode == 0 and said(cloud) == f"wmt 1-3 {code}"
    assert len(trainings(cloud)) == (code == 0)
    log = (cloud.folder / "objects/my-bucket/launch/wmt/log/1-3").read_text()
    assert log.count("denied") == fails and "attempt 4" in log


def test_a_bucket_that_fails_for_a_while_is_tried_again(cloud, machine):
    cloud.plan(fail={"storage cp": ["network", "network", "", "", "network"]})
    assert machine(0).returncode == 0 and said(cloud) == "wmt 1-3 0"


def test_a_failure_before_the_training_is_reported_too(cloud, machine):
    cloud.plan(fail={"configure-docker": ["permission"]})
    done = machine(0)
    assert done.returncode != 0 and trainings(cloud) == [] and said(cloud) == "wmt 1-3 1"


def test_a_log_that_cannot_be_written_is_not_how_the_training_ended(cloud, machine):
    (machine.home / "log").mkdir(parents=True)
    assert machine(0).returncode == 0 and said(cloud) == "wmt 1-3 0"


def test_one_slice_is_number_zero(cloud, machine):
    (cloud.folder / "metadata/tpu-env").write_text("ZONE: 'us-west4-a'\n")
    machine(0)
    assert said(cloud, "0-3") == "wmt 0-3 0"


def test_the_script_is_correct_shell():
    subprocess.run(["bash", "-n", STARTUP], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", STARTUP], check=True)
