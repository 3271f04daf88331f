"""The equation in two readings, and the module against float64 with its parameters."""

from functools import partial

import conditional_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but

from flaxnmt.attention.conditional import ConditionalAttention, conditional_attention_dense
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.selection import select_sentences
from flaxnmt.attention.source2token import MeanPooling, Source2Token
from flaxnmt.layers.context import Context
from flaxnmt.sharding import unbox

B, N, M, D, H, K = 2, 4, 3, 6, 2, 3
L = N * M
MASK = np.arange(M) < np.array([[3, 1, 2, 3], [2, 3, 0, 0]])[..., None]
OWN = np.tile(np.arange(L) // M, (B, 1))


def make_params(seed=0):
    rng = np.random.default_rng(seed)
    inward = {
        name: rng.normal(size=(D, H, K))
        for name in ("query", "key", "value", "selector_query", "selector_key")
    }
    return {**inward, "out": rng.normal(size=(H, K, D))}


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def make_x(seed=3):
    return np.random.default_rng(seed).normal(size=(B, N, M, D))


def make_module(t=2, encoder=MeanPooling, **options):
    return ConditionalAttention(D, H, t=t, sentence_encoder=encoder(D), **{"dispatched": True, **options})


def project(x, kernel):
    return np.einsum("bld,dhk->bhlk", x, kernel)


def expected_parts(params, x, memory, t, own=None):
    """(arguments of the reference, its choices) for sentences encoded by their mean."""
    flat = memory.reshape(B, -1, D)
    encodings = (memory * MASK[..., None]).sum(2) / np.maximum(MASK.sum(-1), 1)[..., None]
    query, selector_query = project(x, params["query"]), project(x, params["selector_query"])
    key, value = (project(flat, params[name]).reshape(B, H, N, M, K) for name in ("key", "value"))
    selector_key = project(encodings, params["selector_key"])
    choices = slow.chosen(slow.relevance(selector_query, selector_key), MASK.any(-1), t, own)
    return (query, key, value, MASK, selector_query, selector_key), choices


def expected_output(params, x, memory, t, own=None):
    parts, choices = expected_parts(params, x, memory, t, own)
    return np.einsum("bhlk,hkd->bld", slow.conditional(*parts, slow.kept(choices, N)), params["out"])


def test_only_the_selected_words_equal_all_words_with_masked_scores():
    parts, choices = expected_parts(make_params(), make_x().reshape(B, L, D), make_x(4), t=2)
    literal = slow.conditional(*parts, slow.kept(choices, N))
    selected = slow.over_selected_words(*parts, choices)
    np.testing.assert_allclose(selected, literal, atol=1e-12)
    query, key, value, mask, selector_query, selector_key = parts
    selection = select_sentences(*float32((selector_query, selector_key)), jnp.asarray(mask.any(-1)), 2)
    ours = jax.jit(conditional_attention_dense)(*float32((query, key, value)), jnp.asarray(mask), selection)
    np.testing.assert_allclose(ours, selected, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    slow_but(
        [{"t": 1, "always_keep_own": True}],
        [{}, {"dispatched": False}, {"t": 1, "always_keep_own": True}, {"t": 9}],
    ),
    ids=str,
)
def test_module_is_float64_with_its_parameters(options):
    module, params, x = make_module(**options), make_params(), make_x()
    upstream = make_x(5)
    t, own = options.get("t", 2), OWN if options.get("always_keep_own") else None
    context = Context(key_mask=jnp.asarray(MASK), capture=True)

    @jax.jit
    def ours(params, x):
        shared = module.apply({"params": params}, x, context, method="keys")
        y, selection = module.apply({"params": params}, x, shared, context, method="rows")
        return (y * upstream).sum(), (y, selection)

    (_, (y, selection)), (d_params, d_x) = jax.value_and_grad(ours, (0, 1), has_aux=True)(
        *float32((params, x))
    )
    expected = expected_output(params, x.reshape(B, L, D), x, t, own).reshape(x.shape)
    np.testing.assert_allclose(y, expected, atol=2e-5)
    assert selection.index.shape == (B, H, L, min(t + (own is not None), N))
    if own is not None:
        seen = np.repeat(MASK.any(-1), M, axis=-1)
        assert np.all((selection.index[..., 0] == OWN[:, None]) | ~seen[:, None])

    def loss(params, x):
        return np.sum(upstream.reshape(B, L, D) * expected_output(params, x.reshape(B, L, D), x, t, own))

    numeric = reference.numeric_gradient(lambda v: loss(params, v), x)
    np.testing.assert_allclose(d_x, numeric, atol=1e-5 * np.abs(numeric).max())
    for name in ("value", "out", "selector_query", "selector_key"):
        numeric = reference.numeric_gradient(lambda w, n=name: loss(params | {n: w}, x), params[name])
        scale = max(1, np.abs(numeric).max())
        np.testing.assert_allclose(d_params[name], numeric, atol=1e-5 * scale, err_msg=name)


def selector_gradient(**options):
    module, params, x = make_module(**options), float32(make_params()), float32(make_x())

    def loss(params):
        y = module.apply({"params": params}, x, x, Context(key_mask=jnp.asarray(MASK)))
        return (y * float32(make_x(5))).sum()

    return np.abs(jax.jit(jax.grad(loss))(params)["selector_query"]).max()


@pytest.mark.slow
def test_selector_learns_nothing_from_one_choice_but_from_two():
    one, two = selector_gradient(t=1), selector_gradient(t=2)
    assert one < 1e-5 * two
    assert selector_gradient(t=1, always_keep_own=True) > 1e-2 * two


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_sentence_that_a_word_did_not_select_says_nothing_to_it(dispatched):
    """The choice is of the layer itself, from encodings of its own sentences, before and after the change."""
    module, params = make_module(dispatched=dispatched), float32(make_params())
    x, changed = jnp.asarray(make_x(), jnp.float32), 1
    # Another order of its words as well: their mean, by which it is chosen, moves little.
    other = x.at[:, changed].set(x[:, changed, ::-1] * 1.1)

    @jax.jit
    def run(memory):
        context = Context(key_mask=jnp.asarray(MASK), capture=True)
        shared = module.apply({"params": params}, memory, context, method="keys")
        return module.apply({"params": params}, x, shared, context, method="rows")

    (before, one), (after, two) = run(x), run(other)
    chosen = (one.index == changed) | (two.index == changed)
    not_selected = np.asarray(~chosen.any((1, 3))).reshape(MASK.shape)
    assert 0.1 < not_selected[0].mean() < 0.9
    before, after = np.asarray(before), np.asarray(after)
    np.testing.assert_allclose(after[not_selected], before[not_selected], rtol=1e-6, atol=1e-6)
    selected = ~not_selected[0]
    assert np.median(np.abs(after - before)[0][selected].max(-1)) > 1e-3


def test_rows_of_any_shape_are_the_rows_of_a_document():
    module, params, x = make_module(always_keep_own=True), float32(make_params()), float32(make_x())
    context = Context(key_mask=jnp.asarray(MASK))
    bound = module.bind({"params": params})

    @jax.jit
    def both_shapes(x):
        shared = bound.keys(x, context)
        return bound.rows(x, shared, context)[0], bound.rows(x.reshape(B * N, M, D), shared, context)[0]

    y, flat = both_shapes(x)
    assert y.shape == x.shape
    np.testing.assert_allclose(flat.reshape(x.shape), y, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="7 rows do not divide by 4 sentences"):
        bound.rows(x.reshape(B, L, D)[:, :7], bound.keys(x, context), context)


@pytest.mark.slow
def test_any_subset_of_rows_is_part_of_the_whole():
    module, params, x = make_module(), float32(make_params()), float32(make_x())
    context = Context(key_mask=jnp.asarray(MASK))
    bound = module.bind({"params": params})

    @jax.jit
    def subset_and_whole(x):
        shared = bound.keys(x, context)
        return bound.rows(x.reshape(B, L, D)[:, 2:7], shared, context)[0], bound.rows(x, shared, context)[0]

    subset, whole = subset_and_whole(x)
    np.testing.assert_allclose(subset, whole.reshape(B, L, D)[:, 2:7], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_dropout_has_the_same_bits_in_both_forms_and_is_unbiased():
    params, x = float32(make_params()), float32(make_x())
    context = Context(key_mask=jnp.asarray(MASK), deterministic=False)

    @partial(jax.jit, static_argnums=1)
    def draw(keys, dispatched):
        module = make_module(dropout=0.3, dispatched=dispatched)

        def one(key):
            return module.apply({"params": params}, x, x, context, rngs={"dropout": key})

        return jax.vmap(one)(keys)

    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = draw(keys, True)
    np.testing.assert_allclose(drawn[:9], draw(keys[:9], False), atol=1e-5)
    exact = make_module(dispatched=False).apply({"params": params}, x, x, Context(key_mask=jnp.asarray(MASK)))
    deviation = drawn.std(0) / np.sqrt(2000)
    assert deviation.max() > 1e-3
    assert np.max(np.abs(drawn.mean(0) - exact) / (deviation + 1e-6)) < 4.5


@pytest.mark.slow
def test_parameters_of_a_sentence_model_serve():
    x = float32(make_x())
    shapes = jax.eval_shape(make_module(encoder=Source2Token).init, jax.random.key(0), x, x, Context())[
        "params"
    ]
    plain = jax.eval_shape(MultiHeadAttention(D, H).init, jax.random.key(0), x[:, 0], x[:, 0], Context())[
        "params"
    ]
    assert set(shapes) == {*plain, "selector_query", "selector_key", "sentence_encoder"}
    assert {name: shapes[name] for name in plain} == plain
    assert shapes["selector_key"] == plain["key"]
    drawn = unbox(make_module().init(jax.random.key(0), x, x, Context())["params"])
    # Each parameter is drawn from the name of its own path.
    alone = unbox(MultiHeadAttention(D, H).init(jax.random.key(0), x[:, 0], x[:, 0], Context())["params"])
    jax.tree.map(np.testing.assert_array_equal, {name: drawn[name] for name in alone}, alone)


def test_one_sentence_is_multi_head_attention():
    params, x = float32(make_params()), float32(make_x())[:, :1]
    mask = jnp.asarray(MASK)[:, :1]
    y = jax.jit(make_module(t=3).apply)({"params": params}, x, x, Context(key_mask=mask))
    plain = MultiHeadAttention(D, H).apply(
        {"params": {name: params[name] for name in ("query", "key", "value", "out")}},
        x[:, 0], x[:, 0], Context(key_mask=mask[:, 0]),
    )  # fmt: skip
    np.testing.assert_allclose(y[:, 0], plain, atol=1e-5)


def test_bfloat16_module_keeps_float32_relevance():
    module, params, x = make_module(dtype=jnp.bfloat16), make_params(), make_x()
    context = Context(key_mask=jnp.asarray(MASK), capture=True)
    bound = module.bind({"params": float32(params)})
    y, selection = jax.jit(lambda x: bound.rows(x, bound.keys(x, context), context))(float32(x))
    assert y.dtype == jnp.bfloat16 and selection.relevance.dtype == jnp.float32
    assert np.all(np.isfinite(np.asarray(y, np.float32)))


def test_work_grows_with_the_choices_and_not_with_the_document():
    shared, rows = make_module(encoder=Source2Token).flops(D, queries=L, keys=L, sentences=N)
    plain = MultiHeadAttention(D, H)
    assert shared == plain.flops(D, L, L)[0] + 2 * N * D**2 + Source2Token(D).flops(N, M)
    assert rows == plain.flops(D, L, 2 * M)[1] + L * (2 * D**2 + 2 * N * D)
    assert make_module(dispatched=False).flops(D, L, L, N)[1] - rows == 4 * L * (N - 2) * M * D


def test_scores_between_all_words_of_a_long_document_are_not_kept():
    """Few sentences, but one so long that all of them are padded to a thousand words."""
    sentences, words = 8, 1024
    module = make_module(t=4, dispatched=None)
    x = jax.ShapeDtypeStruct((1, sentences, words, D), jnp.float32)
    params = jax.eval_shape(module.init, jax.random.key(0), x, x, Context())

    def temporaries(dispatched):
        module = make_module(t=4, dispatched=dispatched)
        step = jax.jit(lambda params, x: module.apply(params, x, x, Context()))
        return step.lower(params, x).compile().memory_analysis().temp_size_in_bytes

    scores = 4 * H * (sentences * words) ** 2
    assert temporaries(None) < 0.6 * scores < scores < temporaries(False)
    counts = D, sentences * words, sentences * words, sentences
    assert module.flops(*counts) == make_module(t=4, dispatched=True).flops(*counts)
