"""Gates in training: what they count, held open, decided, and their noise."""

from functools import partial

import gates_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from gated_blocks import (
    HARD,
    KINDS,
    MASK,
    SOFT,
    X,
    feed_forward_block,
    float32,
    random_params,
    run,
    soft,
)

from flaxnmt.gates.control import decided, soft_gate
from flaxnmt.layers.context import Gating


@pytest.mark.parametrize("kind", slow_but(["attention"], ["attention", "feed-forward"]))
def test_training_can_count_what_gates_would_decide(kind):
    module = KINDS[kind][0]
    params = float32(random_params(module))

    @jax.jit
    def work(params, decided):
        y, used = soft(module, params, Gating(noise=2.0, counted=decided))
        return used.sum(), (y, used)

    both = (
        jax.value_and_grad(work, has_aux=True)(params, jnp.full(len(X), decided)) for decided in (False, True)
    )
    ((_, (y, expected)), gradient), ((_, (same, used)), same_gradient) = both
    decisions = run(module, params, float32(X), HARD)[1].used
    np.testing.assert_allclose(used, decisions, rtol=1e-6)
    assert (np.abs(expected / decisions - 1) > 1e-3).all()
    # Outputs stay soft, and what counts has the gradient of the soft gate.
    np.testing.assert_array_equal(y, same)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(same_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)
    assert np.abs(gradient["control"]["w_out"]).max() > 0.1


@pytest.mark.parametrize("kind", slow_but(["attention"], ["attention", "feed-forward"]))
def test_gates_can_be_held_open_in_training(kind):
    module = KINDS[kind][0]
    params = float32(random_params(module))

    work = jax.jit(partial(soft, module))

    def outputs(params, gating):
        return work(params, gating)[0]

    def gradient(gating):
        return jax.grad(lambda params: (outputs(params, gating) ** 2).sum())(params)

    for noise in (None, 2.0):
        early, late = (
            Gating(None if noise is None else jnp.float32(noise), jnp.asarray(on)) for on in (True, False)
        )
        opened = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf + 100 * (path[-1].key == "b_out" and "control" in path[-2].key), params
        )
        np.testing.assert_allclose(
            outputs(params, early)[MASK], run(module, opened, float32(X), HARD)[0][MASK], atol=1e-6
        )
        np.testing.assert_array_equal(outputs(params, late), outputs(params, Gating(noise)))
    # Control networks learn nothing from what is behind open gates, and all from what gates count.
    first = Gating(jnp.float32(2.0), jnp.asarray(True))
    assert not np.any(gradient(first)["control"]["w_out"])
    used = jax.grad(lambda params: work(params, first)[1].sum())(params)
    assert np.abs(used["control"]["w_out"]).max() > 1e-2


@pytest.mark.parametrize("kind", slow_but(["attention"], ["attention", "feed-forward"]))
def test_gates_can_be_decisions_in_training(kind):
    module = KINDS[kind][0]
    params = float32(random_params(module))

    work = jax.jit(partial(soft, module))

    def gradient(gating):
        return jax.grad(lambda params: (work(params, gating)[0][MASK] ** 2).sum())(params)

    noise = Gating(noise=jnp.float32(2.0))
    late, early = (noise.replace(decided=jnp.asarray(on)) for on in (True, False))
    decisions, _ = run(module, params, float32(X), HARD)
    np.testing.assert_allclose(work(params, late)[0][MASK], decisions[MASK], rtol=1e-5)
    np.testing.assert_array_equal(work(params, early)[0], work(params, noise)[0])
    # What they count is not touched; control networks learn from nothing else.
    np.testing.assert_array_equal(work(params, late)[1], work(params, noise)[1])
    assert np.abs(gradient(early)["control"]["w_out"]).max() > 1e-3
    found = gradient(late)
    assert not np.any(found["control"]["w_out"])
    norms = (leaves for name, leaves in found.items() if name.startswith("input_norms"))
    assert max(np.abs(leaves["scale"]).max() for leaves in norms) > 1e-3
    used = jax.grad(lambda params: work(params, late)[1].sum())(params)
    assert np.abs(used["control"]["w_out"]).max() > 1e-2


def test_the_gradient_of_a_decision_is_that_of_the_value_of_the_gate():
    logits, up = jnp.asarray([-3.0, -0.5, 0.0, 2.0]), jnp.asarray([1.0, -2.0, 3.0, 4.0])
    value, gradient = jax.value_and_grad(lambda x: (up * decided(x, soft_gate(x))).sum())(logits)
    assert value == 7.0
    np.testing.assert_allclose(
        gradient, up * jax.nn.sigmoid(logits) * (1 - jax.nn.sigmoid(logits)), rtol=1e-6
    )


def test_noise_is_drawn_in_training_only_and_scaled():
    module = feed_forward_block(1)
    params = float32(slow.set_gates(random_params(module), 0.0))

    def gates(context):
        rngs = {"dropout": jax.random.key(3)}
        return module.apply({"params": params}, float32(X), context, rngs=rngs)[1].gates["rows"][..., 0]

    soft = SOFT.replace(capture=True)
    np.testing.assert_array_equal(gates(soft)[MASK], 0.5)
    np.testing.assert_array_equal(gates(soft.replace(gating=Gating(noise=0.0)))[MASK], 0.5)
    one, two = (gates(soft.replace(gating=Gating(noise=scale))) for scale in (1.0, 2.0))
    logits = [np.log(g[MASK] / (1 - g[MASK])) for g in (one, two)]
    np.testing.assert_allclose(logits[1], 2 * logits[0], rtol=1e-3, atol=1e-4)
    assert np.std(logits[0]) > 0.3
    np.testing.assert_array_equal(gates(HARD.replace(capture=True, gating=Gating(noise=5.0)))[MASK], 1.0)
    assert (one[~MASK] == 0).all()
