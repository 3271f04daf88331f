"""Slow float64 references in NumPy, from the equations of the papers, without JAX and without our code."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _weights(query, key, mask, bias):
    """Attention weights; a query that may look nowhere looks everywhere alike."""
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    mask = np.broadcast_to(True if mask is None else mask, scores.shape)
    seen = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    nowhere = ~mask.any(-1, keepdims=True)
    return np.where(nowhere, 1 / scores.shape[-1], seen / np.where(nowhere, 1, seen.sum(-1, keepdims=True)))


def attention(query, key, value, mask=None, bias=None):
    """softmax(q k^T / sqrt(K) + bias) v (Vaswani et al. 2017, eq. 1) of [..., Q, K] and two [..., L, K]."""
    return _weights(query, key, mask, bias) @ value


def attention_gradients(query, key, value, mask, bias, upstream):
    """d sum(upstream * attention) / d (query, key, value), by hand: for a row of weights w = softmax(s),
    ds = w (dw - sum w dw); rows that may look nowhere pass nothing to queries and keys."""
    weights = _weights(query, key, mask, bias)
    d_weights = upstream @ np.swapaxes(value, -1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    if mask is not None:
        d_scores = np.where(np.broadcast_to(mask, d_scores.shape).any(-1, keepdims=True), d_scores, 0.0)
    d_scores = d_scores / np.sqrt(query.shape[-1])
    return d_scores @ key, np.swapaxes(d_scores, -1, -2) @ query, np.swapaxes(weights, -1, -2) @ upstream


def numeric_gradient(function, x, step=1e-5):
    """Central differences of a scalar function of an array."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[i] = step
        gradient[i] = (function(x + shift) - function(x - shift)) / (2 * step)
    return gradient


def sinusoid(position, d_model):
    """The encoding of one position (Vaswani et al. 2017, section 3.5)."""
    vector = np.zeros(d_model)
    for i in range(d_model):
        angle = position / 10000 ** ((i - i % 2) / d_model)
        vector[i] = np.sin(angle) if i % 2 == 0 else np.cos(angle)
    return vector


def layer_norm(x, scale, bias, epsilon=1e-6):
    """Ba et al. 2016, eq. 4, with the biased variance over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def multi_head(params, x, memory, mask):
    """Concat(head_1, ..., head_H) W^O, one head at a time; x [Q, D], memory [L, D], mask [Q, L]."""
    heads = [
        attention(
            x @ params["query"][:, h], memory @ params["key"][:, h], memory @ params["value"][:, h], mask
        )
        for h in range(params["query"].shape[1])
    ]
    return sum(head @ params["out"][h] for h, head in enumerate(heads))


def feed_forward(params, x):
    """max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2)."""
    return np.maximum(x @ params["w_in"] + params["b_in"], 0) @ params["w_out"] + params["b_out"]


def block(params, x, function, norm, skip=True):
    """A sub-layer, its norm before or after, and the skip connection."""

    def normed(y):
        return layer_norm(y, params["layer_norm"]["scale"], params["layer_norm"]["bias"])

    y = function(normed(x) if norm == "pre" else x)
    y = x + y if skip else y
    return normed(y) if norm == "post" else y


def smoothed_loss(logits, targets, smoothing):
    """Sums over the targets that are not padding: cross-entropy against (1 - s) onehot + s / V, and nll."""
    loss = nll = 0.0
    for row, target in zip(logits, targets):
        log_p = np.log(softmax(row))
        if target != 0:
            nll -= log_p[target]
            loss -= (1 - smoothing) * log_p[target] + smoothing * log_p.mean()
    return loss, nll


class Transformer:
    """Encoder and decoder for one sentence pair at a time (Vaswani et al. 2017), without padding, no masks
    but the causal one.

    Args:
      params: nested dictionaries of float64 arrays, named as the model names them.
      norm: pre (with a last norm after each stack) or post.
      positions: sinusoidal, learned or none.
      tie: all, target or none.
    """

    def __init__(self, params, norm, positions, tie):
        self.params, self.norm, self.positions = params, norm, positions
        self.target_table = params["target_table"]["table"]
        self.source_table = self.target_table if tie == "all" else params["source_table"]["table"]
        self.output_table = params["output_table"]["table"] if tie == "none" else self.target_table

    def _embed(self, side, table, ids):
        d_model = table.shape[1]
        x = table[ids] * np.sqrt(d_model)
        if self.positions == "sinusoidal":
            x = x + np.stack([sinusoid(k, d_model) for k in range(len(ids))])
        if self.positions == "learned":
            x = x + self.params[f"{side}_embedding"]["positions"]["table"][: len(ids)]
        return x

    def _layers(self, part):
        layers = self.params[part]["stack"]
        return [layers[f"layers_{i}"] for i in range(len(layers))]

    def _finish(self, part, x):
        return layer_norm(x, **self.params[part]["norm"]) if self.norm == "pre" else x

    def _block(self, params, x, function):
        """A sub-layer, which is handed its parameters, with its norm and skip connection."""
        return block(params, x, lambda h: function(params["sublayer"], h), self.norm)

    def encode(self, source):
        x = self._embed("source", self.source_table, source)
        for layer in self._layers("encoder"):
            x = self._block(layer["attention"], x, lambda p, h: multi_head(p, h, h, None))
            x = self._block(layer["feed_forward"], x, feed_forward)
        return self._finish("encoder", x)

    def logits(self, source, target):
        """[T, V] for source and target ids without padding; the decoder reads bos (2), then the target."""
        memory = self.encode(source)
        x = self._embed("target", self.target_table, np.concatenate([[2], target[:-1]]))
        causal = np.tril(np.ones((len(target), len(target)), bool))
        for layer in self._layers("decoder"):
            x = self._block(layer["attention"], x, lambda p, h: multi_head(p, h, h, causal))
            x = self._block(layer["cross_attention"], x, lambda p, h: multi_head(p, h, memory, None))
            x = self._block(layer["feed_forward"], x, feed_forward)
        return self._finish("decoder", x) @ self.output_table.T
