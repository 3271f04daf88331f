"""One training step, whatever the mesh and however the update is split."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import float32, random_ids, random_params, small_model

from flaxnmt.models.config import DecoderConfig, EncoderConfig, MultiHead
from flaxnmt.sharding import make_mesh, put_batch, use_mesh
from flaxnmt.training.objective import translation_objective
from flaxnmt.training.state import TrainState, init_state, make_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep

MESHES = {"8x1x1": (8, 1, 1), "1x8x1": (1, 8, 1), "2x2x2": (2, 2, 2)}
LAYER = {"layers": 1, "attention": MultiHead(2), "feed_forward": 16}
STEPS, EMA, RATE = 3, 0.9, 1e-2
schedule = optax.constant_schedule(RATE)


def model_with(dropout):
    return small_model(encoder=EncoderConfig(**LAYER), decoder=DecoderConfig(**LAYER), dropout=dropout)


def batch_of(seed, rows=8):
    lengths = np.random.default_rng(seed).integers(1, 8, (2, rows))
    return {name: random_ids(list(n), 8, seed) for name, n in zip(("source", "target"), lengths)}


def train(mesh):
    """Losses and final state of a few updates with dropout, gradient clipping and a moving average."""
    model = model_with(0.2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    example = jnp.ones((8, 8), jnp.int32)

    def init(key):
        return model.init(key, example, example)

    with use_mesh(mesh):
        _, shardings = state_shardings(init, optimizer, True, mesh)
        state = init_state(init, optimizer, True, shardings, seed=1)
        assert jax.tree.map(lambda x: x.sharding, state.params) == shardings.params
        step = CompiledStep(
            TrainStep(translation_objective(model, 0.1), optimizer, schedule, 5, EMA), shardings
        )
        losses = []
        for i in range(STEPS):
            state, metrics = step(state, [put_batch(batch_of(i), mesh)])
            losses.append(float(metrics["loss"]))
        assert jax.tree.map(lambda x: x.sharding, state) == shardings
    return losses, jax.device_get(state)


@pytest.fixture(scope="module")
def on_one_device():
    return train(make_mesh(1, 1, 1, devices=jax.devices()[:1]))


@pytest.mark.parametrize("sizes", MESHES.values(), ids=MESHES)
def test_losses_and_state_are_those_of_one_device(sizes, on_one_device):
    losses, state = train(make_mesh(*sizes))
    expected_losses, expected = on_one_device
    assert len(set(losses)) == STEPS
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for part in ("params", "ema"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
            getattr(state, part),
            getattr(expected, part),
        )
    assert (state.step, state.bad.total) == (STEPS, 0)


@pytest.fixture(scope="module")
def plain():
    """Gradient descent without dropout, which is easy to follow by hand."""
    model, optimizer = model_with(0.0), optax.sgd(RATE)
    step = TrainStep(translation_objective(model, 0.1), optimizer, schedule, 0, EMA)
    params = float32(random_params(model))
    shardings = jax.tree.map(lambda x: x.sharding, make_state(params, optimizer, ema=True))
    return step, params, CompiledStep(step, shardings), CompiledStep(step, shardings, accumulate=2)


def fresh(step, params) -> TrainState:
    return make_state(jax.tree.map(jnp.copy, params), step.optimizer, ema=True)


def on_device(batch):
    return jax.tree.map(jnp.asarray, batch)


def halves(batch):
    return [
        on_device({name: ids[part] for name, ids in batch.items()}) for part in (slice(0, 6), slice(6, 8))
    ]


def test_an_update_divides_by_the_tokens_and_not_by_the_rows(plain):
    step, params, whole, _ = plain
    batch = on_device(batch_of(0))
    sums, gradient = jax.jit(jax.value_and_grad(lambda p: step.objective(p, batch, None)["loss"]))(params)
    tokens = np.count_nonzero(batch["target"])
    state, metrics = whole(fresh(step, params), [batch])
    assert metrics["tokens"] == tokens
    np.testing.assert_allclose(metrics["loss"], sums / tokens, rtol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient) / tokens, rtol=1e-5)
    jax.tree.map(
        lambda new, old, g: np.testing.assert_allclose(new, old - RATE * g / tokens, atol=1e-6),
        state.params,
        params,
        gradient,
    )


def test_accumulated_parts_give_the_update_of_the_whole_batch(plain):
    """Of 6 and 2 rows: a mean of their means would be another number."""
    step, params, whole, accumulated = plain
    batch = batch_of(0)
    parts = halves(batch)
    one, metrics = whole(fresh(step, params), [on_device(batch)])
    two, split_metrics = accumulated(fresh(step, params), parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), two.params, one.params)
    for name in ("loss", "nll", "tokens", "gradient_norm"):
        np.testing.assert_allclose(split_metrics[name], metrics[name], rtol=1e-5)
    means = [float(whole(fresh(step, params), [part])[1]["loss"]) for part in parts]
    assert abs(np.mean(means) - metrics["loss"]) > 1e-3
    assert two.step == 1


def test_moving_average_follows_the_parameters(plain):
    step, params, whole, _ = plain
    state, expected = fresh(step, params), params
    for i in range(2):
        state, _ = whole(state, [on_device(batch_of(i))])
        decay = min(EMA, (1 + i) / (10 + i))
        expected = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * p, expected, state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.ema, expected)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_that_is_not_finite_is_dropped_and_counted(accumulate, plain):
    step, params, *steps = plain
    poison = jax.tree.map(jnp.copy, params)
    poison["target_table"]["table"] = poison["target_table"]["table"].at[5, 0].set(jnp.inf)
    batch = batch_of(0)
    assert np.any(batch["target"] == 5)
    batches = [on_device(batch)] if accumulate == 1 else halves(batch)
    state, metrics = steps[accumulate - 1](fresh(step, poison), batches)
    jax.tree.map(np.testing.assert_array_equal, state.params, poison)
    jax.tree.map(np.testing.assert_array_equal, state.ema, poison)
    assert (state.step, metrics["bad_steps"], metrics["bad_in_a_row"]) == (1, 1, 1)
    healthy = TrainState(state.step, jax.tree.map(jnp.copy, params), state.opt_state, state.ema, state.bad)
    state, metrics = steps[accumulate - 1](healthy, batches)
    assert (state.step, metrics["bad_steps"], metrics["bad_in_a_row"]) == (2, 1, 0)


def test_a_batch_of_empty_rows_changes_nothing(plain):
    step, params, whole, _ = plain
    state, metrics = whole(fresh(step, params), [on_device(jax.tree.map(np.zeros_like, batch_of(0)))])
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    assert (metrics["tokens"], metrics["loss"], metrics["bad_steps"]) == (0, 0, 0)


def test_every_batch_of_an_update_draws_its_own_dropout():
    model = model_with(0.5)
    step = TrainStep(translation_objective(model, 0.0), optax.sgd(RATE), schedule, seed=3)
    params, batch = float32(random_params(model)), on_device(batch_of(0))
    losses = jax.jit(
        jax.vmap(lambda i: step.objective(params, batch, jax.random.fold_in(jax.random.key(3), i))["loss"])
    )
    expected = losses(jnp.arange(4))
    assert len(set(map(float, expected))) == 4
    accumulated = CompiledStep(
        step, jax.tree.map(lambda x: x.sharding, make_state(params, step.optimizer, False)), 2
    )
    state = make_state(jax.tree.map(jnp.copy, params), step.optimizer, False)
    _, metrics = accumulated(state, [batch, batch])
    np.testing.assert_allclose(
        metrics["loss"], expected[:2].sum() / (2 * np.count_nonzero(batch["target"])), rtol=1e-5
    )
