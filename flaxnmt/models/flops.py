"""Work of a model, counted analytically: multiply-adds as two operations, forward pass."""

import math
from collections.abc import Sequence
from functools import lru_cache

from flaxnmt.models import build
from flaxnmt.models.config import (
    DecoderOnlyConfig,
    EncoderKind,
    EncoderOnlyConfig,
    EncodingConfig,
    Seq2SeqConfig,
)
from flaxnmt.models.encoder import Branches

memoised = lru_cache(maxsize=4096)
"""Work is counted by building the layers: milliseconds, which every update of a training would wait for."""


@memoised
def forward_flops(
    config: Seq2SeqConfig | DecoderOnlyConfig,
    target_vocab: int,
    source: tuple[int, ...],
    target: tuple[int, ...],
) -> int:
    """FLOPs of the matrix products of a batch, sources [B, S] or [B, N, M], targets [B, T] or [B, N, T].

    Logits are included, padding is counted as it is multiplied, too. Element-wise work (norms, softmax, dropout)
    is left out, but for the additional norms of gated blocks; a training step is three times as much, since the
    backward pass has two products for each of the forward pass.
    """
    documents, sentences, words = source[0], math.prod(source[1:-1]), source[-1]
    symbols = target[-1]
    if isinstance(config, DecoderOnlyConfig):
        return sequence_flops(config, target_vocab, (documents, words + symbols), symbols)
    logits = 2 * sentences * symbols * config.d_model * target_vocab
    return documents * (logits + sum(side_flops(config, words, symbols, sentences)))


@memoised
def sequence_flops(
    config: EncoderOnlyConfig | DecoderOnlyConfig, vocab: int, tokens: tuple[int, int], outputs: int
) -> int:
    """FLOPs of a batch [B, L] of a model of one stack, with the logits of that many outputs of each sequence.

    A vocabulary of 0 leaves out the head. Where the last layer computes no other outputs, as of masked tokens and of the
    one that a class is read off, it counts with those.
    """
    rows, length = tokens
    logits = 2 * outputs * config.d_model * vocab
    if isinstance(config, DecoderOnlyConfig):
        layer = build.causal_decoder(config).stack.layers[0]
        body = config.decoder.layers * sum(
            block.flops(config.d_model, length, length) for _, block in layer.blocks()
        )
        return rows * (logits + body)
    body = source_flops(config, length)
    if config.head == "masked":
        logits += 2 * outputs * config.d_model**2 * bool(vocab)
    if config.head in ("masked", "classes") and config.ends_in_rows:
        last = build.encoder_layer(config, "sentence")
        body -= sum(
            block.flops(config.d_model, length, length) - block.flops(config.d_model, outputs, length)
            for _, block in last.blocks()
        )
    return rows * (logits + body)


@memoised
def side_flops(config: Seq2SeqConfig, words: int, symbols: int, sentences: int = 1) -> tuple[int, int]:
    """FLOPs of encoder and decoder, logits left out, on one example whose sentences have that many words and symbols."""
    layer = build.decoder_layer(config)
    blocks = ((layer.attention, symbols), (layer.cross_attention, words), (layer.context, words))
    blocks += ((layer.feed_forward, symbols),)
    decoder = config.decoder.layers * _work(blocks, config.d_model, sentences, symbols)
    return source_flops(config, words, sentences), decoder


@memoised
def source_flops(config: EncodingConfig, words: int, sentences: int = 1) -> int:
    """FLOPs of all encoders of a model and of their combination on one example."""
    work = sum(
        encoder_flops(config.of_branch(place), kinds, words, sentences)
        for place, kinds in enumerate(config.encoder_branches)
    )
    encoders = build.encoders(config)
    if not isinstance(encoders, Branches):
        return work
    return work + encoders.combination.flops(config.d_model, sentences * words, len(encoders.branches))


def encoder_flops(
    config: EncodingConfig, kinds: Sequence[EncoderKind], words: int, sentences: int = 1
) -> int:
    """FLOPs of an encoder with layers of these kinds on one example."""
    return build.encoder(config, kinds).flops(config.d_model, sentences * words, sentences)


def _work(blocks, d_model: int, sentences: int, queries: int) -> int:
    """Work on one document of (block or None, keys of each sentence), each sentence with that many queries."""
    return sum(
        block.flops(d_model, sentences * queries, sentences * keys, sentences)
        for block, keys in blocks
        if block is not None
    )
