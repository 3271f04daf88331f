"""Every example of the README is run, or read by the parser that would run it."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from experiments import grid, sweep
from experiments.arguments import parse
from flaxnmt import cli
from tpu import launch, plan

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"```python\n(.*?)```", re.S)
CODE = [block for block in PYTHON.findall(README) if "open_run" not in block]
COMMANDS = [
    line.partition("|")[2].strip() if line.strip().startswith("echo") else line.strip()
    for line in re.sub(r" \\\n\s*", " ", PYTHON.sub("", README)).splitlines()
    if line.startswith("    ") and not line.strip().startswith(("make", "source"))
]


@pytest.mark.parametrize("code", CODE, ids=["encoder", "linen", "nnx"])
def test_code_runs(code):
    scope = {}
    exec(code, scope)
    assert scope["y"].shape == (2, 5, 64)


@pytest.mark.parametrize("command", [line for line in COMMANDS if "CONFIG" not in line])
def test_commands_are_understood(command):
    program, *arguments = shlex.split(command.partition("<")[0])
    if arguments[:2] == ["-m", "experiments.sweep"]:
        name, parsed = sweep.parse(arguments[2:])
        assert parsed.runs and sweep.load(name).trials
    elif arguments[:2] == ["-m", "experiments.grid"]:
        assert len(grid.planned(arguments[2:])[1]) == 6
    elif arguments[:2] == ["-m", "experiments.tables"]:
        assert sweep.load(arguments[2]).tables
    elif arguments[:2] == ["-m", "tpu.plan"]:
        assert plan.parse(arguments[2:]).slice
    elif arguments[:2] == ["-m", "tpu.launch"]:
        assert launch.parse(arguments[2:])
    elif program == "python":
        parsed = parse(arguments[2:])
        data = parsed.resolved().data
        assert parsed.run and data.train and data.dev
    else:
        assert program == "flaxnmt"
        tyro.cli(cli.COMMANDS[arguments[0]], args=arguments[1:])


def test_links_lead_to_files():
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert links and all((Path(__file__).parents[1] / link).exists() for link in links)
