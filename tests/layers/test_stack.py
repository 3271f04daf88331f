"""Stacks: scanned equals unrolled, recomputed equals kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from small_models import float32, random_ids, random_params, small_model

from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.stack import Stack
from flaxnmt.sharding import unbox
from flaxnmt.training.objective import translation_objective

BATCH = {
    "source": jnp.asarray(random_ids([5, 3], 6, seed=1)),
    "target": jnp.asarray(random_ids([4, 6], 6, seed=2)),
}


def stacked(params):
    """Parameters of an unrolled model as a scanned one names them."""

    def stack(layers):
        return {"layers_0": jax.tree.map(lambda *leaves: np.stack(leaves), *layers.values())}

    return params | {
        part: params[part] | {"stack": stack(params[part]["stack"])} for part in ("encoder", "decoder")
    }


@pytest.fixture(scope="module")
def unrolled():
    model = small_model(dropout=0.0)
    params = random_params(model)
    loss = translation_objective(model, 0.1)
    value, gradient = jax.jit(jax.value_and_grad(lambda p: loss(p, BATCH, None)["loss"]))(float32(params))
    return params, value, gradient


@pytest.mark.parametrize("scan, remat", [(True, False), pytest.param(False, True, marks=pytest.mark.slow)])
def test_scan_and_remat_change_neither_loss_nor_gradient(scan, remat, unrolled):
    params, value, gradient = unrolled
    convert = stacked if scan else lambda tree: tree
    loss = translation_objective(small_model(dropout=0.0, scan=scan, remat=remat), 0.1)
    got, got_gradient = jax.jit(jax.value_and_grad(lambda p: loss(p, BATCH, None)["loss"]))(
        float32(convert(params))
    )
    np.testing.assert_allclose(got, value, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got_gradient, convert(gradient)
    )


class Blocks(nn.Module):
    """Two feed-forward blocks with dropout, as one stack."""

    scan: bool
    remat: bool

    def setup(self):
        made = [Block(FeedForward(6, 8, dropout=0.3), dropout=0.3) for _ in range(1 if self.scan else 2)]
        self.stack = Stack(tuple(made), repeats=2 if self.scan else 1, scan=self.scan, remat=self.remat)

    def __call__(self, x):
        return self.stack.run(lambda block, x, _: block(x, Context(deterministic=False)), x)[0]


@pytest.mark.parametrize("scan", [pytest.param(False, marks=pytest.mark.slow), True])
def test_remat_draws_the_same_dropout_twice(scan):
    kept, again = Blocks(scan, remat=False), Blocks(scan, remat=True)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    rngs = {"dropout": jax.random.key(3)}
    params = jax.jit(kept.init)({"params": jax.random.key(0), **rngs}, x)

    def run(module):
        return jax.jit(jax.value_and_grad(lambda p: jnp.sum(module.apply(p, x, rngs=rngs) ** 2)))(
            unbox(params)
        )

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), run(again), run(kept))


def test_remat_keeps_fewer_activations():
    def residuals(remat):
        model = small_model(dropout=0.0, remat=remat)
        loss = translation_objective(model, 0.1)
        _, backward = jax.eval_shape(
            lambda p: jax.vjp(lambda p: loss(p, BATCH, None)["loss"], p), float32(random_params(model))
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert residuals(True) < 0.6 * residuals(False)


class Noise(nn.Module):
    """Adds to its input a draw of the dropout stream."""

    @nn.compact
    def __call__(self, x):
        return x + jax.random.normal(self.make_rng("dropout"), x.shape)


@pytest.mark.parametrize("scan", [False, True])
def test_layers_of_a_stack_draw_differently(scan):
    class Whole(nn.Module):
        def setup(self):
            layers = tuple(Noise() for _ in range(1 if scan else 3))
            self.stack = Stack(layers, repeats=3 if scan else 1, scan=scan)

        def __call__(self, x):
            return self.stack.run(lambda layer, x, _: (layer(x), layer(x) * 0 + x), x)[1]

    seen = jnp.stack(Whole().apply({}, jnp.zeros(5), rngs={"dropout": jax.random.key(0)}))
    steps = np.diff(seen, axis=0)
    assert seen.shape == (3, 5) and np.all(np.abs(steps[1] - steps[0]) > 1e-3)


@pytest.mark.parametrize(
    "options, said", [({"repeats": 3}, "repeated 3 times"), ({"scan": True}, "there are 2")]
)
def test_layers_that_would_be_left_out_are_refused(options, said):
    stack = Stack((Noise(), Noise()), **options)
    with pytest.raises(ValueError, match=said):
        stack.apply({}, lambda layer, x, _: (layer(x), None), jnp.zeros(5), method="run")
