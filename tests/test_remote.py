"""Files at addresses: runs and corpora that are read from a directory as from a bucket, and from a bucket in memory."""

import json
import os
import time

import fsspec
import numpy as np
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

from experiments import bucket
from experiments.bucket import share, sharing
from experiments.configs import load
from experiments.continuing import has_checkpoint
from experiments.preflight import unreachable
from flaxnmt import open_run, remote
from flaxnmt.commands import guarded
from flaxnmt.data.readers import read, read_source
from flaxnmt.data.tokenizers import train
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import DataError, RunError, StorageError
from flaxnmt.run_directory import BUCKET, local_run, save_config
from flaxnmt.training.export import write_parameters
from flaxnmt.training.metrics import MetricsWriter


class Memory(MemoryFileSystem):
    """Buckets in the memory of the test, one of which nobody may use; it tells how it was asked for."""

    protocol = ("gs", "gcs")
    store: dict = {}
    pseudo_dirs: list = [""]
    cachable = False
    asked: list[dict] = []

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked.append(options)

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("gs://").strip("/")

    def info(self, path, **options):
        if "forbidden" in path:
            raise OSError("Forbidden: Anonymous caller does not have storage.objects.get access\n<html>")
        return super().info(path, **options)

    def ls(self, path, detail=True, **options):
        self.info(path)
        found = super().ls(path, detail, **options)
        # Consoles make folders, as objects with a slash at the end.
        return found if detail else [*found, f"{path}/"]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Copies of this test alone."""
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    return copies / f"flaxnmt-{os.getuid()}" / "copies"


@pytest.fixture(scope="module", autouse=True)
def buckets():
    fsspec.register_implementation("gcs", Memory, clobber=True)


@pytest.fixture
def run(tmp_path):
    """What stands in a run directory, of which inference needs a part; nothing of it was trained."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = train("word", ["the dog sees the cat"], 12)
    Vocabularies(words, words).save(folder / "tokenizer")
    save_config(folder, load("text_tiny"))
    write_parameters(folder / "parameters.npz", {"a": {"b": np.ones(2)}})
    (folder / "run.json").write_text('{"parameters": 2}')
    for name in ("checkpoints/1", "data"):
        (folder / name).mkdir(parents=True)
        (folder / name / "large").write_text("large")
    return folder


def upload(source, address: str) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            remote.copy(path, remote.located(address) / path.relative_to(source).as_posix())


@pytest.mark.parametrize("scheme", ["file", "gs"])
def test_a_run_on_a_bucket_is_opened_with_what_is_asked_for_alone(run, temporary, scheme):
    address = f"file://{run}" if scheme == "file" else "gs://my-bucket/runs/x"
    if scheme == "gs":
        upload(run, address)
    opened = open_run(f"{address}/")
    local = temporary / address.replace("://", "/").replace("file//", "file/")
    assert opened.directory == local and repr(opened) == f"Run('{address}/')"
    assert [path.name for path in local.iterdir()] == ["config.json"]
    assert opened.metrics == [] and opened.record == {"parameters": 2}
    np.testing.assert_equal(opened.params, {"a": {"b": np.ones(2, np.float32)}})
    assert opened.vocabularies.source.encode(["the dog"]) == open_run(run).vocabularies.source.encode(
        ["the dog"]
    )
    assert {path.name for path in local.iterdir()} == {
        "config.json",
        "run.json",
        "parameters.npz",
        "tokenizer",
    }


def test_what_is_new_is_copied_again_and_nothing_else(run, temporary):
    address, path = f"file://{run}", run / "parameters.npz"
    old = time.time() - 100
    os.utime(path, (old, old))
    copied = local_run(address, "parameters.npz") / "parameters.npz"
    first = copied.stat()
    assert local_run(address, "parameters.npz") / "parameters.npz" == copied
    assert copied.stat().st_ino == first.st_ino
    # Of the same size; twice within a second, which addresses do not tell apart.
    for value in (2.0, 3.0):
        write_parameters(path, {"a": {"b": np.full(2, value)}})
        assert open_run(address).params["a"]["b"][0] == value
    with MetricsWriter(run) as metrics:
        opened = open_run(address)
        for step in (1, 2):
            metrics.event(step, "something")
            assert len(opened.metrics) == step
    path.unlink()
    with pytest.raises(RunError, match="no exported parameters"):
        _ = open_run(address).params
    assert not list(temporary.rglob(".*"))


