"""Search, sampling and scoring of any model that decodes by steps.

Decoding is `start(source, beams, max_length) -> DecodeCache` and `step(cache, tokens, position) -> (logits, cache)`;
beam search and sampling know nothing else of a model. Keys and values lie as [B, H, T * K, head size] and are never
moved: hypothesis k writes slot t K + k, and `ancestors` [B, K, T], the only leaf that follows the beams, says which
slots are whose past. Source keys are not tiled by beam.
"""
