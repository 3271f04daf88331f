"""Stand-ins for gcloud, xpk and kubectl on PATH, which keep their state in a directory and log what they are called with."""

import io
import os
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from launching import Cloud

from tpu import launch
from tpu.command import Runner

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


@cache
def stand_ins() -> dict[str, object]:
    """Compiled, by the name of what they stand in for."""
    files = PROGRAMS.glob("fake_*.py")
    return {
        path.stem.removeprefix("fake_"): compile(path.read_text(encoding="utf-8"), path, "exec")
        for path in files
    }


@pytest.fixture
def in_process(monkeypatch):
    """Stand-ins run in this process, where many of their answers are tested and not how they are started."""
    started = Runner._start

    def start(self, argv, stdout=None, stderr=None, **options):
        if argv[0] not in stand_ins():
            return started(self, argv, stdout=stdout, stderr=stderr, **options)
        out, err, code = io.StringIO(), io.StringIO(), 0
        with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "argv", list(argv)):
            try:
                exec(stand_ins()[argv[0]], {"__name__": "__main__"})
            except SystemExit as end:
                if isinstance(end.code, str):
                    err.write(f"{end.code}\n")
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        for text, file, stream in ((out, stdout, sys.stdout), (err, stderr, sys.stderr)):
            if file is None:
                stream.write(text.getvalue())
            else:
                file.write(text.getvalue().encode())
        return code

    monkeypatch.setattr(Runner, "_start", start)


@pytest.fixture
def command(capsys):
    """Runs a command line of `tpu.launch`: exit code, output, errors."""

    def run(line: str | list[str]) -> tuple[int, str, str]:
        code = launch.main(shlex.split(line) if isinstance(line, str) else line)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
