"""A recurrent toy decoder, once for JAX with its state in the cache, once in float64 from scratch."""

import jax.numpy as jnp
import numpy as np

from flaxnmt.decoding.cache import DecodeCache

PAD, UNK, BOS, EOS = 0, 1, 2, 3


def toy_step(weights, cache, tokens, position):
    a, embedding, drift, out = weights
    state = cache.per_beam["state"] @ a + embedding[tokens]
    state = jnp.tanh(state + cache.shared["row"][:, None] + position * drift)
    return state @ out, cache._replace(per_beam={"state": state})


class Toy:
    """h' = tanh(h A + E[token] + row + t * drift), logits = h' O; with vocab 8 five words can be produced."""

    def __init__(self, seed: int, vocab: int = 8, size: int = 6, scale: float = 2.0):
        rng = np.random.default_rng(seed)
        self.a = rng.normal(size=(size, size)) * 0.7
        self.embedding = rng.normal(size=(vocab, size))
        self.drift = rng.normal(size=size) * 0.1
        self.out = rng.normal(size=(size, vocab)) * scale
        self.vocab, self.size = vocab, size
        self.states = {}

    def rows(self, batch: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed + 100).normal(size=(batch, self.size))

    def cache(self, rows: np.ndarray, beams: int) -> DecodeCache:
        state = jnp.zeros((len(rows), beams, self.size), jnp.float32)
        return DecodeCache(per_beam={"state": state}, shared={"row": jnp.asarray(rows, jnp.float32)})

    def weights(self):
        return [jnp.asarray(w, jnp.float32) for w in (self.a, self.embedding, self.drift, self.out)]

    def step(self, cache, tokens, position):
        return toy_step(self.weights(), cache, tokens, position)

    def state(self, row: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        key = (row.tobytes(), tokens)
        if key not in self.states:
            before = self.state(row, tokens[:-1]) if tokens else np.zeros(self.size)
            token = tokens[-1] if tokens else BOS
            self.states[key] = np.tanh(
                before @ self.a + self.embedding[token] + row + len(tokens) * self.drift
            )
        return self.states[key]

    def log_probs(self, row: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        logits = self.state(row, tokens) @ self.out
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    def total(self, row: np.ndarray, tokens: tuple[int, ...]) -> float:
        return sum(self.log_probs(row, tokens[:t])[token] for t, token in enumerate(tokens))


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def reference_beam(toy, row, *, beams, alpha, longest, shortest=0, prefix=(), suppress=(PAD, BOS)):
    """Beam search as `beam_search` defines it, without a stop rule: (score, log-probability, tokens)."""
    live, finished = [(0.0, ())], []
    for t in range(longest):
        must, forced = t + 1 >= longest, t < len(prefix)
        candidates = []
        for beam, (total, tokens) in enumerate(live):
            for token, log_prob in enumerate(toy.log_probs(row, tokens)):
                if token in suppress or (must and token != EOS):
                    continue
                if not must and forced and token != prefix[t]:
                    continue
                if not must and token == EOS and t + 1 < shortest:
                    continue
                candidates.append((total + log_prob, token == EOS, beam, token))
        candidates.sort(key=lambda c: (-c[0], not c[1], c[2], c[3]))
        finished += [
            (c[0] / penalty(t + 1, alpha), c[0], (*live[c[2]][1], EOS)) for c in candidates[:beams] if c[1]
        ]
        live = [(c[0], (*live[c[2]][1], c[3])) for c in candidates if not c[1]][:beams]
    return sorted(finished, key=lambda f: -f[0])


def outputs(hypotheses, row: int) -> list[tuple[int, ...]]:
    """Token tuples of a row's real outputs; asserts that everything behind the end is pad."""
    found = []
    for tokens, length in zip(
        np.asarray(hypotheses.tokens[row]), np.asarray(hypotheses.lengths[row]), strict=True
    ):
        assert not tokens[length:].any()
        found.append(tuple(int(token) for token in tokens[:length]))
    return found
