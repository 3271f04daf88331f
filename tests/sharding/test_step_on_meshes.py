"""The training step of a model is the same on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import random_ids, small_model

from flaxnmt.models.config import DecoderConfig, EncoderConfig, MultiHead
from flaxnmt.sharding import make_mesh, put_batch, use_mesh
from flaxnmt.training.objective import translation_objective
from flaxnmt.training.state import init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep

LAYER = {"layers": 1, "attention": MultiHead(2), "feed_forward": 16}
STEPS, EMA, RATE = 3, 0.9, 1e-2
schedule = optax.constant_schedule(RATE)


def model_with(dropout):
    return small_model(encoder=EncoderConfig(**LAYER), decoder=DecoderConfig(**LAYER), dropout=dropout)


def batch_of(seed, rows=8):
    lengths = np.random.default_rng(seed).integers(1, 8, (2, rows))
    return {name: random_ids(list(n), 8, seed) for name, n in zip(("source", "target"), lengths)}


def train(mesh, chunk=None):
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
            TrainStep(translation_objective(model, 0.1, chunk), optimizer, schedule, EMA), shardings, seed=5
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


@pytest.mark.parametrize(
    "sizes, chunk",
    # All axes at once is the hardest of them; logits in chunks are made by each device alone.
    [
        pytest.param((8, 1, 1), None, id="8x1x1", marks=pytest.mark.slow),
        pytest.param((1, 8, 1), None, id="1x8x1", marks=pytest.mark.slow),
        pytest.param((2, 2, 2), None, id="2x2x2"),
        pytest.param((8, 1, 1), 4, id="8x1x1, chunks", marks=pytest.mark.slow),
        pytest.param((2, 4, 1), 4, id="2x4x1, chunks", marks=pytest.mark.slow),
    ],
)
def test_losses_and_state_are_those_of_one_device(sizes, chunk, on_one_device):
    losses, state = train(make_mesh(*sizes), chunk)
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
