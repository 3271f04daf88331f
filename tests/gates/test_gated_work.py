"""What gated blocks count of their work: real rows and sentences, all examples, and with a gradient that closes gates."""

import gates_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from gated_blocks import (
    CONTROL,
    HARD,
    MASK,
    NORM,
    OF_DOCUMENTS,
    SOFT,
    D,
    M,
    N,
    Q,
    X,
    attention_block,
    feed_forward_block,
    float32,
    make,
    random_params,
    run,
)

from flaxnmt.encoders.fnet import FourierMixing
from flaxnmt.layers.context import Context
from flaxnmt.sharding import unbox


def test_work_is_counted_over_real_rows_alone():
    module = attention_block()
    params = float32(slow.set_gates(random_params(module), 1.0))
    use = run(module, params, float32(X), HARD)[1]
    lengths = MASK.sum(1)
    # Keys and values; queries, scores, weighted values and output (multiply-adds as 2).
    np.testing.assert_allclose(use.full, 4 * lengths * D**2 + 4 * lengths * D * (D + lengths), rtol=1e-6)


@pytest.mark.parametrize("make_block", [attention_block, feed_forward_block])
def test_work_without_an_axis_of_examples_is_that_of_one(make_block):
    module = make_block()
    params, x = float32(random_params(module)), float32(X[:1])
    mask = jnp.asarray(MASK[:1])
    expected, of_batch = run(module, params, x, Context(query_mask=mask, key_mask=mask))
    y, use = run(module, params, x[0], Context(query_mask=mask[0], key_mask=mask[0]))
    np.testing.assert_allclose(y, expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal((use.used, use.full), (of_batch.used, of_batch.full))
    everything = run(module, params, x[0], Context())[1]
    np.testing.assert_array_equal(everything.full, run(module, params, x, Context())[1].full)


@pytest.mark.parametrize("shape", [(0, Q, D), (2, 0, D)])
def test_a_batch_of_nothing_uses_nothing(shape):
    module = feed_forward_block()
    for context in (HARD, HARD.replace(skip=True)):
        empty = context.replace(query_mask=jnp.zeros(shape[:-1], bool), key_mask=None)
        y, use = run(module, float32(random_params(module)), jnp.zeros(shape), empty)
        assert y.shape == shape
        np.testing.assert_array_equal((use.used, use.full), np.zeros((2, shape[0])))


@pytest.mark.parametrize("kind", slow_but(["hierarchical"], OF_DOCUMENTS))
def test_the_work_of_documents_is_that_of_their_words_and_sentences(kind):
    """Counted of a batch it is what `flops` says of whole sentences, and padding does not add to it."""
    module = make(OF_DOCUMENTS[kind]())
    mask = np.zeros((2, 4 * N, M + 2), bool)
    mask[0, : 2 * N, :M] = mask[1, :N, :M] = True
    shapes = []
    for sentences, words in ((2 * N, M), mask.shape[1:]):
        seen = jnp.asarray(mask[:, :sentences, :words])
        context = Context(query_mask=seen, key_mask=seen, deterministic=False)
        x = jnp.ones((*seen.shape, D))

        def use(x, context=context):
            return module.init_with_output(jax.random.key(0), x, context)[0][1]

        # The work follows from masks and gates alone, and gates are a half at the beginning.
        shapes.append(jax.jit(use)(x))
    one, other = shapes
    np.testing.assert_allclose((one.used, one.full), (other.used, other.full), rtol=1e-6)
    expected = [sum(OF_DOCUMENTS[kind]().flops(D, count * M, count * M, count)) for count in (2 * N, N)]
    np.testing.assert_allclose(one.full, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "kind", slow_but(["conditional"], ["sentence", "heads", "conditional", "hierarchical"])
)
def test_closed_keys_save_keys_and_values_and_no_encoding_of_a_sentence(kind):
    module = make(OF_DOCUMENTS[kind]())
    seen = jnp.ones((1, N, M), bool)
    context = Context(query_mask=seen, key_mask=seen)
    x = jnp.ones((*seen.shape, D))
    params = unbox(jax.eval_shape(module.init, jax.random.key(0), x, context)["params"])
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape), params)
    opened, closed = (slow.set_gates(params, logit) for logit in (1.0, -1.0))
    params = float32(opened | {"key_control": closed["key_control"]})
    use = jax.jit(lambda: module.apply({"params": params}, x, context)[1])()
    words = N * M
    shared, rows = OF_DOCUMENTS[kind]().flops(D, words, words, N)
    assert (shared == 4 * words * D**2) == (kind == "sentence")
    expected = shared - 4 * words * D**2 + rows + words * (2 * CONTROL + NORM)
    np.testing.assert_allclose(use.used, [expected], rtol=1e-6)


def test_the_budget_loss_reaches_what_rows_share_however_many_are_open():
    module = make(FourierMixing())
    params = float32(random_params(module))
    # Gates a little above a half, different ones.
    params["control"] |= {"w_out": params["control"]["w_out"] / 10, "b_out": jnp.asarray([0.5])}

    def work(params, context=SOFT):
        use = run(module, params, float32(X), context.replace(capture=True))[1]
        return use.used.sum(), use

    (_, use), gradient = jax.jit(jax.value_and_grad(work, has_aux=True))(params)
    gates = np.where(MASK, use.gates["rows"][..., 0], 0)
    assert (gates.sum(1) > 1).all() and (gates.max(1) < 1).all()
    added = MASK.sum(1) * (CONTROL + NORM)
    np.testing.assert_allclose(use.used, use.full * gates.max(1) + added, rtol=1e-5)
    largest = gates.max(1)
    np.testing.assert_allclose(
        gradient["control"]["b_out"], [(use.full * largest * (1 - largest)).sum()], rtol=1e-4
    )
    _, use = work(params, HARD)
    any_on = (np.asarray(use.gates["rows"])[..., 0] * MASK).any(1)
    np.testing.assert_allclose(use.used, use.full * any_on + added, rtol=1e-6)
