"""Gated blocks in float64 NumPy, from the equations of Bapna et al. 2020."""

import jax
import numpy as np
import reference


def set_gates(params, bias):
    """With every gate at this logit, whatever the row."""

    def change(path, leaf):
        names = [key.key for key in path]
        if names[-2].endswith("control") and names[-1] in ("w_out", "b_out"):
            return np.full(leaf.shape, bias if names[-1] == "b_out" else 0.0)
        return leaf

    return jax.tree_util.tree_map_with_path(change, params)


def scale_gates(params, factor):
    """With every logit so many times as large."""

    def change(path, leaf):
        names = [key.key for key in path]
        return leaf * factor if names[-2].endswith("control") and names[-1] in ("w_out", "b_out") else leaf

    return jax.tree_util.tree_map_with_path(change, params)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normalised(x, epsilon=1e-6):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)


def control(params, x):
    """c(x), eq. 4, [..., k]."""
    hidden = np.maximum(normalised(x) @ params["w_in"] + params["b_in"], 0)
    return hidden @ params["w_out"] + params["b_out"]


def gate(params, x, hard):
    """G(x), eq. 1 without noise, or the decision of eq. 2."""
    logits = control(params, x)
    return (logits >= 0).astype(x.dtype) if hard else sigmoid(logits)


def attention(params, query_rows, memory, key_gate, mask):
    """Eq. 11 and 12: keys and values are scaled by the gate of their row, and keep their place in the softmax.

    Biases are scaled with them, which they would not be if the rows that are projected were scaled in their place.
    """
    query, key, value = (
        np.einsum("...ld,dhk->...hlk", rows, params[name])
        + params.get(f"{name}_bias", np.zeros(1))[..., None, :]
        for rows, name in ((query_rows, "query"), (memory, "key"), (memory, "value"))
    )
    if "key_norm_scale" in params:
        key, value = (norm_of_heads(params, name, y) for name, y in (("key", key), ("value", value)))
    scale = key_gate[..., None, :, None]
    y = reference.attention(query, scale * key, scale * value, mask[..., None, None, :])
    return np.einsum("...hqk,hkd->...qd", y, params["out"]) + params.get("out_bias", 0)


def norm(params, x):
    return reference.layer_norm(x, params["scale"], params["bias"])


def output(params, j, y):
    return norm(params[name], y) if (name := f"output_norms_{j}") in params else y


def norm_of_heads(params, name, y):
    """Layer normalisation of [..., H, L, K] over the features of all heads together."""
    rows = np.swapaxes(y, -3, -2)
    flat = normalised(rows.reshape(*rows.shape[:-2], -1)).reshape(rows.shape)
    return np.swapaxes(flat * params[f"{name}_norm_scale"] + params[f"{name}_norm_bias"], -3, -2)


def attention_block(params, x, mask, hard, memory=None):
    """Eq. 13: x + G_q(x) LN(attention(LN(x))); without a norm of the output where there is none."""
    h = norm(params["input_norms_0"], x)
    keys_of, rows = (h, x) if memory is None else (memory, memory)
    key_gate = gate(params["key_control"], rows, hard)[..., 0] * mask
    y = output(params, 0, attention(params["sublayers_0"], h, keys_of, key_gate, mask))
    query_gate = gate(params["control"], x, hard)
    return x + (query_gate * mask[..., None] if memory is None else query_gate) * y


def feed_forward_block(params, x, hard):
    """Eq. 15: x + sum_j G_j(x) LN_j(f_j(LN'_j(x)))."""
    gates, y = gate(params["control"], x, hard), x
    for j in range(gates.shape[-1]):
        part = reference.feed_forward(params[f"sublayers_{j}"], norm(params[f"input_norms_{j}"], x))
        y = y + gates[..., j : j + 1] * output(params, j, part)
    return y


class EqualGates(reference.Transformer):
    """A Transformer of which every gate is open, so that it has a second norm in every block, or every one is closed.

    Args:
      params: as the gated model with one block of feed-forward names them; control networks are not looked at.
      is_open: whether the gates are.
      budget: place of the budget of the pair.
    """

    def __init__(self, params, is_open, budget):
        super().__init__(params, "pre", "sinusoidal", "all")
        table = params["budget_table"]["table"]
        self.is_open, self.mark = is_open, table[budget] * np.sqrt(table.shape[1])

    def _embed(self, side, table, ids):
        return super()._embed(side, table, ids) + self.mark

    def _block(self, params, x, function):
        if not self.is_open:
            return x
        h = norm(params["input_norms_0"], x)
        return x + norm(params["output_norms_0"], function(params["sublayers_0"], h))
