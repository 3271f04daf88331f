"""Encoders side by side on the devices of a mesh are those that are computed one after the other."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import CONFIG, float32, parameter_shapes, random_ids, random_params, small_model

from flaxnmt.config import BudgetLossConfig
from flaxnmt.errors import ConfigError
from flaxnmt.models.config import BudgetConfig
from flaxnmt.sharding import BRANCHES_APART, make_mesh, put_batch, tree_shardings, use_mesh
from flaxnmt.training.objective import translation_objective

LENGTHS = [5, 3, 4, 2, 6, 1, 2, 3]
BATCH = {name: random_ids(LENGTHS, 6, seed) for seed, name in enumerate(("source", "target"))}
GATES = {"encoder": (1.0, 0.5), "decoder": (1.0, 0.5), "blocks": 1}


def model_with(*branches, **changes):
    encoder = {name: changes.pop(name) for name in ("combine", "final_norm") if name in changes}
    encoder = dataclasses.replace(CONFIG.encoder, branches=branches, **encoder)
    decoder = dataclasses.replace(CONFIG.decoder, layers=1)
    return small_model(encoder=encoder, decoder=decoder, **changes)


def gradient_of(model, **options):
    objective = translation_objective(model, 0.1, **options)

    def gradient(params, batch):
        def loss(params):
            sums = objective(params, batch, jax.random.key(7), 1)
            return sums["loss"], sums

        return jax.value_and_grad(loss, has_aux=True)(params)

    return jax.jit(gradient)


def both(model, sizes, **options):
    """(loss, sums), gradient on one device and on a mesh, and the text of the program of the mesh."""
    params = float32(random_params(model))
    alone = gradient_of(model, **options)(params, BATCH)
    with use_mesh(make_mesh(*sizes), BRANCHES_APART) as mesh:
        params = jax.device_put(params, tree_shardings(parameter_shapes(model), mesh, BRANCHES_APART))
        batch = put_batch(BATCH, mesh)
        compiled = gradient_of(model, **options).lower(params, batch).compile()
        return alone, compiled(params, batch), compiled.as_text()


def agree(alone, together):
    (value, sums), gradient = alone
    (on_mesh, found), gradient_on_mesh = together
    np.testing.assert_allclose(on_mesh, value, rtol=1e-5)
    for name in sums:
        np.testing.assert_allclose(found[name], sums[name], rtol=1e-4, err_msg=name)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient_on_mesh, gradient
    )


def test_loss_and_gradient_with_dropout_are_those_of_one_device():
    """Two kinds in two groups over rows in two parts, parameters in two parts: all axes at once."""
    alone, together, text = both(model_with("attention:1", "lstm:1", combine="gated", dropout=0.2), (2, 2, 2))
    agree(alone, together)
    bodies = re.findall(r"^%[\w.-]+ [^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    sends = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\(")
    assert " conditional(" in text and not any(map(sends.search, bodies)), "devices that differ send nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes, branches, changes, options",
    [
        ((4, 1, 2), ("attention:1", "static_expansion:1"), {"combine": "weighted"}, {}),
        ((1, 2, 4), ("attention:1", "static_expansion:1", "lstm:1", "convs2s:1", "fnet:1"), {}, {}),
        ((2, 2, 2), ("attention:1", "convs2s:1"), {"final_norm": "sum"}, {}),
        ((2, 1, 4), ("attention:2", "lstm:3", "convs2s:2", "fnet:2"), {"scan": True, "remat": True}, {}),
        (
            (4, 1, 2),
            ("attention:1", "convs2s:1"),
            {"budget": BudgetConfig(**GATES)},
            {"budget": BudgetLossConfig(noise_steps=4)},
        ),
        (
            (4, 1, 2),
            ("attention:1", "convs2s:1"),
            {"budget": BudgetConfig(**GATES, branches=(2,))},
            {"budget": BudgetLossConfig(noise_steps=4)},
        ),
    ],
)
def test_kinds_and_combinations(sizes, branches, changes, options):
    agree(*both(model_with(*branches, dropout=0.1, **changes), sizes, **options)[:2])


def test_more_devices_than_encoders_are_refused():
    model = model_with("attention:1", "lstm:1")
    ids = jax.ShapeDtypeStruct((8, 6), jnp.int32)
    with (
        use_mesh(make_mesh(2, 1, 4), BRANCHES_APART),
        pytest.raises(ConfigError, match="--mesh.model 4: there are 2 encoders side by side"),
    ):
        jax.eval_shape(model.apply, {"params": float32(random_params(model))}, ids, ids)
