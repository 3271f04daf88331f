"""Parameters that training leaves as they are, bit for bit, whatever else an update does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from flaxnmt.config import OptimizerConfig
from flaxnmt.errors import ConfigError
from flaxnmt.sharding import make_mesh, unbox, use_mesh
from flaxnmt.training.freezing import freeze, frozen_mask, frozen_names, held
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.optimizers import make_optimizer
from flaxnmt.training.state import init_state, state_shardings
from flaxnmt.training.step import CompiledStep, TrainStep

SHAPES = {
    "encoder": {"stack": {"layers_0": {"query": (8, 4), "scale": (4,)}, "layers_1": {"query": (8, 4), "scale": (4,)}}},
    "table": (8, 8),
}  # fmt: skip
NAMES = [
    "encoder/stack/layers_0/query", "encoder/stack/layers_0/scale", "encoder/stack/layers_1/query",
    "encoder/stack/layers_1/scale", "table",
]  # fmt: skip
ADAMW = OptimizerConfig(name="adamw", weight_decay=0.1, clip_norm=0.5, schedule="constant", learning_rate=0.1)
EMA = 0.9


def draw(key):
    leaves, tree = jax.tree.flatten(SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(leaves))
    values = [jax.random.normal(k, shape) for k, shape in zip(keys, leaves, strict=True)]
    boxed = [nn.LogicallyPartitioned(x, ("embed",) + (None,) * (x.ndim - 1)) for x in values]
    return {"params": jax.tree.unflatten(tree, boxed)}


def squares(params, batch, key, update):
    loss = sum(jnp.sum(jnp.square(leaf - batch)) for leaf in jax.tree.leaves(params))
    return {"loss": loss, "nll": loss, "tokens": jnp.float32(2)}


def trainer(names, mesh, accumulate=1):
    """A step that freezes these names, and its first state."""
    optimizer, objective = make_optimizer(ADAMW, optax.constant_schedule(0.1)), squares
    if names:
        mask = frozen_mask(unbox(jax.eval_shape(draw, jax.random.key(0))["params"]), names)
        optimizer, objective = freeze(optimizer, mask), held(objective, mask)
    shapes, shardings = state_shardings(draw, optimizer, True, mesh)
    state = init_state(draw, optimizer, True, shardings, seed=3)
    assert jax.tree.structure(shapes) == jax.tree.structure(state)
    step = TrainStep(objective, optimizer, optax.constant_schedule(0.1), EMA)
    return CompiledStep(step, shardings, 3, accumulate), state


@pytest.fixture(
    scope="module",
    params=[pytest.param({}, marks=pytest.mark.slow), {"fsdp": 4, "data": 2}],
    ids=["one axis", "sharded"],
)
def mesh(request):
    mesh = make_mesh(**request.param)
    with use_mesh(mesh):
        yield mesh


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_frozen_parameters_keep_every_bit_and_the_others_do_not(mesh, accumulate):
    frozen = frozen_names(NAMES, ("encoder/stack/layers_0", "table"))
    step, state = trainer(frozen, mesh, accumulate)
    before = jax.device_get(named_leaves(state.params))
    batches = [jnp.ones(())] * accumulate
    for _ in range(5):
        state, metrics = step(state, batches)
    params, ema = named_leaves(state.params), named_leaves(state.ema)
    for name in NAMES:
        kept = before[name].tobytes()
        assert (np.asarray(params[name]).tobytes() == kept) == (name in frozen), name
        assert (np.asarray(ema[name]).tobytes() == kept) == (name in frozen), name
    moments = [name for name in named_leaves(state.opt_state) if "/mu/" in name or "/nu/" in name]
    assert len(moments) == 4 and all("layers_1" in name for name in moments)
    assert metrics["bad_steps"] == 0


def test_the_others_are_updated_as_if_there_were_nothing_else(mesh):
    """Also the norm to which gradients are clipped is that of the others alone."""
    step, state = trainer(frozen_names(NAMES, ("*/layers_0", "table")), mesh)
    alone = {name: x for name, x in jax.device_get(named_leaves(state.params)).items() if "layers_1" in name}
    optimizer = make_optimizer(ADAMW, optax.constant_schedule(0.1))
    inner = optimizer.init(alone)
    norms = []
    for _ in range(3):
        gradients = jax.tree.map(lambda x: 2 * (x - 1) / 2, alone)
        norms.append(optax.tree.norm(gradients))
        updates, inner = optimizer.update(gradients, inner, alone)
        alone = optax.apply_updates(alone, updates)
        state, metrics = step(state, [jnp.ones(())])
        np.testing.assert_allclose(metrics["gradient_norm"], norms[-1], rtol=1e-5)
    assert min(norms) > ADAMW.clip_norm
    found = named_leaves(state.params)
    for name, expected in alone.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def test_names_are_beginnings_of_paths_in_whole_parts():
    assert frozen_names(NAMES, ("encoder",)) == NAMES[:4]
    assert frozen_names(NAMES, ("encoder/stack/layers_1/", "table")) == NAMES[2:]
    assert frozen_names(NAMES, ("*/scale", "encoder/*_0")) == [NAMES[0], NAMES[1], NAMES[3]]
    assert frozen_names(NAMES, ("initialised", "table"), NAMES[:2]) == [*NAMES[:2], "table"]


@pytest.mark.parametrize(
    "given, said",
    [
        (("encoder", "tabel"), "tabel is the beginning of no parameter, did you mean 'table'"),
        (("encoder/stack/layers",), "did you mean 'encoder/stack/layers_"),
        (("initialised",), "no parameter comes from another run; give --init-from"),
        (("table", "encoder"), "table encoder leaves no parameter to train"),
    ],
)
def test_what_freezes_nothing_or_everything_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        frozen_names(NAMES, given)