@pytest.mark.parametrize(
    "address, error, said",
    [
        ("gs://my-bucket/none", RunError, "gs://my-bucket/none: no config.json there, so it is no run directory"),
        ("gs://forbidden/x", RunError, "(Forbidden: Anonymous caller does not have storage.objects.get access); see"),
        ("nosuch://a/b", RunError, "nosuch://a/b: the bucket cannot be reached"),
        ("gs://my-bucket/none.jsonl", DataError, "gs://my-bucket/none.jsonl does not exist"),
        ("gs://forbidden/x.jsonl", DataError, "gcloud auth application-default login"),
        ("gs://my-bucket/folder", DataError, "is a folder"),
        ("gs://my-bucket/folder/empty.jsonl", DataError, "is empty"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_not_allowed_is_one_line(address, error, said):
    Memory().pipe_file("gs://my-bucket/folder/empty.jsonl", b"")
    with pytest.raises(error) as caught:
        open_run(address) if error is RunError else list(read(address))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    if error is DataError:
        assert unreachable([address]) == str(caught.value)


def test_a_corpus_on_a_bucket_is_read_as_one_here(tmp_path, temporary):
    lines = [json.dumps({"paragraphs": [{"src": [f"a{i}"], "tgt": [f"b{i}"]}]}) for i in range(3)]
    Memory().pipe_file("gs://my-bucket/data/train.jsonl", "".join(f"{line}\n" for line in lines).encode())
    address = "gs://my-bucket/data/train.jsonl"
    assert unreachable([f"{address}[1:]"]) is None and not temporary.exists()
    assert [sentence.source for document in read(f"{address}[1:]") for sentence in document] == ["a1", "a2"]
    (tmp_path / "plain.txt").write_text("one\ntwo\n")
    assert list(read_source(f"file://{tmp_path}/plain.txt")) == ["one", "two"]


def test_a_run_is_shared_through_a_bucket():
    first, second = (share("gs://my-bucket/runs/shared", process) for process in range(2))
    (first.local / "tokenizer").mkdir()
    (first.local / "tokenizer" / "model").write_text("whole")
    (first.local / "config.json").write_text("{}")
    first.save()
    # What was listed before anything was there is not taken for what is there now.
    assert all(options["use_listings_cache"] is False for options in Memory.asked if options)
    second._pull()
    assert (second.local / "tokenizer" / "model").read_text() == "whole"
    assert epath.Path((second.local / BUCKET).read_text()) == second.address
    with pytest.raises(RunError, match="gs://forbidden/run: the bucket cannot be reached"):
        share("gs://forbidden/run", 0)


def test_the_copies_of_a_run_belong_to_one_training(monkeypatch):
    monkeypatch.setattr("experiments.exclusive.PATIENCE", 0.0)
    address = "gs://my-bucket/runs/alone"
    with sharing(address, 0) as shared:
        (shared.local / "metrics.jsonl").write_text("{}")
        with (
            pytest.raises(RunError, match=f"{address}: another training is at work there"),
            sharing(address, 0),
        ):
            pass
        with sharing(address, 1):
            assert (shared.local / "metrics.jsonl").exists()
    with sharing(address, 0):
        pass


def test_a_save_that_was_cut_off_on_a_bucket_is_no_checkpoint(tmp_path, monkeypatch):
    # Orbax asks Google's own client for the kind of the bucket.
    monkeypatch.setattr(
        "orbax.checkpoint._src.path.gcs_utils.is_hierarchical_namespace_enabled", lambda path: False
    )
    address = "gs://my-bucket/runs/cut"
    (tmp_path / BUCKET).write_text(address)
    Memory().pipe_file(f"{address}/checkpoints/5/params/array", b"half")
    assert not has_checkpoint(tmp_path)
    Memory().pipe_file(f"{address}/checkpoints/5/commit_success.txt", b"")
    assert has_checkpoint(tmp_path)


def test_what_is_removed_from_a_run_is_removed_from_its_bucket():
    """Or a vocabulary of before would be found beside the one that stands in its place."""
    address = "gs://my-bucket/runs/corrected"
    shared = share(address, 0)
    (shared.local / "shared.model").write_text("of before")
    shared.save()
    again = share(address, 0)
    (again.local / "shared.model").unlink()
    (again.local / "shared.json").write_text("new")
    for _ in range(2):
        again.save()
        assert [path.name for path in remote.files_below(again.address)] == ["shared.json"]


def test_a_bucket_that_does_not_answer_ends_no_training(monkeypatch, caplog):
    shared = share("gs://my-bucket/runs/patient", 0)
    (shared.local / "metrics.jsonl").write_text("{}")
    whole, failures = bucket.copy, iter([OSError("503")] * 2)

    def copy(*paths):
        for error in failures:
            raise error
        whole(*paths)

    monkeypatch.setattr(bucket, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(bucket, "copy", copy)
    shared.save()
    assert (shared.address / "metrics.jsonl").read_text() == "{}" and not caplog.messages
    (shared.local / "report.md").write_text("later")
    failures = iter([OSError("503")] * 6)
    shared.save()
    assert ["(503)" in message and "next checkpoint" in message for message in caplog.messages] == [True]
    with pytest.raises(StorageError, match="503"):
        shared.save(must=True)
    # Whoever watches starts it again; at the beginning it is the address that may be wrong.
    failures = iter([OSError("503")] * 3)
    assert guarded(lambda: shared.save(must=True), debug=False) == 43
    failures = iter([OSError("503")] * 3)
    assert guarded(shared.bring, debug=False) == 2
    shared.save()
    assert (shared.address / "report.md").read_text() == "later"
