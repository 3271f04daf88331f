"""Which run a training may continue, and whose a run directory is."""

from dataclasses import replace

import pytest

from experiments.configs import load
from experiments.continuing import check, made_directory
from experiments.tasks.corpora import stamps
from flaxnmt.data.tokenizers import train
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.errors import RunError
from flaxnmt.run_directory import save_config


def test_a_run_directory_belongs_to_one_training(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.exclusive.PATIENCE", 0.0)
    config = load("discourse_demo")
    with made_directory(tmp_path, config), pytest.raises(RunError, match="another training is at work there"):
        with made_directory(tmp_path, config):
            pass
    with made_directory(tmp_path, config):
        pass


def test_a_vocabulary_that_another_start_left_is_not_taken_for_that_of_this_one(tmp_path):
    """Neither start came to a checkpoint."""
    first, second = load("discourse_demo"), load("text_tiny")
    for config in (first, second):
        with made_directory(tmp_path, config):
            assert not (tmp_path / "tokenizer").exists()
            (tmp_path / "tokenizer").mkdir()
        if config is first:
            # The second was interrupted before it wrote its configuration.
            save_config(tmp_path, config)
    with made_directory(tmp_path, first):
        assert not (tmp_path / "tokenizer").exists()


def test_what_was_exported_keeps_its_vocabulary_without_checkpoints(tmp_path):
    config = load("discourse_demo")
    save_config(tmp_path, config)
    (tmp_path / "tokenizer").mkdir()
    check(replace(config, model=replace(config.model, d_model=32)), tmp_path)
    (tmp_path / "parameters.npz").touch()
    check(config, tmp_path)
    with pytest.raises(RunError, match="was trained with another configuration .model.d_model: .* -> 32"):
        check(replace(config, model=replace(config.model, d_model=32)), tmp_path)
    with pytest.raises(RunError, match="is the run directory itself: give another --run"):
        with made_directory(tmp_path, config, tmp_path):
            pass
    assert (tmp_path / "tokenizer").is_dir()


def test_the_end_that_noise_on_gates_grows_to_stays(tmp_path):
    config = load("cct_multi30k_en_de")
    save_config(tmp_path, config)
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    words = train("word", ["one two"], 8)
    Vocabularies(words, words).save(tmp_path / "tokenizer")
    longer = replace(config, training=replace(config.training, max_steps=9))
    check(config, tmp_path)
    with pytest.raises(RunError, match="training.max_steps: 8000 -> 9"):
        check(longer, tmp_path)
    fixed = replace(config.training, budget=replace(config.training.budget, noise_steps=100))
    save_config(tmp_path, replace(config, training=fixed))
    check(replace(config, training=replace(fixed, max_steps=9)), tmp_path)


@pytest.mark.parametrize("name", ["{}", "{}[:2]", "file://{}"])
def test_training_files_that_changed_are_noticed(tmp_path, name):
    file = tmp_path / "train.de"
    file.write_text("eins\nzwei\n", encoding="utf-8")
    names = [name.format(file)]
    before = stamps(names)
    assert stamps(names) == before
    file.write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    assert stamps(names) != before


def test_parts_of_a_file_and_generated_corpora_are_told_apart(tmp_path):
    file = tmp_path / "train.de"
    file.write_text("eins\nzwei\n", encoding="utf-8")
    found = stamps([str(file), f"{file}[:1]", f"{file}[1:]", "discourse:train:10", "discourse:train:20"])
    assert all(found.count(stamp) == 1 for stamp in found)
