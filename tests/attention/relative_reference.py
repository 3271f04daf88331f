"""Attention that knows of positions in float64 NumPy, from the equations, one pair of query and key at a time."""

import numpy as np
import reference


def rotated(x, position, base=10000.0):
    """Su et al. 2021, eq. 13, as a product of complex numbers: feature i with feature i + K / 2."""
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * base ** (-np.arange(half) / half))
    return np.concatenate([turned.real, turned.imag])


class Shaw:
    """Shaw et al. 2018, eq. 3 to 5."""

    def __init__(self, params, head):
        self.tables = params["key_table"], params.get("value_table", np.zeros_like(params["key_table"]))

    def _row(self, distance):
        clip = len(self.tables[0]) // 2
        return max(-clip, min(clip, distance)) + clip

    def score(self, q, k, i, j):
        return q @ (k + self.tables[0][self._row(j - i)])

    def value(self, v, i, j):
        return v + self.tables[1][self._row(j - i)]


class TransformerXL:
    """Dai et al. 2019, section 3.3: the four terms."""

    def __init__(self, params, head):
        self.w, self.u, self.v = (
            params["distance"][:, head],
            params["content_bias"][head],
            params["position_bias"][head],
        )

    def terms(self, q, k, i, j):
        r = reference.sinusoid(i - j, len(self.w)) @ self.w
        return q @ k, q @ r, self.u @ k, self.v @ r

    def score(self, q, k, i, j):
        return sum(self.terms(q, k, i, j))

    def value(self, v, i, j):
        return v


class Rotary:
    def __init__(self, params, head):
        pass

    def score(self, q, k, i, j):
        return rotated(q, i) @ rotated(k, j)

    def value(self, v, i, j):
        return v


KINDS = {"shaw": Shaw, "transformer_xl": TransformerXL, "rotary": Rotary}


def attention(positions, query, key, value, query_ids, key_ids, mask, added=0.0):
    """[Q, K] of one head; `positions` is one of the above, `added` [Q, L] comes on top of the scores."""
    pairs = [(i, j) for i in range(len(query)) for j in range(len(key))]
    scores, values = np.zeros((len(query), len(key))), np.zeros((len(query), *value.shape))
    for i, j in pairs:
        at = query_ids[i], key_ids[j]
        scores[i, j] = positions.score(query[i], key[j], *at) / np.sqrt(query.shape[-1])
        values[i, j] = positions.value(value[j], *at)
    scores = np.where(mask, scores + added, -np.inf)
    return np.einsum("ql,qlk->qk", reference.softmax(scores), values)


def multi_head(kind, params, x, memory, query_ids, key_ids, mask, added=0.0):
    """One example of multi-head attention with positions of a kind: x [Q, D], memory [L, D], mask [Q, L]."""
    heads = []
    for h in range(params["query"].shape[1]):
        projected = (
            rows @ params[name][:, h] for rows, name in ((x, "query"), (memory, "key"), (memory, "value"))
        )
        positions = KINDS[kind](params.get("positions"), h)
        heads.append(attention(positions, *projected, query_ids, key_ids, mask, added) @ params["out"][h])
    return sum(heads)
