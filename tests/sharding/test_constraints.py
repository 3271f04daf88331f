"""The training step carries as many sharding constraints as its layers predict: none is a silent no-op."""

import jax
import jax.numpy as jnp
import optax
import pytest
from cases import slow_but
from jax.extend import core
from small_models import parameter_shapes, small_model

from flaxnmt.sharding import make_mesh, unbox, use_mesh
from flaxnmt.training.objective import translation_objective
from flaxnmt.training.state import make_state
from flaxnmt.training.step import TrainStep

# Values of a layer that name their axes, in the forward pass.
LOOK_UPS = 2
EMBEDDING = ["whole rows of the table", "sum with positions"]
ATTENTION = ["queries", "keys", "values", "output"]
FEED_FORWARD = ["hidden", "output"]
ENCODER_LAYER = ATTENTION + FEED_FORWARD
DECODER_LAYER = 2 * ATTENTION + FEED_FORWARD
LOGITS = ["whole rows of the table", "logits"]


def constraints(jaxpr) -> int:
    """Sharding constraints in a program and all programs inside of it, each counted once."""
    total = 0
    for equation in jaxpr.eqns:
        total += equation.primitive.name == "sharding_constraint"
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr)
        ):
            if isinstance(value, core.ClosedJaxpr):
                total += constraints(value.jaxpr)
            elif isinstance(value, core.Jaxpr):
                total += constraints(value)
    return total


def traced(model, loss_chunk=None):
    """The jaxpr of a whole training step."""
    optimizer = optax.adam(1e-3)
    step = TrainStep(translation_objective(model, 0.1, loss_chunk), optimizer, optax.constant_schedule(1e-3))
    state = jax.eval_shape(lambda p: make_state(p, optimizer, ema=False), unbox(parameter_shapes(model)))
    ids = jax.ShapeDtypeStruct((8, 6), jnp.int32)
    return jax.make_jaxpr(step.whole)(state, {"source": ids, "target": ids}, 0).jaxpr


def predicted(encoder_layers, decoder_layers):
    parts = LOOK_UPS * EMBEDDING + encoder_layers * ENCODER_LAYER + decoder_layers * DECODER_LAYER + LOGITS
    # The cotangent of a constrained value is constrained alike; that of a table is added up in whole rows, then cut.
    return 2 * len(parts) + LOOK_UPS


@pytest.mark.parametrize("norm, dropout", [("pre", 0.1), pytest.param("post", 0.0, marks=pytest.mark.slow)])
def test_as_many_constraints_as_the_layers_predict(norm, dropout):
    with use_mesh(make_mesh(2, 2, 2)):
        assert constraints(traced(small_model(norm=norm, dropout=dropout))) == predicted(1, 2)


@pytest.mark.parametrize("positions", slow_but([], ["shaw", "transformer_xl", "rotary"]))
def test_distances_follow_the_constraints_of_queries_and_keys(positions):
    with use_mesh(make_mesh(2, 2, 2)):
        assert constraints(traced(small_model(positions=positions))) == predicted(1, 2)


def test_a_scan_has_those_of_one_layer():
    with use_mesh(make_mesh(2, 2, 2)):
        assert constraints(traced(small_model(scan=True))) == predicted(1, 1)


def test_logits_in_chunks_are_made_by_each_device_alone():
    with use_mesh(make_mesh(2, 4, 1)):
        # The table is gathered, and logits themselves are not divided.
        assert constraints(traced(small_model(), loss_chunk=4)) == predicted(1, 2) - 2


@pytest.mark.slow
def test_none_outside_of_a_mesh():
    assert constraints(traced(small_model())) == 0
