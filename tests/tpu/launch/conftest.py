"""Stand-ins for gcloud, xpk and kubectl on PATH, which keep their state in a directory and log what they are called with."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from launching import Cloud

from tpu import launch

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    folder, programs = tmp_path / "cloud", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for path in PROGRAMS.glob("fake_*.py"):
        program = programs / path.stem.removeprefix("fake_")
        # Without site-packages Python starts in a fraction of the time.
        program.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(path))} "$@"\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.chdir(tmp_path)
    return Cloud(folder)


@pytest.fixture
def command(capsys):
    """Runs a command line of `tpu.launch`: exit code, output, errors."""

    def run(line: str | list[str]) -> tuple[int, str, str]:
        code = launch.main(shlex.split(line) if isinstance(line, str) else line)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
