"""A JoeyNMT 2.3 training step, assembled from JoeyNMT's own model, loss, batch and optimizer.

The step follows `TrainManager._train_step` and the update after it: sort the batch, loss (with the count of
correct tokens that JoeyNMT always makes), normalise by tokens, backward, optimizer, zero gradients.
"""

import logging
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_optimizer
from joeynmt.model import Model, build_model
from joeynmt.vocabulary import Vocabulary
from sizes import ADAM_BETAS, BOS, DROPOUT, EOS, LABEL_SMOOTHING, LEARNING_RATE, PAD, UNK, Size

ATTENTION = "own matmul and softmax"
# JoeyNMT's vocabulary always has <unk> at 0 and <pad> at 1.
JOEY_UNK, JOEY_PAD = 0, 1


def make_step(size: Size, batches: list[dict]) -> tuple[torch.nn.Module, Callable[[int], float]]:
    """The model and a function that trains on batch number i and returns its loss per token."""
    logging.disable(logging.INFO)
    model = _model(size)
    model.loss_function = ("crossentropy", LABEL_SMOOTHING)
    optimizer = build_optimizer(
        {"optimizer": "adam", "adam_betas": ADAM_BETAS, "learning_rate": LEARNING_RATE}, model.parameters()
    )
    model.train()
    model.zero_grad()

    def step(index: int) -> float:
        batch = _batch(batches[index])
        batch.sort_by_src_length()
        loss, _, _, correct = model(return_type="loss", **vars(batch))
        loss = batch.normalize(loss, normalization="tokens")
        loss.backward()
        optimizer.step()
        model.zero_grad()
        correct.item()
        return loss.item()

    return model, step


def _model(size: Size) -> Model:
    stack = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.d_model,
        "ff_size": size.feed_forward,
        "dropout": DROPOUT,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": DROPOUT},
    }
    symbols = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, lang_tags=[],
        unk_id=JOEY_UNK, pad_id=JOEY_PAD, bos_id=BOS, eos_id=EOS,
    )  # fmt: skip
    vocabulary = Vocabulary([f"t{i}" for i in range(4, size.vocabulary)], symbols)
    config = {"encoder": dict(stack), "decoder": dict(stack), "tied_embeddings": True, "tied_softmax": True}
    return build_model(config, vocabulary, vocabulary)


def _batch(arrays: dict) -> Batch:
    source, target = (_ids(arrays[side]) for side in ("source", "target"))
    first = torch.full((len(target), 1), BOS)
    return Batch(
        src=source,
        src_length=(source != JOEY_PAD).sum(1),
        src_prompt_mask=None,
        trg=torch.cat([first, target], 1),
        trg_prompt_mask=None,
        indices=torch.arange(len(source)),
        device=torch.device("cpu"),
        pad_index=JOEY_PAD,
        eos_index=EOS,
    )


def _ids(array: np.ndarray) -> torch.Tensor:
    ids = array.astype(np.int64)
    return torch.from_numpy(np.where(ids == PAD, JOEY_PAD, np.where(ids == UNK, JOEY_UNK, ids)))
