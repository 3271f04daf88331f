"""The mixing layers against float64, forward and backward, padded and not, and what must not matter."""

import itertools
from functools import partial

import encoders_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but
from flax import linen as nn

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.encoders.convs2s import (
    GatedConvolution,
    convolution,
    gated_convolution,
    kernel_gradient_by_convolution,
    kernel_gradient_by_windows,
)
from flaxnmt.encoders.fnet import FourierMixing, fourier_mixing
from flaxnmt.encoders.lstm import LSTM, lstm
from flaxnmt.encoders.static_expansion import StaticExpansion, expansion_scores, normalised, static_expansion
from flaxnmt.layers.context import Context
from flaxnmt.layers.dropout import Dropout
from flaxnmt.sharding import unbox

D, LENGTHS, WIDTH = 6, (5, 3, 1), 7
X, UPSTREAM = np.random.default_rng(0).normal(size=(2, len(LENGTHS), WIDTH, D))
MASK = np.arange(WIDTH) < np.asarray(LENGTHS)[:, None]
CONTEXT = Context(query_mask=jnp.asarray(MASK), key_mask=jnp.asarray(MASK))


def expansion(**changes):
    """Module and reference."""

    def exact(params, x):
        options = {name: changes[name] for name in ("enrichment", "by_length") if name in changes}
        return slow.static_expansion(params, x, **options)

    return StaticExpansion(D, 4, **changes), exact


LAYERS = {
    "lstm": (LSTM(D), slow.lstm),
    "convs2s": (GatedConvolution(D), slow.convs2s),
    "convs2s, width 5": (GatedConvolution(D, width=5), slow.convs2s),
    "fnet": (FourierMixing(), slow.fnet),
    "static expansion, one matrix": expansion(),
    "static expansion, one set of vectors": expansion(enrichment="shared_vectors"),
    "static expansion, by length": expansion(by_length=True),
    "static expansion, vectors alone": expansion(enrichment="none"),
}

FAST = ("lstm", "convs2s", "fnet", "static expansion, one matrix")


def random_params(module, seed=1):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(X), jnp.asarray(X), CONTEXT)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) / 2, unbox(shapes.get("params", {})))


