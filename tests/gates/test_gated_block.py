"""Gated blocks against float64, and what is not computed against what is multiplied by 0."""

import gates_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but
from flax import linen as nn
from gated_blocks import (
    CONTROL,
    HARD,
    HIDDEN,
    KINDS,
    MASK,
    NORM,
    SOFT,
    UPSTREAM,
    D,
    F,
    H,
    X,
    attention_block,
    feed_forward_block,
    float32,
    make,
    random_params,
    run,
)

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import ShawPositions
from flaxnmt.attention.source2token import Source2Token
from flaxnmt.gates.block import GatedBlock
from flaxnmt.gates.control import control_flops
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.sharding import unbox


@pytest.mark.parametrize("kind", slow_but(["attention", "feed-forward"], KINDS))
def test_gates_of_these_tests_are_open_for_some_rows_and_closed_for_others(kind):
    module, _ = KINDS[kind]
    gates = run(module, float32(random_params(module)), float32(X), HARD.replace(capture=True))[1].gates
    for name, values in gates.items():
        shares = np.asarray(values)[MASK].mean(0)
        assert ((shares > 0) & (shares < 1)).all(), (name, shares)


@pytest.mark.parametrize(
    "kind",
    slow_but(
        ["attention, normed keys", "feed-forward, logits by a factor", "attention, outputs as they are"],
        KINDS,
    ),
)
def test_a_gated_block_is_its_equation_forward_and_backward(kind):
    module, expected = KINDS[kind]
    params = random_params(module)
    y, backward = jax.vjp(jax.jit(lambda p, x: run(module, p, x, SOFT)[0]), *float32((params, X)))
    real = MASK[..., None]
    np.testing.assert_allclose(y * real, expected(params, X, False) * real, rtol=1e-5, atol=2e-5)
    d_params, d_x = backward(float32(UPSTREAM * real))

    def loss(params, x=X):
        return np.sum(UPSTREAM * real * expected(params, x, False))

    def compare(path, gradient, value):
        def loss_of(v):
            return loss(jax.tree_util.tree_map_with_path(lambda p, leaf: v if p == path else leaf, params))

        exact = reference.numeric_gradient(loss_of, value)
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(gradient, exact, rtol=1e-3, atol=2e-4, err_msg=name)

    numeric = reference.numeric_gradient(lambda x: loss(params, x), X)
    np.testing.assert_allclose(d_x, numeric, rtol=1e-3, atol=5e-4)
    jax.tree_util.tree_map_with_path(compare, d_params, params)
    for name in ("control", "key_control") if kind.startswith("attention") else ("control",):
        assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(d_params[name])), name


