"""Beam search against brute force and against a float64 beam search without a stop rule."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from toy_decoder import BOS, EOS, PAD, Toy, outputs, penalty, reference_beam, toy_step

from flaxnmt.decoding.beam import beam_search, greedy
from flaxnmt.decoding.cache import DecodeCache
from flaxnmt.decoding.hypotheses import length_penalties
from flaxnmt.errors import ConfigError

WORDS = (1, 4, 5, 6, 7)


def search(toy, rows, longest, *, beams, max_length=None, **options):
    max_length = max_length or int(max(longest))
    return beam_search(
        toy.step,
        toy.cache(rows, beams),
        jnp.asarray(longest),
        max_length=max_length,
        beam_size=beams,
        **options,
    )


def assert_equals_reference(found, row, expected):
    n = min(len(expected), found.scores.shape[1])
    assert outputs(found, row)[:n] == [tokens for _, _, tokens in expected[:n]]
    np.testing.assert_allclose(found.scores[row, :n], [score for score, _, _ in expected[:n]], atol=2e-5)
    np.testing.assert_allclose(found.log_probs[row, :n], [total for _, total, _ in expected[:n]], atol=5e-5)
    assert np.isneginf(found.scores[row, n:]).all() and not found.lengths[row, n:].any()


@pytest.mark.parametrize("alpha", slow_but([0.6], [-0.5, 0.0, 0.6, 1.0]))
def test_wide_beam_finds_what_brute_force_finds(alpha):
    toy, longest = Toy(3), 4
    rows = toy.rows(3)
    found = search(toy, rows, [longest] * 3, beams=160, n_best=160, length_penalty=alpha)
    everything = [(*words, EOS) for n in range(longest) for words in itertools.product(WORDS, repeat=n)]
    for b, row in enumerate(rows):
        scored = [(toy.total(row, y) / penalty(len(y), alpha), toy.total(row, y), y) for y in everything]
        assert len(scored) == 156
        assert_equals_reference(found, b, sorted(scored, reverse=True))


@pytest.mark.parametrize(
    ("alpha", "beams"),
    slow_but(
        [(0.0, 4), (0.6, 2)],
        [(-0.5, 2), (0.0, 1), (0.0, 4), (0.6, 1), (0.6, 2), (0.6, 4), (1.0, 2), (3.0, 3)],
    ),
)
def test_narrow_beam_equals_reference_without_stop_rule(alpha, beams):
    rng = np.random.default_rng(5)
    longest = np.array([1, 3, 6, 9, 12, 12, 12, 7])
    shortest = np.array([0, 0, 4, 2, 12, 0, 5, 20])
    lengths = np.array([0, 1, 2, 0, 3, 5, 0, 1])
    prefix = np.zeros((8, 5), np.int32)
    for b, n in enumerate(lengths):
        prefix[b, :n] = rng.choice(WORDS, n)
    zero = np.zeros_like

    @jax.jit
    def run(weights, cache, shortest, prefix):
        return beam_search(
            partial(toy_step, weights), cache, longest, max_length=12, beam_size=beams, n_best=beams,
            length_penalty=alpha, min_lengths=shortest, prefix=prefix,
        )  # fmt: skip

    for seed in range(5):
        toy = Toy(seed, scale=1.0 + seed / 3)
        rows = toy.rows(8, seed)
        for limits in ((zero(shortest), zero(prefix)), (shortest, zero(prefix)), (shortest, prefix)):
            found = run(toy.weights(), toy.cache(rows, beams), *limits)
            for b, row in enumerate(rows):
                expected = reference_beam(
                    toy, row, beams=beams, alpha=alpha, longest=longest[b], shortest=limits[0][b],
                    prefix=tuple(token for token in limits[1][b] if token != PAD),
                )  # fmt: skip
                assert_equals_reference(found, b, expected)


@pytest.mark.slow
def test_n_best_of_one_stops_earlier_with_the_same_best():
    toy = Toy(1, vocab=12)
    rows = toy.rows(16)
    one = search(toy, rows, [12] * 16, beams=4, n_best=1)
    four = search(toy, rows, [12] * 16, beams=4, n_best=4)
    for a, b in zip(one, four, strict=True):
        np.testing.assert_array_equal(a[:, 0], b[:, 0])


def scripted(table):
    """A step that ignores its input: table[t] are the logits at position t for every hypothesis."""
    table = jnp.asarray(table, jnp.float32)

    def step(cache, tokens, position):
        logits = jnp.broadcast_to(table[position], (*tokens.shape, table.shape[1]))
        return logits, DecodeCache(cache.per_beam, cache.shared + 1)

    return step


def patience(first_eos, first_word, steps):
    """Either end at once for log-probability `first_eos`, or pay `first_word` and go on at no cost."""
    table = np.full((steps, 6), -np.inf)
    table[0, EOS], table[0, 4] = first_eos, first_word
    table[0, 5] = np.log1p(-np.exp(first_eos) - np.exp(first_word))
    table[0, 0] = table[0, 5]  # the rest is mass on pad, which is never produced
    table[0, 5] = -np.inf
    table[1:-1, 4] = 0.0
    table[-1, EOS] = 0.0
    return table


@pytest.mark.parametrize(("steps", "best_length"), [(4, 1), (20, 20)])
def test_a_late_output_that_wins_is_waited_for(steps, best_length):
    cache = DecodeCache((), jnp.zeros((1,)))
    found = beam_search(
        scripted(patience(-1.0, -2.0, steps)), cache, jnp.array([steps]),
        max_length=steps, beam_size=2, length_penalty=1.0,
    )  # fmt: skip
    assert found.lengths[0, 0] == best_length
    expected = -1.0 if best_length == 1 else -2.0 / penalty(steps, 1.0)
    np.testing.assert_allclose(found.scores[0, 0], expected, rtol=1e-5)


def test_a_negative_exponent_still_waits_for_the_next_end():
    table = patience(-1.0, -0.9, 20)
    table[1] = np.where(np.arange(6) == EOS, 0.0, -np.inf)
    cache = DecodeCache((), jnp.zeros((1,)))
    found = beam_search(
        scripted(table), cache, jnp.array([20]), max_length=20, beam_size=2, length_penalty=-0.5
    )
    # Longer is worse, so that the bound must come from the next length and not from the maximal one.
    assert found.lengths[0, 0] == 2
    np.testing.assert_allclose(found.scores[0, 0], -0.9 / penalty(2, -0.5), rtol=1e-5)


@pytest.mark.parametrize(("alpha", "steps_run"), [(0.0, 1), (-0.5, 1), (1.0, 20)])
def test_search_stops_where_nothing_can_win_and_not_before(alpha, steps_run):
    seen = []
    inner = scripted(patience(-1.0, -2.0, 20))

    def step(cache, tokens, position):
        jax.debug.callback(lambda t: seen.append(int(t)), position)
        return inner(cache, tokens, position)

    cache = DecodeCache((), jnp.zeros((1,)))
    beam_search(step, cache, jnp.array([20]), max_length=20, beam_size=2, length_penalty=alpha)
    jax.effects_barrier()
    assert sorted(seen) == list(range(steps_run))


def test_hypotheses_that_are_dead_are_padding_to_the_model():
    seen = {}
    toy = Toy(1)

    def step(cache, tokens, position):
        jax.debug.callback(lambda t, ids: seen.update({int(t): np.asarray(ids)}), position, tokens)
        return toy.step(cache, tokens, position)

    beam_search(step, toy.cache(toy.rows(3), 4), jnp.array([0, 2, 9]), max_length=9, beam_size=4)
    jax.effects_barrier()
    assert seen[0].tolist() == [[PAD] * 4, [BOS, PAD, PAD, PAD], [BOS, PAD, PAD, PAD]]
    assert (seen[1][1:] != PAD).all()
    # The second row has ended, and the third goes on.
    assert (seen[2][:2] == PAD).all() and (seen[2][2] != PAD).any()


def test_rows_do_not_depend_on_their_batch():
    toy = Toy(7, vocab=40, size=8)
    rows = toy.rows(64)
    rng = np.random.default_rng(0)
    longest = rng.integers(0, 14, 64)
    prefix = np.where(rng.random((64, 2)) < 0.5, rng.integers(4, 40, (64, 2)), PAD)
    prefix[prefix[:, 0] == PAD] = PAD
    run = jax.jit(partial(beam_search, toy.step, max_length=14, beam_size=4, n_best=3))
    whole = run(toy.cache(rows, 4), longest, prefix=prefix)
    assert len(set(np.asarray(whole.lengths[:, 0]).tolist())) > 5
    order = rng.permutation(64)
    for size in (1, 7, 64):
        for start in range(0, 64 if size > 1 else 12, size):
            take = order[start : start + size]
            part = run(toy.cache(rows[take], 4), longest[take], prefix=prefix[take])
            np.testing.assert_array_equal(part.tokens, whole.tokens[take])
            np.testing.assert_allclose(part.scores, whole.scores[take], atol=1e-5)


def test_beam_of_one_without_penalty_is_greedy():
    toy = Toy(11, vocab=30)
    rows, longest, shortest = toy.rows(32), 10, 3
    found = greedy(
        toy.step,
        toy.cache(rows, 1),
        jnp.full(32, longest),
        max_length=longest,
        min_lengths=jnp.full(32, shortest),
    )
    lengths = set()
    for b, row in enumerate(rows):
        tokens = ()
        while not tokens or tokens[-1] != EOS:
            log_probs = toy.log_probs(row, tokens)
            log_probs[[PAD, BOS]] = -np.inf
            if len(tokens) + 1 < shortest:
                log_probs[EOS] = -np.inf
            tokens += (EOS if len(tokens) + 1 == longest else int(log_probs.argmax()),)
        assert outputs(found, b) == [tokens]
        np.testing.assert_allclose(found.log_probs[b, 0], toy.total(row, tokens), atol=2e-5)
        lengths.add(len(tokens))
    assert len(lengths) > 2


@pytest.mark.slow
def test_score_is_rescoring():
    toy = Toy(2, vocab=20)
    rows = toy.rows(8)
    found = search(toy, rows, [9] * 8, beams=4, n_best=4, length_penalty=0.6)
    for b, row in enumerate(rows):
        totals = [toy.total(row, tokens) for tokens in outputs(found, b)]
        np.testing.assert_allclose(found.log_probs[b], totals, atol=2e-5)
    np.testing.assert_allclose(
        found.scores, found.log_probs / length_penalties(found.lengths, 0.6), rtol=1e-6
    )
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_suppressed_and_special_ids_are_never_produced():
    toy = Toy(4)
    toy.out[:, [PAD, BOS, 5]] = 3 * np.abs(toy.out).max() * np.sign(toy.out[:, :1])
    rows = toy.rows(12)
    found = search(toy, rows, [6] * 12, beams=3, n_best=3, suppress=(5,))
    produced = {token for b in range(12) for tokens in outputs(found, b) for token in tokens}
    assert produced <= {1, 3, 4, 6, 7} and len(produced) > 2
    assert (found.lengths[:, 0] > 0).all()


def test_empty_rows_and_rows_of_one_token():
    toy = Toy(5)
    rows = toy.rows(3)
    found = search(toy, rows, [0, 1, 5], beams=2, n_best=2)
    assert outputs(found, 0) == [(), ()] and found.scores[0, 0] == 0 and np.isneginf(found.scores[0, 1])
    assert outputs(found, 1) == [(EOS,), ()]
    np.testing.assert_allclose(found.log_probs[1, 0], toy.total(rows[1], (EOS,)), atol=1e-5)
    assert found.lengths[2, 0] > 0
    alone = search(toy, rows[:1], [0], beams=2, max_length=5)
    assert not alone.tokens.any() and alone.scores[0, 0] == 0


def test_impossible_tokens_give_no_nan():
    table = np.full((5, 7), -np.inf)
    table[:4, [4, 5]] = 0.0
    table[4, 4] = 0.0
    cache = DecodeCache((), jnp.zeros((2,)))
    found = beam_search(scripted(table), cache, jnp.array([3, 5]), max_length=5, beam_size=4, n_best=2)
    # eos is impossible everywhere, so no output exists: nothing is invented.
    assert np.isneginf(found.scores).all() and not found.tokens.any()
    table[2, EOS] = 0.0
    found = beam_search(scripted(table), cache, jnp.array([3, 5]), max_length=5, beam_size=4, n_best=2)
    assert not np.isnan(found.scores).any() and (found.lengths[:, 0] == 3).all()


def test_ties_go_to_the_lowest_index():
    table = np.zeros((3, 9))
    cache = DecodeCache((), jnp.zeros((1,)))
    found = beam_search(
        scripted(table), cache, jnp.array([3]), max_length=3, beam_size=2, n_best=3, length_penalty=0.0
    )
    assert outputs(found, 0) == [(EOS,), (1, EOS), (4, EOS)]


def test_one_compilation_for_equal_shapes():
    toy, traces = Toy(6), []

    def counted(cache, longest, shortest, prefix):
        traces.append(1)
        return beam_search(
            toy.step, cache, longest, max_length=6, beam_size=2, min_lengths=shortest, prefix=prefix
        )

    run = jax.jit(counted)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        run(
            toy.cache(toy.rows(4, seed), 2),
            rng.integers(0, 7, 4),
            rng.integers(0, 3, 4),
            rng.integers(4, 6, (4, 1)),
        )
    assert len(traces) == 1


def test_sizes_below_one_are_refused():
    toy = Toy(0)
    with pytest.raises(ConfigError, match="beam_size 0"):
        search(toy, toy.rows(1), [3], beams=0)
