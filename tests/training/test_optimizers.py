import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import configs
from flaxnmt.config import OptimizerConfig
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import EncoderConfig, ExpansionConfig, encoder_set
from flaxnmt.models.families import example_inputs, module
from flaxnmt.sharding import unbox
from flaxnmt.training.optimizers import decay_mask, make_optimizer
from flaxnmt.training.schedules import make_schedule


def make_params(seed=0):
    shapes = {
        "table": (11, 8),
        "w_in": (8, 16),
        "b_in": (16,),
        "query": (8, 2, 4),
        "norm": {"scale": (8,), "bias": (8,)},
    }
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in leaves])


def adam_float64(params, gradients, rates, config):
    """Algorithm 1 of Kingma & Ba 2015 in NumPy, with decoupled decay of the matrices."""

    def leaf(decays, p, *gs):
        p, m, v = np.asarray(p, np.float64), 0.0, 0.0
        for t, (rate, g) in enumerate(zip(rates, gs), 1):
            g = np.asarray(g, np.float64)
            m = config.b1 * m + (1 - config.b1) * g
            v = config.b2 * v + (1 - config.b2) * g * g
            step = m / (1 - config.b1**t) / (np.sqrt(v / (1 - config.b2**t)) + config.eps)
            p = p - rate * (step + decays * config.weight_decay * p)
        return p

    return jax.tree.map(leaf, decay_mask(params), params, *gradients)


@pytest.mark.parametrize("name, decay", [("adam", 0.0), ("adamw", 0.1)])
def test_five_updates_agree_with_float64(name, decay):
    config = OptimizerConfig(name=name, weight_decay=decay, warmup_steps=3)
    optimizer = make_optimizer(config, make_schedule(config, 8, None))
    params, gradients = make_params(), [make_params(seed) for seed in range(1, 6)]
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    new = params
    for g in gradients:
        updates, state = update(g, state, new)
        new = optax.apply_updates(new, updates)
    rates = [8**-0.5 * min(t**-0.5, t * 3**-1.5) for t in range(1, 6)]
    expected = adam_float64(params, gradients, rates, config)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), new, expected)


def test_only_matrices_decay():
    mask = decay_mask(
        {**make_params(), "stacked": {"b_in": jnp.zeros((4, 16)), "w_in": jnp.zeros((4, 8, 16))}}
    )
    assert mask == {
        "table": False,
        "w_in": True,
        "b_in": False,
        "query": True,
        "norm": {"scale": False, "bias": False},
        "stacked": {"b_in": False, "w_in": True},
    }


MATRICES = {
    *("query", "key", "value", "out", "w_in", "w_out", "w_recurrent", "kernel", "distance"),
    *("w_key", "w_first", "w_second", "w_selector", "vectors", "query_enrichment", "bias_enrichment"),
}


@pytest.mark.parametrize(
    "name, changes",
    [
        ("bert_base", {}),
        ("bert_base", {"scan": True}),
        ("masked_tiny", {"positions": "transformer_xl", "scan": True}),
        ("masked_tiny", {"positions": "shaw"}),
        (
            "encoders_tiny",
            {
                "encoder": EncoderConfig(
                    branches=encoder_set(5), expansion=ExpansionConfig(enrichment="shared_vectors")
                )
            },
        ),
    ],
)
def test_nothing_but_matrices_decays_in_models(name, changes):
    config = dataclasses.replace(configs.load(name).model, **changes)
    model = module(config, 50, 50)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *example_inputs(config, 8)))["params"]
    found = {True: set(), False: set()}
    for path, decays in jax.tree_util.tree_leaves_with_path(decay_mask(unbox(shapes))):
        found[decays].add(path[-1].key)
    assert found[True] <= MATRICES and not found[False] & MATRICES


def test_clipping_bounds_the_norm_that_adam_sees():
    config = OptimizerConfig(clip_norm=0.5, schedule="constant")
    optimizer = make_optimizer(config, make_schedule(config, 8, None))
    params = make_params()
    large, small = jax.tree.map(lambda x: 100 * x, params), jax.tree.map(lambda x: 1e-3 * x, params)
    for gradients, expected in ((large, 0.5), (small, float(optax.tree.norm(small)))):
        _, state = optimizer.update(gradients, optimizer.init(params), params)
        first = optax.tree.get(state, "mu")
        assert float(optax.tree.norm(first)) == pytest.approx((1 - config.b1) * expected, rel=1e-5)


def test_an_update_is_three_loops_a_parameter_and_no_copies():
    config = OptimizerConfig(schedule="constant")
    optimizer = make_optimizer(config, make_schedule(config, 8, None))
    params = {str(i): jnp.ones((64, 64)) for i in range(10)}

    def step(state, gradients):
        updates, inner = optimizer.update(gradients, state[1], state[0])
        return optax.apply_updates(state[0], updates), inner

    state = params, optimizer.init(params)
    compiled = jax.jit(step, donate_argnums=0).lower(state, params).compile().as_text()
    loops = re.findall(r"= f32\[64,64\]\S* (\w+)\(", compiled[compiled.index("ENTRY") :])
    assert loops.count("copy") == 0
    assert len([op for op in loops if op != "parameter"]) <= 30


@pytest.mark.parametrize("change", [dict(weight_decay=0.1), dict(clip_norm=0.0)])
def test_contradictions_are_refused(change):
    (field,) = change
    with pytest.raises(ConfigError, match=f"optimizer.{field}"):
        make_optimizer(OptimizerConfig(name="adam", **change), optax.constant_schedule(1.0))
