"""The training step over an objective that is easy to follow by hand: a bigram model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from small_models import VOCAB, random_ids

from flaxnmt.sharding import make_mesh
from flaxnmt.training.loss import label_smoothed_cross_entropy
from flaxnmt.training.state import make_state
from flaxnmt.training.step import CompiledStep, TrainStep

RATE, EMA = 0.5, 0.9
schedule = optax.constant_schedule(RATE)
LENGTHS = {"source": [8, 8, 8, 8], "target": [2, 8, 5, 1]}
BATCHES = [
    {name: jnp.asarray(random_ids(n, 8, seed + n[0])) for name, n in LENGTHS.items()} for seed in range(3)
]
PARAMS = {"table": jnp.asarray(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)), jnp.float32)}


def bigrams(params, batch, key, update=0):
    """Each target symbol from the source symbol at its position; a key adds noise to the logits."""
    logits = params["table"][batch["source"]]
    if key is not None and "noise" in params:
        logits = logits + params["noise"] * jax.random.normal(key, logits.shape)
    sums = label_smoothed_cross_entropy(logits, batch["target"], batch["target"] != 0, 0.1)
    return dict(zip(("loss", "nll", "tokens"), sums))


def compiled(optimizer, params=PARAMS, ema=EMA, accumulate=1, seed=3):
    """A step and a function that makes its first state."""

    def start(params=params):
        return make_state(jax.tree.map(jnp.copy, params), optimizer, ema is not None)

    whole = NamedSharding(make_mesh(1, 1, 1, jax.devices()[:1]), PartitionSpec())
    shardings = jax.tree.map(lambda _: whole, start())
    return CompiledStep(TrainStep(bigrams, optimizer, schedule, ema), shardings, seed, accumulate), start


@pytest.fixture(scope="module")
def single():
    return compiled(optax.sgd(schedule))


def halves(batch, rows=3):
    return [{name: ids[part] for name, ids in batch.items()} for part in (slice(0, rows), slice(rows, None))]


def assert_trees_close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


def test_an_update_divides_by_the_tokens_and_not_by_rows_or_positions(single):
    step, start = single
    sums, gradient = jax.value_and_grad(lambda p: bigrams(p, BATCHES[0], None)["loss"])(PARAMS)
    state, metrics = step(start(), BATCHES[:1])
    assert metrics["tokens"] == 16 and metrics["learning_rate"] == RATE
    np.testing.assert_allclose(metrics["loss"], sums / 16, rtol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient) / 16, rtol=1e-6)
    assert_trees_close(state.params, jax.tree.map(lambda p, g: p - RATE * g / 16, PARAMS, gradient))


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(optax.sgd(schedule), id="sgd", marks=pytest.mark.slow),
        pytest.param(optax.adam(schedule), id="adam"),
    ],
)
def test_accumulated_parts_give_the_update_of_the_whole_batch(optimizer):
    """Parts of 15 and 1 tokens: a mean of their means would be another number."""
    (whole, start), (accumulated, _) = compiled(optimizer), compiled(optimizer, accumulate=2)
    one, metrics = whole(start(), BATCHES[:1])
    parts = halves(BATCHES[0])
    two, split_metrics = accumulated(start(), parts)
    assert_trees_close(two, one)
    for name in ("loss", "nll", "tokens", "gradient_norm"):
        np.testing.assert_allclose(split_metrics[name], metrics[name], rtol=1e-5)
    means = [float(whole(start(), [part])[1]["loss"]) for part in parts]
    assert abs(np.mean(means) - metrics["loss"]) > 0.05


def test_moving_average_follows_the_parameters(single):
    step, start = single
    state, expected = start(), PARAMS
    for i, batch in enumerate(BATCHES):
        state, _ = step(state, [batch])
        decay = min(EMA, (1 + i) / (10 + i))
        expected = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * p, expected, state.params)
    assert_trees_close(state.ema, expected)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_that_is_not_finite_is_dropped_and_counted(accumulate):
    step, start = compiled(optax.adam(schedule), accumulate=accumulate)
    batches = BATCHES[:1] if accumulate == 1 else halves(BATCHES[0])
    state, _ = step(start(), batches)
    before = jax.device_get(state)
    used = int(BATCHES[0]["source"][0, 0])
    for times, value in enumerate([np.nan, np.inf], start=1):
        state = state.replace(params={"table": jnp.asarray(before.params["table"]).at[used].set(value)})
        kept = jax.device_get(state.params)
        state, metrics = step(state, batches)
        assert (state.step, metrics["bad_steps"], metrics["bad_in_a_row"]) == (1 + times, times, times)
        jax.tree.map(
            np.testing.assert_array_equal,
            (state.params, state.opt_state, state.ema),
            (kept, before.opt_state, before.ema),
        )
    state, metrics = step(state.replace(params=jax.tree.map(jnp.asarray, before.params)), batches)
    assert (state.step, metrics["bad_steps"], metrics["bad_in_a_row"]) == (4, 2, 0)
    assert np.any(state.params["table"] != before.params["table"])


@pytest.mark.parametrize(
    "function", [jnp.sqrt, lambda w: w + jax.lax.stop_gradient(jnp.log(-1 - w))], ids=["gradient", "loss"]
)
def test_either_a_loss_or_a_gradient_that_is_not_finite_drops_the_update(function):
    def objective(params, batch, key, update):
        return {"loss": function(params["w"]), "nll": jnp.float32(0), "tokens": jnp.float32(1)}

    optimizer, params = optax.sgd(RATE), {"w": jnp.float32(0.0)}
    loss, gradient = jax.value_and_grad(lambda p: objective(p, None, None, 0)["loss"])(params)
    assert np.isfinite(loss) != np.isfinite(gradient["w"])
    step = TrainStep(objective, optimizer, schedule)
    state, metrics = step.whole(make_state(params, optimizer, ema=False), None, 0)
    assert (state.params["w"], metrics["bad_steps"]) == (0, 1)


def test_a_batch_of_empty_rows_changes_nothing(single):
    step, start = single
    state, metrics = step(start(), [jax.tree.map(jnp.zeros_like, BATCHES[0])])
    jax.tree.map(np.testing.assert_array_equal, state.params, PARAMS)
    assert (metrics["tokens"], metrics["loss"], metrics["bad_steps"]) == (0, 0, 0)


@pytest.mark.slow
def test_every_batch_draws_from_its_own_number_however_updates_are_split():
    params = PARAMS | {"noise": jnp.float32(2.0)}
    (single, start), (double, _) = (
        compiled(optax.sgd(0.0), params),
        compiled(optax.sgd(0.0), params, accumulate=2),
    )
    keys = [jax.random.fold_in(jax.random.key(3), i) for i in range(4)]
    expected = np.array([jax.jit(bigrams)(params, BATCHES[0], key)["loss"] / 16 for key in keys])
    assert len(set(expected)) == 4
    state, ones, twos = start(), [], []
    for _ in range(4):
        state, metrics = single(state, BATCHES[:1])
        ones.append(metrics["loss"])
    state = start()
    for _ in range(2):
        state, metrics = double(state, [BATCHES[0]] * 2)
        twos.append(metrics["loss"])
    np.testing.assert_allclose(ones, expected, rtol=1e-5)
    np.testing.assert_allclose(twos, expected.reshape(2, 2).mean(1), rtol=1e-5)


def test_seeds_share_their_programs_and_draw_differently():
    params = PARAMS | {"noise": jnp.float32(2.0)}
    programs, losses = set(), set()
    for seed in (3, 4):
        step, start = compiled(optax.sgd(0.0), params, seed=seed)
        ((function, arguments, _),) = step.calls(start(), BATCHES[0])
        programs.add(function.lower(*arguments).as_text())
        losses.add(float(step(start(), BATCHES[:1])[1]["loss"]))
    assert len(programs) == 1 and len(losses) == 2
