"""Every command of tpu/README.md is understood, and what it would run is a golden file."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tpu import launch, sweeping
from tpu.slices import GENERATIONS, parse_slice

ROOT = Path(__file__).parents[3]
README = (ROOT / "tpu/README.md").read_text(encoding="utf-8")
LINES = re.sub(r" \\\n\s*", " ", README).splitlines()
COMMANDS = [line.strip() for line in LINES if line.startswith("    ")]
LAUNCHES = [shlex.split(line)[3:] for line in COMMANDS if line.startswith("python -m tpu.launch ")]


def dry(words: list[str]) -> list[str]:
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "--dry-run", *words[end:]]


@pytest.mark.parametrize("number", range(len(LAUNCHES)))
def test_golden_dry_run_of_every_documented_command(number, golden, cloud, command, monkeypatch, tmp_path):
    # Whatever has been measured meanwhile.
    monkeypatch.setattr(sweeping, "RESULTS", tmp_path)
    words = LAUNCHES[number]
    code, out, err = command(dry(words))
    assert (code, err, cloud.calls) == (0, "", [])
    engine = "gke" if "--cluster" in words else "queued"
    golden(
        f"launch/{number:02}_{engine}_{words[0]}.txt",
        f"$ python -m tpu.launch {shlex.join(dry(words))}\n{out}",
    )


def test_no_golden_file_is_left_over():
    files = sorted(path.name for path in (ROOT / "tests/golden/launch").glob("*.txt"))
    assert [int(name[:2]) for name in files] == list(range(len(LAUNCHES)))


def test_every_verb_is_documented_for_both_ways():
    for engine in (False, True):
        verbs = {words[0] for words in LAUNCHES if ("--cluster" in words) == engine}
        assert verbs == set(launch.VERBS)


def test_it_takes_ten_commands():
    section = README.partition("## Ten commands")[2].partition("\n## ")[0]
    assert (
        len([line for line in re.sub(r" \\\n\s*", " ", section).splitlines() if line.startswith("    ")])
        == 10
    )


def test_links_lead_to_files():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([\w./#-]+)\)", README)]
    assert links and all((ROOT / "tpu" / link).exists() for link in links)


def test_the_table_of_slices_is_that_of_the_code():
    rows = re.findall(
        r"^\| `([a-z0-9]+-\d+)` \| (\d+)[^|]* \| `?([^|`]+)`? \| `?([^|`]*)`? \|$", README, re.M
    )
    assert {name.partition("-")[0] for name, *_ in rows} == set(GENERATIONS)
    for name, chips, accelerator, runtime in rows:
        slice_ = parse_slice(name)
        assert slice_.chips == int(chips) and (slice_.generation.runtime or "none") == runtime
        assert accelerator.strip() == (slice_.accelerator_type if slice_.generation.runtime else "GKE only")


def test_the_image_holds_what_it_copies_and_pins_what_it_installs():
    text = (ROOT / "tpu/Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.M):
        assert all((ROOT / source).exists() for source in sources.split())
    assert re.search(r"^FROM python:3\.12\.\d+-", text, re.M)
    pinned = [(ROOT / name).read_text() for name in ("constraints-3.12.txt", "tpu/constraints.txt")]
    names = [name.lower().replace("_", "-") for name in re.findall(r"^([^#=]+)==", "".join(pinned), re.M)]
    assert len(names) == len(set(names)) and {"libtpu", "gcsfs", "fsspec", "jax"} <= set(names)


@pytest.mark.slow
def test_help_lists_every_verb_and_is_there_soon():
    done = subprocess.run(
        [sys.executable, "-m", "tpu.launch", "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0 and all(verb in done.stdout for verb in launch.VERBS)


@pytest.mark.parametrize("verb", launch.VERBS)
def test_every_flag_has_a_help_text(verb, capsys):
    with pytest.raises(SystemExit):
        launch.main([verb, "--help"])
    # tyro writes a flag, its type and, in the same or the next line, the text, which ends with the default.
    box = re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out)
    for flag, text in re.findall(r"^\s+(--[a-z-]+)(.*?)(?=^\s+--|\Z)", box, re.M | re.S):
        assert len(re.sub(r"\(.*|[A-Z|\[\]. ]{3,}", "", text.strip(), flags=re.S).split()) > 1, flag
