"""Run directories of models that were never trained: parameters that a test chooses, a vocabulary of a few words."""

from functools import cache
from pathlib import Path

import numpy as np
from small_models import random_params

from flaxnmt import open_run
from flaxnmt.config import Config, DataConfig, DecodingConfig
from flaxnmt.data.tokenizers import ENCODER_SYMBOLS, Tokenizer, train
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.run import Run, make_model
from flaxnmt.run_directory import PARAMETERS, TOKENIZER, save_config
from flaxnmt.training.export import write_parameters
from flaxnmt.translation.shapes import longest_of

SENTENCES = (
    "The dog sees the cat.",
    "A cat never sees the garden.",
    "The dogs sleep in the garden, and the cat is near the old house.",
    "Perhaps the old dog sleeps.",
    "The gardener is old.",
)


@cache
def vocabulary(kind: str = "bpe") -> Tokenizer:
    """With the symbols of an encoder; words are of several pieces."""
    return train(kind, SENTENCES, 39 if kind == "unigram" else 64, symbols=ENCODER_SYMBOLS)


def make_run(folder: Path, model, params=None, tokenizer: Tokenizer | None = None) -> Run:
    """A run of a model configuration, with random parameters or those that `params` makes of their shapes."""
    folder.mkdir()
    tokenizer = vocabulary() if tokenizer is None else tokenizer
    vocabularies = Vocabularies(tokenizer, tokenizer)
    longest = min(model.max_positions, longest_of(model))
    data = DataConfig(max_length=longest, stride=longest // 2)
    config = Config(model=model, data=data, decoding=DecodingConfig(batch_size=4))
    made = random_params(make_model(config, vocabularies))
    vocabularies.save(folder / TOKENIZER)
    save_config(folder, config)
    write_parameters(folder / PARAMETERS, made if params is None else params(made))
    return open_run(folder)


def log_softmax(logits) -> np.ndarray:
    """In float64."""
    logits = np.asarray(logits, np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