def float32(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


@partial(jax.jit, static_argnums=0)
def run(module, params, x, context=CONTEXT):
    return module.apply({"params": params}, x, x, context)


def exact_loss(function, params, x):
    """sum of UPSTREAM * output over the rows that are not padding."""
    return sum(
        np.sum(up[:length] * function(params, row[:length])) for row, up, length in zip(x, UPSTREAM, LENGTHS)
    )


@pytest.mark.parametrize("name", slow_but(FAST, LAYERS))
def test_a_layer_is_its_equation_forward_and_backward(name):
    module, exact = LAYERS[name]
    params = random_params(module)
    y, backward = jax.vjp(jax.jit(lambda p, x: run(module, p, x)), *float32((params, X)))
    for row, x, length in zip(y, X, LENGTHS):
        np.testing.assert_allclose(row[:length], exact(params, x[:length]), rtol=1e-5, atol=2e-5)
    d_params, d_x = backward(float32(UPSTREAM * MASK[..., None]))
    numeric = reference.numeric_gradient(lambda x: exact_loss(exact, params, x), X)
    np.testing.assert_allclose(d_x, numeric, rtol=1e-3, atol=5e-4)

    def compare(path, gradient, value):
        def loss(v):
            return exact_loss(
                exact,
                jax.tree_util.tree_map_with_path(lambda p, leaf: v if p == path else leaf, params),
                X,
            )

        numeric = reference.numeric_gradient(loss, value)
        np.testing.assert_allclose(
            gradient, numeric, rtol=1e-3, atol=1e-3, err_msg=jax.tree_util.keystr(path)
        )
        assert np.abs(numeric).max() > 1e-3

    jax.tree_util.tree_map_with_path(compare, d_params, params)


@pytest.mark.parametrize("name", slow_but(FAST, LAYERS))
def test_padding_changes_nothing_whatever_lies_there(name):
    module, _ = LAYERS[name]
    params = float32(random_params(module))
    junk = np.where(MASK[..., None], X, 1e3)
    wide = np.concatenate([junk, np.full((len(LENGTHS), 4, D), -50.0)], axis=1)
    mask = jnp.asarray(np.concatenate([MASK, np.zeros((len(LENGTHS), 4), bool)], axis=1))
    plain = run(module, params, float32(X), CONTEXT)
    for x, context in ((junk, CONTEXT), (wide, Context(query_mask=mask, key_mask=mask))):
        y = np.asarray(run(module, params, float32(x), context))[:, :WIDTH]
        np.testing.assert_allclose(y[MASK], plain[MASK], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", slow_but(FAST, LAYERS))
def test_what_is_no_number_at_padding_reaches_no_output(name):
    module, _ = LAYERS[name]
    params = float32(random_params(module))
    found, expected = (
        run(module, params, float32(np.where(MASK[..., None], X, value)))[MASK] for value in (np.nan, 0.0)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("forget_bias", [0.0, -2.0])
def test_a_stack_of_recurrences_delays_what_it_reads_by_its_forget_bias(forget_bias):
    module = LSTM(D, forget_bias)
    params = module.init(jax.random.key(0), jnp.zeros((1, 9, D)), jnp.zeros((1, 9, D)), Context())["params"]
    bias = np.asarray(unbox(params)["bias"]).reshape(4, D)
    np.testing.assert_array_equal(bias, np.outer([0, 1, 0, 0], np.full(D, forget_bias)))
    # Of an impulse, with gates that know nothing of it: the mean delay of what cells keep.
    x = np.zeros((40, 1, 4 * D), np.float32)
    x[:, :, D : 2 * D] = forget_bias
    x[0, :, 2 * D : 3 * D] = 0.01
    h = np.asarray(lstm(jnp.asarray(x), jnp.zeros((D, 4 * D))))[:, 0, 0]
    np.testing.assert_allclose((np.arange(40) * h).sum() / h.sum(), np.exp(forget_bias), rtol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(0, WIDTH, D), (2, 0, D)])
@pytest.mark.parametrize("name", slow_but(FAST, LAYERS))
def test_a_batch_of_nothing_stays_one(name, shape, masked):
    module, _ = LAYERS[name]
    mask = jnp.ones(shape[:-1], bool) if masked else None
    params, x = float32(random_params(module)), jnp.ones(shape)
    context = Context(query_mask=mask, key_mask=mask)
    gradient = jax.grad(lambda p: run(module, p, x, context).sum())(params)
    assert run(module, params, x, context).shape == shape
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_the_gradient_of_a_kernel_is_the_same_on_every_platform():
    rng = np.random.default_rng(0)
    for length, width in ((7, 3), (2, 5), (1, 1)):
        x, kernel, upstream = (
            rng.normal(size=shape) for shape in ((3, length, D), (width, D, 4), (3, length, 4))
        )
        exact = np.zeros(kernel.shape)
        for tap, row in itertools.product(range(width), range(length)):
            read = row + tap - width // 2
            if 0 <= read < length:
                exact[tap] += x[:, read].T @ upstream[:, row]
        for gradient in (kernel_gradient_by_windows, kernel_gradient_by_convolution):
            found = gradient(*float32((x, kernel, upstream)))
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_a_kernel_without_a_middle_is_refused():
    x = jnp.ones((1, 3, D))
    for function in (convolution, partial(gated_convolution, bias=jnp.zeros(2 * D), mask=None)):
        with pytest.raises(ValueError, match="a kernel of width 2 has no row in its middle"):
            function(x, kernel=jnp.ones((2, D, 2 * D)))


@pytest.mark.parametrize("name", slow_but(FAST, [name for name in LAYERS if "convs2s" not in name]))
def test_a_gap_is_as_if_its_rows_were_not_there(name):
    module, _ = LAYERS[name]
    params, there = float32(random_params(module)), np.asarray([1, 1, 0, 1, 0, 0, 1], bool)
    x, upstream = float32((X[:1], UPSTREAM[:1]))
    gaps = Context(query_mask=jnp.asarray(there[None]), key_mask=jnp.asarray(there[None]))
    y, backward = jax.vjp(lambda p, x: run(module, p, x, gaps), params, jnp.where(there[:, None], x, 1e3))
    expected, without = jax.vjp(lambda p, x: run(module, p, x, Context()), params, x[:, there])
    np.testing.assert_allclose(y[:, there], expected, rtol=1e-5, atol=2e-5)
    (d_params, d_x), (e_params, e_x) = backward(upstream * there[:, None]), without(upstream[:, there])
    np.testing.assert_allclose(d_x[:, there], e_x, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(d_x[:, ~there], 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-4), d_params, e_params)


def test_a_gap_keeps_its_place_in_a_convolution():
    module, _ = LAYERS["convs2s"]
    params, x = float32(random_params(module)), float32(X[:1])
    there = jnp.ones((1, WIDTH), bool).at[0, 3].set(False)
    y = run(module, params, x, Context(query_mask=there, key_mask=there))
    expected = run(module, params, x.at[0, 3].set(0), Context())
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", slow_but(FAST, LAYERS))
def test_leading_axes_are_rows_of_a_batch(name):
    module, _ = LAYERS[name]
    params = float32(random_params(module))
    flat = run(module, params, float32(X))
    documents = Context(query_mask=CONTEXT.query_mask[None], key_mask=CONTEXT.key_mask[None])
    np.testing.assert_allclose(
        run(module, params, float32(X)[None], documents)[0], flat, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", slow_but(FAST, [name for name in LAYERS if name != "fnet"]))
def test_bfloat16_stays_near_float32_forward_and_backward(name):
    module, _ = LAYERS[name]

    def of(dtype):
        layer = module.clone(dtype=dtype)
        y, backward = jax.vjp(partial(run, layer), *float32((random_params(module), X)))
        assert y.dtype == dtype
        y = jnp.where(MASK[..., None], y, 0)
        return y, backward((UPSTREAM * MASK[..., None]).astype(dtype))

    def compare(exact, rough):
        apart = np.abs(np.asarray(rough, np.float32) - exact)
        # A dozen roundings to 8 bits.
        assert apart.max() < 12 * 2**-8 * np.abs(exact).max()

    jax.tree.map(compare, *(jax.tree.map(np.asarray, of(dtype)) for dtype in (jnp.float32, jnp.bfloat16)))


def test_fnet_transforms_bfloat16_in_float32():
    rows = float32(X).astype(jnp.bfloat16)
    y = run(LAYERS["fnet"][0], {}, rows)
    exact = fourier_mixing(rows.astype(jnp.float32), CONTEXT.key_mask)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("name", ("lstm", "convs2s", "fnet", "static expansion, one matrix"))
def test_a_memory_of_another_length_is_refused(name):
    module, _ = LAYERS[name]
    params = float32(random_params(module))
    with pytest.raises(
        ValueError, match=f"one output for each row of its memory, which are {WIDTH}, and is asked for 2"
    ):
        module.apply({"params": params}, float32(X)[:, :2], float32(X), Context())


def test_expansions_that_there_are_not_are_refused():
    for changes, said in (
        ({"vectors": 0}, "0 expansion vectors: give at least 1"),
        ({"enrichment": "both"}, "no enrichment is called 'both'; there are shared_projection"),
    ):
        module = LAYERS["static expansion, one matrix"][0].clone(**changes)
        with pytest.raises(ValueError, match=said):
            module.init(jax.random.key(0), float32(X))


def sees(module, length=9, layers=1, context=None):
    """Which rows an output depends on, [output, input], through so many layers with skip connections."""
    params = float32(random_params(module))
    x = float32(np.random.default_rng(3).normal(size=(length, D)))

    def stack(x):
        for _ in range(layers):
            x = x + module.apply({"params": params}, x[None], context=context)[0]
        return x

    jacobian = jax.jacrev(stack)(x)
    return np.abs(np.asarray(jacobian)).max((1, 3)) > 1e-7


def test_receptive_fields():
    everywhere = np.ones((9, 9), bool)
    np.testing.assert_array_equal(sees(MultiHeadAttention(D, 2)), everywhere)
    away = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    np.testing.assert_array_equal(sees(LAYERS["lstm"][0]), np.tril(everywhere))
    for layers in (1, 3):
        np.testing.assert_array_equal(sees(LAYERS["convs2s"][0], layers=layers), away <= layers)
    np.testing.assert_array_equal(sees(LAYERS["convs2s, width 5"][0]), away <= 2)
    for context in (None, Context(key_mask=jnp.ones((1, 9), bool))):
        np.testing.assert_array_equal(sees(LAYERS["fnet"][0], context=context), everywhere)
    np.testing.assert_array_equal(sees(LAYERS["static expansion, one matrix"][0]), everywhere)


FOURIER = [(6, 5), (5, 6), (8, 8), (1, 3), (2, 1)]


@pytest.mark.parametrize("d_model, length", slow_but(FOURIER[:2], FOURIER))
def test_fourier_mixing_is_that_of_numpy_with_and_without_a_mask(d_model, length):
    x = np.random.default_rng(0).normal(size=(2, length, d_model))
    exact = np.fft.fft2(x).real
    np.testing.assert_allclose(fourier_mixing(float32(x)), exact, rtol=1e-5, atol=2e-5)
    mask = jnp.ones((2, length), bool)
    np.testing.assert_allclose(fourier_mixing(float32(x), mask), exact, rtol=1e-5, atol=2e-5)


def test_a_long_sequence_is_transformed_as_exactly_as_a_short_one():
    x = np.random.default_rng(0).normal(size=(1, 600, 4))
    y = fourier_mixing(float32(x), jnp.ones((1, 600), bool))
    np.testing.assert_allclose(y, np.fft.fft2(x).real, rtol=1e-4, atol=2e-3)


def test_padding_within_a_sequence_is_left_out_of_the_transform():
    mask = np.asarray([[1, 0, 1, 1, 0, 1, 0]], bool)
    y = fourier_mixing(float32(X[:1]), jnp.asarray(mask))
    np.testing.assert_allclose(y[mask], np.fft.fft2(X[0][mask[0]]).real, rtol=1e-5, atol=2e-5)
    np.testing.assert_array_equal(y[~mask], 0)


def test_rows_of_the_expansion_sum_to_one_and_a_row_of_zeros_stays_zero():
    z = jnp.asarray([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [1e-3, 1e-3, 0.0]])
    sums = normalised(z).sum(-1)
    np.testing.assert_allclose(sums, [1, 0, 1], rtol=1e-5)


def test_scores_of_an_expansion_are_float32():
    queries, key = jnp.ones((4, D), jnp.bfloat16), jnp.ones((5, D), jnp.bfloat16)
    assert jax.eval_shape(expansion_scores, queries, key).dtype == jnp.float32
    pair = key, key
    assert jax.eval_shape(static_expansion, key, pair, key, queries, queries).dtype == jnp.bfloat16


def test_the_expansion_as_a_function_is_its_equation_and_hides_what_is_no_number_at_padding():
    rng = np.random.default_rng(2)
    key, first, second, selector = rng.normal(size=(4, *X.shape))
    queries, bias = rng.normal(size=(2, 4, D))
    mask = jnp.asarray(MASK)

    @jax.jit
    def of(key, first, second):
        return static_expansion(key, (first, second), *float32((selector, queries, bias)), mask)

    junk = (np.where(MASK[..., None], rows, np.nan) for rows in (key, first, second))
    y, backward = jax.vjp(of, *float32(tuple(junk)))

    def exact(key, first, second, i):
        return slow.expansion(key, (first, second), selector[i, : LENGTHS[i]], queries, bias)

    def loss(key, first, second):
        return sum(
            np.sum(UPSTREAM[i, :n] * exact(key[i, :n], first[i, :n], second[i, :n], i))
            for i, n in enumerate(LENGTHS)
        )

    for i, n in enumerate(LENGTHS):
        expected = exact(key[i, :n], first[i, :n], second[i, :n], i)
        np.testing.assert_allclose(y[i, :n], expected, rtol=1e-4, atol=2e-5)
    gradients = backward(float32(np.where(MASK[..., None], UPSTREAM, 0)))
    numerics = (
        reference.numeric_gradient(lambda rows: loss(rows, first, second), key),
        reference.numeric_gradient(lambda rows: loss(key, rows, second), first),
        reference.numeric_gradient(lambda rows: loss(key, first, rows), second),
    )
    for gradient, numeric in zip(gradients, numerics):
        np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=5e-4)


def test_scores_that_are_all_of_one_sign_leave_the_other_expansion_empty():
    """L > 0 everywhere: the negative half has no weight anywhere, so that its gathered rows are zeros, not NaN."""
    ones = jnp.ones((1, 4, D))
    selector = jnp.full((1, 4, D), -1e9)
    queries, bias = jnp.ones((3, D)), jnp.full((3, D), 5.0)

    def of(key):
        return static_expansion(key, (ones, 2 * ones), selector, queries, bias)

    # sigma(S) = 0 takes the second half alone, which is empty...
    np.testing.assert_array_equal(of(ones), 0)
    # ...and with scores below zero whole: V_2 + E_B.
    np.testing.assert_allclose(of(-ones), 7, rtol=1e-6)
    gradient = jax.grad(lambda key: of(key).sum())(jnp.zeros((1, 4, D)))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", slow_but(FAST, LAYERS))
def test_an_empty_sentence_is_no_trouble(name):
    module, _ = LAYERS[name]
    params = float32(random_params(module))
    empty = Context(query_mask=jnp.zeros(MASK.shape, bool), key_mask=jnp.zeros(MASK.shape, bool))
    y, gradient = jax.value_and_grad(lambda x: run(module, params, x, empty).sum())(float32(X))
    assert np.isfinite(y) and np.isfinite(gradient).all()


def in_training(module, params, x):
    """The output with dropout, and by what each dropout multiplied what it was given, in their order."""
    factors = []

    def record(call, args, kwargs, context):
        y = call(*args, **kwargs)
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            given, kept = (np.asarray(value, np.float64) for value in (args[0], y))
            factors.append(np.divide(kept, given, out=np.ones_like(kept), where=given != 0))
        return y

    context, rngs = Context(deterministic=False), {"dropout": jax.random.key(0)}
    with nn.intercept_methods(record):
        y = module.apply({"params": params}, x, x, context, rngs=rngs)
    for factor in factors:
        # 1 where zero was given, of which nothing shows.
        assert {0, 2} <= set(np.unique(factor.round(3))) <= {0, 1, 2}
    assert len({factor.tobytes() for factor in factors}) == len(factors)
    return y, factors


def test_an_expansion_drops_scores_once_for_both_directions_and_each_of_what_they_sum():
    module, exact = expansion(dropout=0.5)
    params = random_params(module)
    y, factors = in_training(module, *float32((params, X)))
    assert len(factors) == 5
    for row, x, of_scores, *of_sums in zip(y, X, *factors):
        dropped = of_scores, of_sums[:2], of_sums[2:]
        expected = slow.static_expansion(params, x, dropped=dropped)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=2e-5)


def test_a_convolution_drops_what_it_reads():
    module = GatedConvolution(D, dropout=0.5)
    params = random_params(module)
    y, (factor,) = in_training(module, *float32((params, X)))
    for row, x in zip(y, X * factor):
        np.testing.assert_allclose(row, slow.convs2s(params, x), rtol=1e-5, atol=2e-5)


def test_an_even_kernel_is_refused():
    with pytest.raises(ValueError, match="a kernel of width 4 has no row in its middle"):
        GatedConvolution(D, width=4).init(jax.random.key(0), jnp.asarray(X), jnp.asarray(X), CONTEXT)
