"""From a model to what it is trained for."""

import dataclasses

from jax.sharding import Mesh

from flaxnmt.config import TrainingConfig
from flaxnmt.data.tokenizers import ENCODER_SYMBOLS, MASK, SPECIALS
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.training.labelled import labelled_objective
from flaxnmt.training.objective import Model, language_objective, masked_objective, translation_objective
from flaxnmt.training.step import Objective


def make_objective(model: Model, training: TrainingConfig, mesh: Mesh | None = None) -> Objective:
    """What a model is trained for, as its configuration says.

    Noise on gates grows until the end of the training where nothing else is said. Logits are computed in chunks unless
    devices of the mesh share the work on a row, and with it the vocabulary.
    """
    chunk = training.loss_chunk if mesh is not None and mesh.shape["model"] == 1 else None
    steps = training.budget.noise_steps or training.max_steps
    budget = dataclasses.replace(training.budget, noise_steps=steps)
    if isinstance(model, EncoderOnly):
        if model.config.head != "masked":
            return labelled_objective(model, budget)
        first = len(SPECIALS)
        words = (first + len(ENCODER_SYMBOLS), model.vocab_size)
        return masked_objective(model, first + ENCODER_SYMBOLS.index(MASK), words, budget)
    if isinstance(model, DecoderOnly) and model.config.task == "language":
        return language_objective(model, chunk, budget)
    return translation_objective(model, training.label_smoothing, chunk, budget)
