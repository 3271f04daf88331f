"""Hugging Face MarianMTModel from a config: a training step, and beam search with `generate`."""

from collections.abc import Callable

import numpy as np
import torch
from sizes import (
    ADAM_BETAS,
    ADAM_EPSILON,
    BOS,
    DROPOUT,
    EOS,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    PAD,
    Size,
)
from transformers import MarianConfig, MarianMTModel
from transformers.models.marian.modeling_marian import shift_tokens_right

ATTENTION = "sdpa"


def make_model(size: Size, attention: str = ATTENTION) -> MarianMTModel:
    """Post-norm Transformer of this size with random parameters and one embedding table."""
    config = MarianConfig(
        vocab_size=size.vocabulary,
        d_model=size.d_model,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.feed_forward,
        decoder_ffn_dim=size.feed_forward,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation=attention,
    )
    return MarianMTModel(config)


def make_step(
    size: Size, batches: list[dict], attention: str = ATTENTION
) -> tuple[torch.nn.Module, Callable[[int], float]]:
    """The model and a function that trains on batch number i and returns its loss per token."""
    model = make_model(size, attention)
    model.train()
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=LABEL_SMOOTHING)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=True
    )

    def step(index: int) -> float:
        source, target = (
            torch.from_numpy(batches[index][side].astype(np.int64)) for side in ("source", "target")
        )
        logits = model(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            decoder_input_ids=shift_tokens_right(target, PAD, BOS),
            use_cache=False,
        ).logits
        loss = loss_of(logits.flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return model, step


def make_translate(
    model: MarianMTModel, source: np.ndarray, target_length: int, beam: int
) -> Callable[[], list[int]]:
    """A function that translates all sentences as one batch and returns the lengths it produced."""
    model.eval()
    ids = torch.from_numpy(source.astype(np.int64))
    mask = (ids != PAD).long()

    @torch.inference_mode()
    def translate() -> list[int]:
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=beam,
            do_sample=False,
            min_new_tokens=target_length,
            max_new_tokens=target_length,
            use_cache=True,
        )
        return [int((row != PAD).sum()) for row in output[:, 1:]]

    return translate
