"""The encoder layers of Hu et al. 2023 in float64 NumPy, one row, one gate, one vector at a time."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(params, x):
    """h_1 ... h_T of one sequence [T, D] without padding (Hochreiter & Schmidhuber 1997, gates i, f, g, o)."""
    d_model = x.shape[1]
    gates = [slice(j * d_model, (j + 1) * d_model) for j in range(4)]
    h, c, states = np.zeros(d_model), np.zeros(d_model), []
    for row in x:
        i, f, g, o = (
            row @ params["w_in"][:, gate] + h @ params["w_recurrent"][:, gate] + params["bias"][gate]
            for gate in gates
        )
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states)


def convs2s(params, x):
    """A sigma(B), [A; B] = sum_k W_k x_(t + k - width / 2) + b, rows beyond the ends being zeros."""
    width, d_model, _ = params["kernel"].shape
    rows = []
    for t in range(len(x)):
        y = params["bias"].copy()
        for k in range(width):
            if 0 <= t + k - width // 2 < len(x):
                y = y + x[t + k - width // 2] @ params["kernel"][k]
        rows.append(y[:d_model] * sigmoid(y[d_model:]))
    return np.stack(rows)


def fnet(params, x):
    """Re(F_seq(F_hidden(X)))."""
    return np.fft.fft2(x).real


def psi(z, epsilon):
    return z / (z.sum(-1, keepdims=True) + epsilon)


def enrich(params, x, enrichment, by_length=False):
    """E_Q' and E_B' by one of the two readings, or as they are."""
    scale = np.sqrt(x.shape[1]) * (len(x) if by_length else 1)
    if enrichment == "none":
        return params["query_vectors"], params["bias_vectors"]
    if enrichment == "shared_projection":
        return tuple(
            params[name] @ x.T @ (x @ params["enrichment"]) / scale
            for name in ("query_vectors", "bias_vectors")
        )
    return tuple(
        params["vectors"] @ x.T @ (x @ params[name]) / scale
        for name in ("query_enrichment", "bias_enrichment")
    )


def static_expansion(params, x, enrichment="shared_projection", by_length=False, **options):
    """Eq. 1 to 5 and the gate."""
    key, first, second, selector = (
        x @ params[f"w_{name}"] + params[f"b_{name}"] for name in ("key", "first", "second", "selector")
    )
    return expansion(key, (first, second), selector, *enrich(params, x, enrichment, by_length), **options)


def expansion(key, values, selector, queries, bias, epsilon=1e-9, dropped=(1, (1, 1), (1, 1))):
    """The same of what was projected and enriched; by `dropped` dropout multiplies L, both F_i and both B_i."""
    of_scores, of_expanded, of_gathered = dropped
    scores = queries @ key.T / np.sqrt(key.shape[1]) * of_scores
    gathered = []
    for sign, value, forward, backward in zip((1, -1), values, of_expanded, of_gathered):
        expanded = (psi(np.maximum(sign * scores, 0), epsilon) @ value + bias) * forward
        gathered.append(psi(np.maximum(sign * scores.T, 0), epsilon) @ expanded * backward)
    share = sigmoid(selector)
    return share * gathered[0] + (1 - share) * gathered[1]
