"""What a job may not be is found before any machine is asked for."""

import dataclasses

import pytest
from launching import CLUSTER, CREATE, DATA, FILES, NAME, job

from experiments import configs
from flaxnmt.config import MeshConfig
from flaxnmt.errors import ConfigError
from tpu.job import Place, check_mesh

ENDLESS = "--training.max-steps None --training.max-epochs None --training.patience None".split()


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
        (["--", *DATA, *ENDLESS], "training has no end"),
        (["--", "--train", "train.en", "train.de"], "machines in the cloud do not have it"),
        (["--", *DATA, "--init-from", "runs/x"], "--init-from runs/x: machines in the cloud do not have it"),
        (["--", *DATA, "--data.tokenizer.source-model", "a.model"], "machines in the cloud do not have it"),
        (["--", *FILES[:2]], "no --dev corpus: give --dev gs://... behind the --"),
        (["--", *DATA, "--profile", "5"], "--profile 5: give FIRST:LAST"),
        (["--", "--nosuch"], "Unrecognized options: --nosuch"),
        (["--", "--help"], "python -m experiments.train text_small --help"),
        (["--slices", "0", "--", *DATA], "--slices 0: at least 1"),
        (["--restarts", "-1", "--", *DATA], "--restarts -1: at least 0"),
        (["--topology", "4x4", "--", *DATA], "--topology: queued resources have the usual shape"),
        (["--manifest", "m.json", "--", *DATA], "--manifest is of GKE"),
        (["--runtime-version", "a;b", "--", *DATA], "--runtime-version"),
        (["--valid-until-duration", "soon", "--", *DATA], "--valid-until-duration"),
        (["--", *DATA, "--expect_devices", "4"], "--expect_devices: the launcher sets"),
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


@pytest.mark.parametrize("delay", ["0", "-1", "nan", "inf"])
def test_looks_need_a_time_between_them(cloud, command, delay):
    code, _, err = command(["watch", *CREATE[1:], "--delay", delay, "--", *DATA])
    assert code == 2 and f"--delay {delay}: seconds, more than 0" in err and cloud.calls == []
