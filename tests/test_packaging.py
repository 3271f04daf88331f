import json
import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the checkout, so that building leaves nothing behind in it."""
    copy, dist = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for name in ("flaxnmt", "experiments", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", dist, copy], check=True, capture_output=True)
    (path,) = dist.glob("*.whl")
    return path


def test_the_wheel_holds_flaxnmt_alone_and_all_of_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.partition("/")[0] for name in names}
    assert packages == {"flaxnmt", wheel.name.rpartition("-py3")[0] + ".dist-info"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "flaxnmt").rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    assert any(name.endswith("LICENSE") for name in names)


def test_the_wheel_has_the_command_and_the_core_dependencies(wheel):
    with zipfile.ZipFile(wheel) as archive:
        read = {
            Path(name).name: archive.read(name).decode() for name in archive.namelist() if "dist-info" in name
        }
    assert "flaxnmt = flaxnmt.cli:main" in read["entry_points.txt"]
    assert "Requires-Python: <3.14,>=3.11" in read["METADATA"]
    core = [
        line
        for line in read["METADATA"].splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert any(line.startswith("Requires-Dist: jax>=") for line in core)


@pytest.mark.slow
def test_foreign_projects_train_with_the_installed_wheel(wheel, tmp_path):
    """In an environment with the wheel and its requirements alone, from a directory that is no checkout."""
    constraints = ROOT / f"constraints-{sys.version_info.major}.{sys.version_info.minor}.txt"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        constraints,
        wheel,
    ]
    subprocess.run(install, check=True)
    project = tmp_path / "project"
    project.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments):
        command = [python, "-I", *arguments]
        return subprocess.run(
            command, cwd=project, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert Path(run("-c", "import flaxnmt; print(flaxnmt.__file__)").strip()).is_relative_to(
        tmp_path / "venv"
    )
    for script in ("foreign_linen.py", "foreign_nnx.py"):
        shutil.copy(ROOT / "tests/reuse" / script, project)
        losses = json.loads(run(script))
        assert losses[0] > 1.9
        assert sum(losses[-10:]) < 1.0
    assert (
        "translate"
        in subprocess.run([python.with_name("flaxnmt"), "--help"], capture_output=True, text=True).stdout
    )


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned(version):
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / f"constraints-{version}.txt").read_text().splitlines()
        if "==" in line
    }
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = [
        config["options.extras_require"][name]
        for name in ("tfds", "wordpiece", "classification", "tensorboard", "plots", "dev")
    ]
    required = "\n".join([config["options"]["install_requires"], *extras]).split()
    names = {
        line.partition(">=")[0].lower().replace("_", "-")
        for line in required
        if not line.startswith("flaxnmt[")
    }
    assert names - pinned == set()
