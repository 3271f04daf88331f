"""Relative and rotary positions against float64 loops over pairs: forward, gradients, ids of every kind."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import relative_reference as slow
from cases import slow_but
from jax.extend import core

from flaxnmt.attention.distances import of_pairs, sums_by_distance
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import AttentionPositions, ShawPositions, TransformerXLPositions
from flaxnmt.attention.rotary import RotaryPositions
from flaxnmt.gates.block import GatedBlock
from flaxnmt.layers.context import Context, Places, positions_of
from flaxnmt.sharding import unbox

B, T, D, H, K, CLIP = 2, 5, 8, 2, 4, 2
KINDS = {
    "shaw": ShawPositions(K, CLIP),
    "transformer_xl": TransformerXLPositions(D, H),
    "rotary": RotaryPositions(),
}
LENGTHS = np.array([5, 3])
SEEN = np.arange(T) < LENGTHS[:, None]
# Words of documents with a gap, and slots of a cache of two hypotheses, filled in turn.
IDS = {"gap": np.array([[0, 1, 4, 5, 9], [2, 3, 3, 7, 7]]), "slots": np.tile(np.arange(T) // 2, (B, 1))}


def contexts():
    in_order = np.tile(np.arange(T), (B, 1))
    padding = {"query_mask": jnp.asarray(SEEN), "key_mask": jnp.asarray(SEEN)}
    ids = dict.fromkeys(("query_positions", "key_positions"), positions_of((T,)))
    bias = np.random.default_rng(9).normal(size=(B, 1, T, T))
    rows = np.broadcast_to(SEEN[:, None], (B, T, T))
    found = {
        "consecutive": (Context(**padding), in_order, rows, 0.0),
        "looked_up": (Context(**padding, **ids), in_order, rows, 0.0),
        "causal": (Context(**ids, causal=True, consecutive=True), in_order, np.tile(np.tri(T, dtype=bool), (B, 1, 1)), 0.0),
        "bias": (Context(**padding, bias=jnp.asarray(bias, jnp.float32)), in_order, rows, bias[:, 0]),
    }  # fmt: skip
    for name, at in IDS.items():
        given = dict.fromkeys(("query_positions", "key_positions"), jnp.asarray(at))
        found[name] = (Context(**padding, **given, span=10), at, rows, 0.0)
    return found


CONTEXTS = contexts()


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def make_module(kind, **options):
    return MultiHeadAttention(D, H, positions=KINDS[kind], **options)


def random_params(module, seed=0):
    rng = np.random.default_rng(seed)
    x = jnp.zeros((1, T, D))
    shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), x, x, Context())["params"])
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) / 2, shapes)


X, UPSTREAM = np.random.default_rng(3).normal(size=(2, B, T, D))


def expected(kind, params, x, ids, seen, added):
    added = np.broadcast_to(added, (B, T, T))
    return np.stack(
        [slow.multi_head(kind, params, x[b], x[b], ids[b], ids[b], seen[b], added[b]) for b in range(B)]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_float64_for_ids_of_every_kind(kind):
    module = make_module(kind)
    params = random_params(module)
    ours = jax.jit(lambda params, x, context: module.apply({"params": params}, x, x, context))
    for name, (context, *facts) in CONTEXTS.items():
        y = ours(*float32((params, X)), context)
        np.testing.assert_allclose(y, expected(kind, params, X, *facts), atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "kind, name",
    slow_but(
        [("shaw", "gap"), ("transformer_xl", "consecutive"), ("rotary", "gap")],
        itertools.product(KINDS, ("consecutive", "gap")),
    ),
)
def test_gradients_are_those_of_float64(kind, name):
    module = make_module(kind)
    params = random_params(module)

    @partial(jax.jit, static_argnums=2)
    def ours(params, x, name):
        def loss(params, x):
            return (module.apply({"params": params}, x, x, CONTEXTS[name][0]) * UPSTREAM).sum()

        return jax.grad(loss, (0, 1))(params, x)

    d_params, d_x = ours(*float32((params, X)), name)

    def loss(params, x, facts=CONTEXTS[name][1:]):
        return np.sum(UPSTREAM * expected(kind, params, x, *facts))

    numeric = reference.numeric_gradient(lambda x: loss(params, x), X)
    np.testing.assert_allclose(d_x, numeric, atol=1e-5 * np.abs(numeric).max())
    for part, leaf in params.get("positions", {}).items():
        numeric = reference.numeric_gradient(
            lambda w, n=part: loss(params | {"positions": params["positions"] | {n: w}}, X), leaf
        )
        ours_of_it = d_params["positions"][part]
        np.testing.assert_allclose(ours_of_it, numeric, atol=1e-5 * np.abs(numeric).max(), err_msg=part)
    numeric = reference.numeric_gradient(lambda w: loss(params | {"key": w}, X), params["key"])
    np.testing.assert_allclose(d_params["key"], numeric, atol=1e-5 * np.abs(numeric).max())


@pytest.mark.parametrize("kind", slow_but(["transformer_xl"], KINDS))
def test_bfloat16_is_float64_to_its_precision_with_float32_parameters(kind):
    parts = {"rotary": RotaryPositions(), "shaw": ShawPositions(K, CLIP, dtype=jnp.bfloat16)}
    positions = parts.get(kind, TransformerXLPositions(D, H, dtype=jnp.bfloat16))
    module = MultiHeadAttention(D, H, dtype=jnp.bfloat16, positions=positions)
    params = random_params(make_module(kind))
    context, *facts = CONTEXTS["consecutive"]
    y = module.apply({"params": float32(params)}, *float32((X, X)), context)
    exact = expected(kind, params, X, *facts)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=3e-2 * np.abs(exact).max())
    fresh = jax.eval_shape(module.init, jax.random.key(0), *float32((X, X)), context)
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}


SHIFTS = [(4, 4, 7), (1, 6, 5), (3, 5, 1), (4, 4, 3), (4, 4, 13), (6, 2, 5)]


@pytest.mark.parametrize("queries, keys, columns", slow_but(SHIFTS[:1], SHIFTS))
def test_shifting_is_looking_up_and_sums_are_its_transpose(queries, keys, columns):
    rng = np.random.default_rng(0)
    by_distance, weights = (
        jnp.asarray(rng.normal(size=(2, 3, queries, n)), jnp.float32) for n in (columns, keys)
    )
    consecutive = Places(positions_of((queries,)), positions_of((keys,)), keys, consecutive=True)
    pairs = of_pairs(by_distance, consecutive)
    for i, j in np.ndindex(queries, keys):
        column = np.clip(j - i, -(columns // 2), columns // 2) + columns // 2
        np.testing.assert_array_equal(pairs[..., i, j], by_distance[..., i, column])
    for places in (consecutive, consecutive.replace(consecutive=False)):
        np.testing.assert_array_equal(of_pairs(by_distance, places), pairs)
        sums = sums_by_distance(weights, places, columns)
        np.testing.assert_allclose((sums * by_distance).sum(), (weights * pairs).sum(), rtol=1e-5, atol=1e-5)


def sizes_of_values(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr)
        ):
            if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
                yield from sizes_of_values(getattr(value, "jaxpr", value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("consecutive", [True, False])
def test_nothing_of_the_size_of_pairs_times_features_is_made(kind, consecutive):
    length, module = 64, make_module(kind)
    ids = dict.fromkeys(("query_positions", "key_positions"), positions_of((length,)))
    context = Context(**ids, consecutive=consecutive)
    x = jax.ShapeDtypeStruct((1, length, D), jnp.float32)
    params = float32(random_params(module))
    loss = jax.grad(lambda params, x: (module.apply({"params": params}, x, x, context) ** 2).sum(), (0, 1))
    assert max(sizes_of_values(jax.make_jaxpr(loss)(params, x).jaxpr)) <= 2 * H * length * (length + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_shift_of_all_positions_changes_nothing(kind):
    module = make_module(kind)
    params = float32(random_params(module))
    ours = jax.jit(lambda context: module.apply({"params": params}, *float32((X, X)), context))
    ids = jnp.asarray(IDS["gap"])
    here, there, stretched = (
        ours(Context(query_positions=at, key_positions=at, span=40)) for at in (ids, ids + 30, 3 * ids)
    )
    np.testing.assert_allclose(there, here, atol=2e-5)
    assert np.abs(stretched - here).max() > 1e-2


@pytest.mark.parametrize("kind", slow_but(["transformer_xl"], KINDS))
def test_padding_and_any_subset_of_the_rows_change_nothing(kind):
    module = make_module(kind)
    bound = module.bind({"params": float32(random_params(module))})
    at = jnp.asarray(IDS["gap"])
    context = Context(key_mask=jnp.asarray(SEEN), query_positions=at, key_positions=at, span=10)
    x = jnp.asarray(X, jnp.float32)
    y, shared = bound(x, x, context), bound.keys(x, context)
    some, weights = bound.rows(x[:, 3:], shared, context.replace(query_positions=at[:, 3:], capture=True))
    np.testing.assert_allclose(some, y[:, 3:], rtol=1e-5, atol=1e-6)
    assert weights.shape == (B, H, 2, T)
    wide = jnp.pad(x, ((0, 0), (0, 2), (0, 0)), constant_values=20.0)
    ids = np.pad(IDS["gap"], ((0, 0), (0, 2)), constant_values=3)
    padded = Context(
        key_mask=jnp.pad(jnp.asarray(SEEN), ((0, 0), (0, 2))), query_positions=jnp.asarray(ids),
        key_positions=jnp.asarray(ids), span=10,
    )  # fmt: skip
    np.testing.assert_allclose(bound(wide, wide, padded)[:, :T], y, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_behind_gates_skipping_equals_masking(kind):
    module = GatedBlock(D, (make_module(kind),), 3)
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(B, 9, D)), jnp.float32)
    mask = jnp.arange(9) < jnp.array([[9], [6]])
    context = Context(query_mask=mask, key_mask=mask)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x, context)["params"]
    params = float32(jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), unbox(shapes)))
    run = jax.jit(lambda context: module.apply({"params": params}, x, context))
    (masked, use), (skipped, _) = run(context), run(context.replace(skip=True))
    assert (use.used < use.full).all()
    np.testing.assert_allclose(skipped, masked, rtol=1e-6, atol=2e-6)
    # Rows of which none is wanted cost nothing, whoever asks the positions first.
    attention, of_it = make_module(kind), params["sublayers_0"]
    shared = attention.apply({"params": of_it}, x, context, method="keys")
    none = context.replace(active=jnp.zeros((B, 9), bool))
    y, _ = jax.jit(lambda: attention.apply({"params": of_it}, x, shared, none, method="rows"))()
    assert not np.any(y)


def test_a_step_over_a_cache_writes_the_keys_of_its_own_rows():
    context = Context(query_positions=jnp.full((1, 2), 3), key_positions=jnp.arange(8)[None] // 2, span=4)
    of_rows = context.of_new_rows()
    np.testing.assert_array_equal(of_rows.key_positions, [[3, 3]])
    x = jnp.asarray(X[:, :2], jnp.float32)
    module = make_module("rotary")
    params = float32(random_params(module))
    new = module.apply({"params": params}, x, of_rows, method="keys").key
    for b, h, row in np.ndindex(B, H, 2):
        exact = slow.rotated(np.asarray(x[b, row]) @ np.asarray(params["key"][:, h]), 3)
        np.testing.assert_allclose(new[b, h, row], exact, atol=1e-5)


@pytest.mark.parametrize("positions", [RotaryPositions(), ShawPositions(4), TransformerXLPositions(8, 2)])
def test_rows_without_a_batch_stay_without(positions):
    x = jnp.ones((5, 8))
    module = MultiHeadAttention(8, 2, positions=positions)
    y, _ = jax.eval_shape(module.init_with_output, jax.random.key(0), x, x, Context(causal=True))
    assert y.shape == x.shape


def test_positions_by_default_change_nothing():
    module = MultiHeadAttention(D, H)
    params = float32(random_params(module))
    same = MultiHeadAttention(D, H, positions=AttentionPositions())
    outputs = [m.apply({"params": params}, *float32((X, X)), Context()) for m in (module, same)]
    np.testing.assert_array_equal(*outputs)


def test_without_values_there_is_one_table_and_its_products():
    both, keys = (ShawPositions(K, CLIP, with_values=on) for on in (True, False))
    module = MultiHeadAttention(D, H, positions=keys)
    assert list(random_params(module)["positions"]) == ["key_table"]
    params = random_params(make_module("shaw"))
    params["positions"]["value_table"] *= 0
    expected = make_module("shaw").apply({"params": float32(params)}, *float32((X, X)), Context())
    del params["positions"]["value_table"]
    y = module.apply({"params": float32(params)}, *float32((X, X)), Context())
    np.testing.assert_allclose(y, expected, atol=1e-6)
    assert both.flops(D, T, T) == 2 * keys.flops(D, T, T) == 4 * T * D * (2 * CLIP + 1)


def test_positions_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="turn pairs of features, and heads have 3"):
        MultiHeadAttention(6, 2, positions=RotaryPositions()).init(
            jax.random.key(0), jnp.ones((1, 2, 6)), jnp.ones((1, 2, 6)), Context()
        )
    with pytest.raises(ValueError, match="clipped at 0: give at least 1"):
        random_params(MultiHeadAttention(D, H, positions=ShawPositions(K, 0)))
