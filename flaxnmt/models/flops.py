"""Work of a model, counted analytically: multiply-adds as two operations, forward pass."""

import math

from flaxnmt.models import build
from flaxnmt.models.config import Seq2SeqConfig


def forward_flops(
    config: Seq2SeqConfig, target_vocab: int, source: tuple[int, ...], target: tuple[int, ...]
) -> int:
    """FLOPs of the matrix products of a batch, sources [B, S] or [B, N, M], targets [B, T] or [B, N, T].

    Logits are included, padding is counted as it is multiplied, too. Element-wise work (norms, softmax, dropout)
    is left out; a training step is three times as much, since the backward pass has two products for each of the
    forward pass.
    """
    documents, sentences, words = source[0], math.prod(source[1:-1]), source[-1]
    symbols = target[-1]
    logits = 2 * sentences * symbols * config.d_model * target_vocab
    return documents * (logits + sum(side_flops(config, words, symbols, sentences)))


def side_flops(config: Seq2SeqConfig, words: int, symbols: int, sentences: int = 1) -> tuple[int, int]:
    """FLOPs of encoder and decoder, logits left out, on one example whose sentences have that many words and symbols."""
    encoder = 0
    for kind in config.encoder_kinds:
        layer = build.encoder_layer(config, kind)
        blocks = ((layer.attention, words), (layer.context, words), (layer.feed_forward, words))
        encoder += _work(blocks, config.d_model, sentences, words)
    layer = build.decoder_layer(config)
    blocks = ((layer.attention, symbols), (layer.cross_attention, words), (layer.context, words))
    blocks += ((layer.feed_forward, symbols),)
    return encoder, config.decoder.layers * _work(blocks, config.d_model, sentences, symbols)


def _work(blocks, d_model: int, sentences: int, queries: int) -> int:
    """Work on one document of (block or None, keys of each sentence), each sentence with that many queries."""
    return sum(
        block.flops(d_model, sentences * queries, sentences * keys, sentences)
        for block, keys in blocks
        if block is not None
    )
