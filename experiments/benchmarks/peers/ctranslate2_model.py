"""A CTranslate2 model of any size with random weights, built through its TransformerSpec; its beam search."""

import math
from collections.abc import Callable

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from sizes import PAD, Size

SPECIAL_SYMBOLS = ["<pad>", "<unk>", "<s>", "</s>"]


def build(size: Size, directory: str, seed: int = 1) -> int:
    """Writes a post-norm Transformer (weights float32) to a directory; returns its number of parameters."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        bound = math.sqrt(6 / (rows + columns))
        return random.uniform(-bound, bound, (rows, columns)).astype(np.float32)

    def linear(spec, rows: int, columns: int) -> None:
        spec.weight = matrix(rows, columns)
        spec.bias = np.zeros(rows, np.float32)

    def norm(spec) -> None:
        spec.gamma = np.ones(size.d_model, np.float32)
        spec.beta = np.zeros(size.d_model, np.float32)

    def attention(spec, fused: tuple[int, ...]) -> None:
        for part, multiple in zip(spec.linear, fused, strict=True):
            linear(part, multiple * size.d_model, size.d_model)
        norm(spec.layer_norm)

    def feed_forward(spec) -> None:
        linear(spec.linear_0, size.feed_forward, size.d_model)
        linear(spec.linear_1, size.d_model, size.feed_forward)
        norm(spec.layer_norm)

    table = (random.standard_normal((size.vocabulary, size.d_model)) / math.sqrt(size.d_model)).astype(
        np.float32
    )
    spec = TransformerSpec.from_config((size.layers, size.layers), size.heads, pre_norm=False)
    spec.encoder.embeddings[0].weight = table
    spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    for layer in spec.encoder.layer:
        attention(layer.self_attention, (3, 1))
        feed_forward(layer.ffn)
    for layer in spec.decoder.layer:
        attention(layer.self_attention, (3, 1))
        attention(layer.attention, (1, 2, 1))
        feed_forward(layer.ffn)
    symbols = SPECIAL_SYMBOLS + [f"t{i}" for i in range(len(SPECIAL_SYMBOLS), size.vocabulary)]
    spec.register_source_vocabulary(symbols)
    spec.register_target_vocabulary(symbols)
    arrays = {id(value): value for value in spec.variables().values() if isinstance(value, np.ndarray)}
    spec.validate()
    spec.optimize()
    spec.save(directory)
    return sum(value.size for value in arrays.values())


def make_translate(
    directory: str,
    source: np.ndarray,
    target_length: int,
    beam: int,
    compute_type: str,
    threads: int,
    max_batch_size: int,
) -> Callable[[], list[int]]:
    """A function that translates all sentences and returns the lengths it produced."""
    translator = ctranslate2.Translator(
        directory, compute_type=compute_type, inter_threads=1, intra_threads=threads
    )
    if translator.compute_type != compute_type:
        raise RuntimeError(f"asked for {compute_type}, this machine runs {translator.compute_type}")
    symbols = SPECIAL_SYMBOLS + [f"t{i}" for i in range(len(SPECIAL_SYMBOLS), int(source.max()) + 1)]
    sentences = [[symbols[i] for i in row if i != PAD] for row in source]

    def translate() -> list[int]:
        results = translator.translate_batch(
            sentences,
            max_batch_size=max_batch_size,
            beam_size=beam,
            min_decoding_length=target_length,
            max_decoding_length=target_length,
        )
        return [len(result.hypotheses[0]) for result in results]

    return translate
