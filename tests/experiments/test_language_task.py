"""What a model of texts is trained on, by what it is made of."""

import dataclasses

import numpy as np
import pytest

from experiments.configs import load
from experiments.tasks import language, make_task
from flaxnmt.data import tokenizers
from flaxnmt.errors import ConfigError, DataError

DOCUMENTS = (
    "the old dog sleeps\n" * 9,
    "a cat sees the garden\n" * 3,
    "it is late\n",
    "the dog is old\n" * 5,
)


@pytest.fixture
def rows(tmp_path):
    """For each sequence of the training and development texts the numbers of the documents in it."""
    texts = tmp_path / "texts"
    texts.write_text("\n".join(DOCUMENTS))

    def of(*branches):
        config = load("masked_tiny")
        tokenizer = dataclasses.replace(config.data.tokenizer, kind="word", vocab_size=40)
        data = dataclasses.replace(
            config.data, train=(str(texts),), dev=(str(texts),), max_length=16, tokenizer=tokenizer
        )
        encoder = dataclasses.replace(config.model.encoder, branches=branches)
        # Static Expansion by itself is refused the rotary positions of the configuration, which lie in attention.
        model = dataclasses.replace(config.model, encoder=encoder, positions="sinusoidal")
        config = config.replace(model=model, data=data)
        task = make_task(config, tmp_path / "run", lambda: None)
        batch = task.train.batch(0)
        pairs = zip(batch["tokens"], batch["packed"])
        return [set(packed[tokens > 0].tolist()) for tokens, packed in pairs if tokens.any()]

    return of


@pytest.mark.parametrize(
    "branches",
    [("lstm:2",), ("attention:1", "convs2s:1"), ("attention:1+fnet:1",), ("static_expansion:1",)],
)
def test_encoders_that_cannot_tell_documents_apart_read_one_at_a_time(rows, branches):
    found = rows(*branches)
    assert all(len(numbers) == 1 for numbers in found)
    assert set.union(*found) == {1, 2, 3, 4}


def test_attention_reads_several_in_a_sequence(rows):
    assert max(map(len, rows("attention:1", "attention:2"))) > 1


def test_counts_by_parts_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(language, "PART", 4)
    tokens = np.array([3, 1, 3, 0, 2, 3, 1, 1, 5], np.uint16)
    assert language.counted(tokens, 7).tolist() == [1, 3, 1, 3, 0, 1, 0]
    assert language.counted(tokens[:0], 3).tolist() == [0, 0, 0]


def test_a_vocabulary_whose_symbols_stand_elsewhere_is_refused():
    def tokenizer(*symbols):
        return tokenizers.train("word", DOCUMENTS[0].splitlines(), 40, symbols=symbols)

    language.check_symbols(tokenizer("[MASK]", "[CLS]", "[SEP]", "<2de>"))
    with pytest.raises(
        ConfigError, match=r"the vocabulary has \[MASK\] as id 6, and masked language models as 4: st"
    ):
        language.check_symbols(tokenizer("[CLS]", "[SEP]", "[MASK]"))
    with pytest.raises(DataError, match="MASK"):
        language.check_symbols(tokenizer("[CLS]"))