@pytest.mark.parametrize(
    "kind", slow_but(["attention, biases", "feed-forward", "feed-forward, outputs as they are"], KINDS)
)
def test_decisions_are_the_equation_and_skipping_equals_masking(kind):
    module, expected = KINDS[kind]
    params = random_params(module)
    step = jax.jit(lambda context: run(module, float32(params), float32(X), context))
    masked, masked_use = step(HARD)
    # The pieces that are computed are other matrix products than the whole, so sums may round differently.
    skipped, skipped_use = step(HARD.replace(skip=True))
    np.testing.assert_allclose(skipped, masked, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(skipped_use.used, masked_use.used)
    real = MASK[..., None]
    np.testing.assert_allclose(masked * real, expected(params, X, True) * real, rtol=1e-5, atol=2e-5)
    rows = jnp.asarray(MASK.sum(1))
    assert (masked_use.used < masked_use.full + module.added_flops(rows, rows)).all()


@pytest.mark.parametrize("normed_keys", slow_but([True], [False, True]))
def test_attention_over_a_memory_gates_its_keys_by_the_memory(normed_keys):
    module = attention_block(normed_keys)
    params, memory = random_params(module), np.random.default_rng(5).normal(size=X.shape)
    context = Context(key_mask=jnp.asarray(MASK))
    step = jax.jit(lambda context: run(module, float32(params), float32(X), context, float32(memory))[0])
    expected = slow.attention_block(params, X, MASK, True, memory)
    for skip in (False, True):
        np.testing.assert_allclose(step(context.replace(skip=skip)), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("skip", [False, True])
def test_open_gates_are_the_block_with_another_norm_and_closed_ones_the_identity(skip):
    module = attention_block()
    params = random_params(module)
    step = jax.jit(lambda params: run(module, params, float32(X), HARD.replace(skip=skip)))

    def with_norm(attention_params, x):
        h = slow.norm(attention_params["input_norms_0"], x)
        y = slow.attention(attention_params["sublayers_0"], h, h, MASK.astype(float), MASK)
        return x + slow.norm(attention_params["output_norms_0"], y)

    # A logit of exactly 0 is open.
    opened, use = step(float32(slow.set_gates(params, 0.0)))
    real = MASK[..., None]
    np.testing.assert_allclose(opened * real, with_norm(params, X) * real, rtol=1e-5, atol=2e-5)
    added = MASK.sum(1) * (2 * CONTROL + NORM)
    np.testing.assert_allclose(use.used, use.full + added, rtol=1e-6)
    closed, use = step(float32(slow.set_gates(params, -1e-3)))
    np.testing.assert_array_equal(closed, float32(X))
    np.testing.assert_allclose(use.used, added, rtol=1e-6)


@pytest.mark.parametrize("normed_outputs, norms", [(True, 2), (False, 1)])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_each_part_of_a_feed_forward_network_adds_norms(parts, normed_outputs, norms):
    module = feed_forward_block(parts, normed_outputs=normed_outputs)
    use = run(module, float32(slow.set_gates(random_params(module), 1.0)), float32(X), HARD)[1]
    added = MASK.sum(1) * (control_flops(D, HIDDEN, parts) + (norms * parts - 1) * NORM)
    np.testing.assert_allclose(use.used, use.full + added, rtol=1e-6)


def test_without_norms_of_outputs_open_gates_are_the_block_without_gates():
    module, plain = feed_forward_block(1, normed_outputs=False), Block(FeedForward(D, F))
    params = float32(slow.set_gates(random_params(module), 1.0))
    assert set(params) == {"control", "input_norms_0", "sublayers_0"}
    same = {"layer_norm": params["input_norms_0"], "sublayer": params["sublayers_0"]}
    expected, _ = plain.apply({"params": same}, float32(X), HARD)
    real = MASK[..., None]
    np.testing.assert_array_equal(run(module, params, float32(X), HARD)[0] * real, expected * real)


def test_the_parts_of_a_feed_forward_network_begin_as_one():
    d_model, hidden, parts = 64, 256, 4
    whole = FeedForward(d_model, hidden)
    one = FeedForward(d_model, hidden // parts, parts=parts)
    x = jnp.ones((1, 1, d_model))

    def weights(module):
        params = unbox(module.init(jax.random.key(0), x, x, HARD)["params"])
        return {name: (w.shape, np.abs(w).max(), w.std()) for name, w in params.items() if name[0] == "w"}

    for name, (shape, largest, deviation) in weights(one).items():
        of_whole = weights(whole)[name]
        assert np.prod(shape) * parts == np.prod(of_whole[0])
        np.testing.assert_allclose((largest, deviation), of_whole[1:], rtol=0.02)


class Compact(nn.Module):
    """A project of its own that makes a gated block, and what its sub-layer holds, where it uses them."""

    kind: str

    @nn.compact
    def __call__(self, x, context):
        sublayers = {
            "shaw": lambda: MultiHeadAttention(D, H, positions=ShawPositions(D // H, clip=2)),
            "conditional": lambda: ConditionalAttention(D, H, t=1, sentence_encoder=Source2Token(D)),
        }
        return GatedBlock(D, (sublayers[self.kind](),), HIDDEN)(x, context)[0]


@pytest.mark.parametrize("kind", ["shaw", "conditional"])
def test_blocks_that_are_made_where_they_are_used_skip_as_others_do(kind):
    module, x = Compact(kind), float32(X if kind == "shaw" else X[:, None])
    params = float32(random_params(module, x=x))
    both = [jax.jit(module.apply)({"params": params}, x, Context(skip=skip)) for skip in (False, True)]
    np.testing.assert_allclose(*both, rtol=1e-6, atol=1e-6)


def test_sublayers_side_by_side_have_no_cache_to_extend():
    module = make(MultiHeadAttention(D, H), MultiHeadAttention(D, H))
    params = float32(random_params(module))
    with pytest.raises(ValueError, match="of one sub-layer, not of 2"):
        module.apply({"params": params}, float32(X), None, HARD, lambda _, new: new, method="extend")
