"""Conditional attention in float64 NumPy, from eq. 3 to 7 of Trankova et al. 2024, without JAX."""

import numpy as np


def relevance(query, key):
    """Eq. 3, of [..., L, K] and [..., N, K]."""
    return query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])


def chosen(scores, mask, t, own=None):
    """Eq. 4: per row of scores [B, H, L, N] the list of sentences kept, best first; mask [B, N].

    With own [B, L] that sentence, and the t best of the others.
    """
    choices = np.empty(scores.shape[:-1], object)
    for b, h, word in np.ndindex(choices.shape):
        row, first = scores[b, h, word], None if own is None else own[b, word]
        ranked = sorted(np.flatnonzero(mask[b]), key=lambda n: (n != first, -row[n], n))
        choices[b, h, word] = ranked[: t + (own is not None)]
    return choices


def kept(choices, sentences):
    """[B, H, L, N], True where a sentence is kept."""
    result = np.zeros((*choices.shape, sentences), bool)
    for at in np.ndindex(choices.shape):
        result[at][choices[at]] = True
    return result


def conditional(query, key, value, word_mask, selector_query, selector_key, keep):
    """Eq. 7 of query [B, H, L, K] and key [B, H, N, M, K], for `keep` [B, H, L, N]; zeros where nothing is seen."""
    batch, heads, sentences, words, size = key.shape
    bias = np.where(keep, relevance(selector_query, selector_key), -np.inf)
    scores = relevance(query, key.reshape(batch, heads, -1, size)) + np.repeat(bias, words, axis=-1)
    scores = np.where(word_mask.reshape(batch, 1, 1, -1), scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total > 0, total, 1)
    return weights @ value.reshape(batch, heads, -1, value.shape[-1])


def over_selected_words(query, key, value, word_mask, selector_query, selector_key, choices):
    """The same by a loop that looks at nothing but the words of the chosen sentences."""
    y = np.zeros((*query.shape[:-1], value.shape[-1]))
    bias = relevance(selector_query, selector_key)
    for b, h, word in np.ndindex(choices.shape):
        scores, values = [], []
        for n in choices[b, h, word]:
            for m in np.flatnonzero(word_mask[b, n]):
                score = query[b, h, word] @ key[b, h, n, m] / np.sqrt(query.shape[-1])
                scores.append(score + bias[b, h, word, n])
                values.append(value[b, h, n, m])
        if scores:
            weights = np.exp(np.array(scores) - max(scores))
            y[b, h, word] = weights / weights.sum() @ np.array(values)
    return y
