"""Draws follow the model's distribution, its truncations have the right support, rows are independent."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_decoder import BOS, EOS, PAD, Toy, outputs

from flaxnmt.decoding.sampling import keep_top_k, keep_top_p, sample
from flaxnmt.errors import ConfigError

KEY = jax.random.key(3)


def draw(toy, rows, longest, *, samples=1, numbers=None, **options):
    numbers = jnp.arange(len(rows)) if numbers is None else jnp.asarray(numbers)
    return sample(
        toy.step, toy.cache(rows, samples), KEY, numbers, jnp.asarray(longest),
        max_length=int(max(longest)), samples=samples, **options,
    )  # fmt: skip


def chi_square(counts, probabilities):
    expected = counts.sum() * probabilities
    return ((counts - expected) ** 2 / expected).sum()


@pytest.mark.parametrize(("temperature", "bound"), [(1.0, 20.5), (2.0, 20.5)])
def test_first_two_tokens_follow_the_model(temperature, bound):
    toy, n = Toy(9, scale=0.7), 6000
    rows = np.repeat(toy.rows(1), 2, 0)
    found = draw(toy, rows, [3, 3], samples=n // 2, temperature=temperature)
    allowed = np.array([1, EOS, 4, 5, 6, 7])

    def tempered(tokens):
        weights = np.exp(toy.log_probs(rows[0], tokens)[allowed] / temperature)
        return weights / weights.sum()

    tokens = np.asarray(found.tokens).reshape(n, 3)
    first = np.array([(tokens[:, 0] == token).sum() for token in allowed])
    assert first.sum() == n
    # 20.5 is the 99.9% quantile of chi-square with 5 degrees of freedom.
    assert chi_square(first, tempered(())) < bound
    common = allowed[np.where(allowed == EOS, 0, first).argmax()]
    second = tokens[tokens[:, 0] == common, 1]
    counts = np.array([(second == token).sum() for token in allowed])
    assert counts.sum() == len(second) > 500
    assert chi_square(counts, tempered((int(common),))) < bound


def test_outputs_end_and_log_probs_are_the_models_own():
    toy = Toy(4, scale=1.0)
    rows, longest = toy.rows(6), np.array([0, 1, 2, 9, 9, 9])
    prefix = np.array([[0, 0]] * 4 + [[5, 6]] + [[0, 0]])
    shortest = np.array([0, 0, 0, 0, 0, 8])
    found = draw(
        toy,
        rows,
        longest,
        samples=5,
        temperature=0.7,
        top_k=4,
        prefix=prefix,
        min_lengths=shortest,
        suppress=(7,),
    )
    for b, row in enumerate(rows):
        for n, tokens in enumerate(outputs(found, b)):
            if longest[b]:
                assert (
                    tokens[-1] == EOS and EOS not in tokens[:-1] and shortest[b] <= len(tokens) <= longest[b]
                )
            assert not set(tokens) & {PAD, BOS, 7}
            np.testing.assert_allclose(found.log_probs[b, n], toy.total(row, tokens), atol=2e-5)
    assert not found.lengths[0].any() and (found.lengths[1] == 1).all()
    assert (found.tokens[4, :, :2] == jnp.array([5, 6])).all()
    assert len({tokens for b in (3, 4, 5) for tokens in outputs(found, b)}) > 8


def test_a_row_draws_the_same_in_any_batch_and_number_of_samples():
    toy = Toy(8, vocab=30)
    rows = toy.rows(16)
    whole = draw(toy, rows, [8] * 16, samples=2)
    order = np.random.default_rng(0).permutation(16)[:5]
    part = draw(toy, rows[order], [8] * 5, samples=3, numbers=order)
    np.testing.assert_array_equal(part.tokens[:, :2], whole.tokens[order])
    np.testing.assert_allclose(part.log_probs[:, :2], whole.log_probs[order], atol=1e-5)
    assert (whole.tokens[:, 0] != whole.tokens[:, 1]).any(-1).mean() > 0.5


def test_top_k_of_one_is_the_likeliest_token():
    toy = Toy(8, vocab=30)
    rows = toy.rows(8)
    found = draw(toy, rows, [6] * 8, top_k=1)
    for b, row in enumerate(rows):
        tokens = outputs(found, b)[0]
        for t, token in enumerate(tokens[:5]):
            log_probs = toy.log_probs(row, tokens[:t])
            log_probs[[PAD, BOS]] = -np.inf
            assert token == log_probs.argmax()
    assert len(np.unique(found.tokens)) > 4


@pytest.mark.parametrize("k", [1, 3, 40, 99])
def test_top_k_keeps_the_k_largest(k):
    logits = np.random.default_rng(k).normal(size=(2, 5, 40)).astype(np.float32) * 30
    logits[0, 0, :38] = -np.inf
    kept = np.isfinite(keep_top_k(jnp.asarray(logits), k))
    threshold = np.sort(logits, -1)[..., -min(k, 40)][..., None]
    np.testing.assert_array_equal(kept, (logits >= threshold) & np.isfinite(logits))


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 1.0, 2.0])
def test_top_p_keeps_the_smallest_sufficient_set(p):
    logits = np.random.default_rng(0).normal(size=(20, 40)).astype(np.float32) * 2
    logits[0, 5:] = -np.inf
    kept = np.isfinite(keep_top_p(jnp.asarray(logits), p))
    for row, mask in zip(logits.astype(np.float64), kept, strict=True):
        weights = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        order = np.argsort(-weights)
        size = np.isfinite(row).sum() if p >= 1 else int((np.cumsum(weights[order]) < p).sum()) + 1
        np.testing.assert_array_equal(np.flatnonzero(mask), np.sort(order[:size]))


def test_samples_stay_in_the_truncated_support():
    toy = Toy(2, vocab=12, scale=0.5)
    rows = toy.rows(1)
    tokens = np.asarray(draw(toy, rows, [2], samples=800, top_k=6, top_p=0.8).tokens[0, :, 0])
    weights = np.exp(toy.log_probs(rows[0], ()))
    weights[[PAD, BOS]] = 0
    top = np.argsort(-weights)[:6]
    kept = weights[top] / weights[top].sum()
    nucleus = top[: (np.cumsum(kept) < 0.8).sum() + 1]
    assert 2 < len(nucleus) < 6
    assert set(tokens.tolist()) == set(nucleus.tolist())


def test_one_compilation_for_equal_shapes():
    toy, traces = Toy(6), []

    def counted(cache, key, numbers, longest):
        traces.append(1)
        return sample(toy.step, cache, key, numbers, longest, max_length=5, top_p=0.9)

    run = jax.jit(counted)
    for seed in range(3):
        cache = toy.cache(toy.rows(3, seed), 1)
        run(cache, jax.random.key(seed), jnp.arange(3) + seed, jnp.full(3, 5 - seed))
    assert len(traces) == 1


@pytest.mark.parametrize("bad", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": 0}, {"samples": 0}])
def test_settings_without_meaning_are_refused(bad):
    toy = Toy(0)
    with pytest.raises(ConfigError, match="sampling"):
        partial(draw, toy, toy.rows(1), [3])(**bad)
