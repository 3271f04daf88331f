"""What a run says of the code that it ran."""

import re
import shutil
import subprocess

import pytest

from experiments.record import commit


@pytest.mark.skipif(shutil.which("git") is None, reason="without git there is no checkout")
def test_the_commit_and_whether_files_have_changed_since(tmp_path):
    def git(*words: str) -> None:
        author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        subprocess.run(["git", "-C", tmp_path, *author, *words], check=True, capture_output=True)

    assert commit(tmp_path) == ""
    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    first = commit(tmp_path)
    assert re.fullmatch(r"\+g[0-9a-f]{7,}", first)
    (tmp_path / "file").write_text("b")
    assert commit(tmp_path) == first + ".dirty"
    git("tag", "-a", "v1", "-m", "tagged")
    git("commit", "-am", "second")
    assert re.fullmatch(r"\+g[0-9a-f]{7,}", commit(tmp_path)) and commit(tmp_path) != first
