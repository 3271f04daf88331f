"""Distances of words in attention over documents: across sentences, dispatched and dense, in a tree."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but

from flaxnmt.attention import dispatch
from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.context import ContextAttention, ContextHeads
from flaxnmt.attention.document import DocumentAttention
from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import ShawPositions, TransformerXLPositions
from flaxnmt.attention.rotary import RotaryPositions
from flaxnmt.attention.source2token import MeanPooling
from flaxnmt.layers.context import Context
from flaxnmt.layers.positions import word_positions
from flaxnmt.sharding import unbox

B, N, M, D, H, K = 2, 5, 3, 8, 2, 4
KINDS = {
    "shaw": ShawPositions(K, 3),
    "shaw_of_keys": ShawPositions(K, 3, with_values=False),
    "transformer_xl": TransformerXLPositions(D, H),
    "rotary": RotaryPositions(),
}
MASK = jnp.arange(M) < jnp.array([[3, 1, 2, 0, 3], [2, 3, 1, 0, 0]])[..., None]
IDS = word_positions(MASK)
CONTEXT = Context(query_mask=MASK, key_mask=MASK, query_positions=IDS, key_positions=IDS, consecutive=True)
X, UPSTREAM = (jnp.asarray(x, jnp.float32) for x in np.random.default_rng(0).normal(size=(2, B, N, M, D)))


def random_params(module, seed=1):
    rng = np.random.default_rng(seed)
    shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), X, X, CONTEXT)["params"])
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), shapes)


@partial(jax.jit, static_argnums=0)
def run(module, params, x, context):
    return module.apply({"params": params}, x, x, context)


def of_line(module, params, line):
    """A sentence module on the words of a document in one line, without padding."""
    return run(module, params, line[None], Context())[0]


@pytest.mark.parametrize("kind", slow_but(["shaw", "transformer_xl"], KINDS))
def test_attention_over_a_document_is_that_over_its_words_in_one_line(kind):
    module = DocumentAttention(D, H, positions=KINDS[kind])
    params = random_params(module)
    y = run(module, params, X, CONTEXT)
    for b in range(B):
        line = of_line(MultiHeadAttention(D, H, positions=KINDS[kind]), params, X[b][MASK[b]])
        np.testing.assert_allclose(y[b][MASK[b]], line, atol=1e-5)


@pytest.mark.parametrize("kind", slow_but(["shaw"], KINDS))
def test_words_and_sentences_side_by_side_count_the_words_of_the_sentence(kind):
    """Distances within a sentence are those of the document, and sentence encodings have none."""
    context = ContextAttention(D, H, sentence_encoder=MeanPooling(D))
    module = ContextHeads(D, H, context=context, positions=KINDS[kind])
    params = random_params(module)
    y = run(module, params, X, CONTEXT)
    words = {name: leaf for name, leaf in params.items() if name != "context"}
    plain = run(MultiHeadAttention(D, H, positions=KINDS[kind]), words, X, CONTEXT)
    around = run(context, params["context"], X, CONTEXT)
    np.testing.assert_allclose(y, plain + around, atol=1e-5)
    for b, n in ((0, 0), (0, 2), (1, 1)):
        seen = MASK[b, n]
        line = of_line(MultiHeadAttention(D, H, positions=KINDS[kind]), words, X[b, n][seen])
        np.testing.assert_allclose(plain[b, n][seen], line, atol=1e-5)


def conditional(kind, **options):
    common = {"t": 2, "sentence_encoder": MeanPooling(D), "positions": KINDS[kind]}
    return ConditionalAttention(D, H, **{**common, **options})


@partial(jax.jit, static_argnums=0)
def output_and_gradients(module, params, x):
    def loss(params, x):
        y = module.apply({"params": params}, x, x, CONTEXT)
        return (y * UPSTREAM * MASK[..., None]).sum(), y

    gradients, y = jax.grad(loss, (0, 1), has_aux=True)(params, x)
    return y, gradients


@pytest.mark.parametrize(
    "kind, together",
    [
        pytest.param("shaw_of_keys", 1, marks=pytest.mark.slow),
        ("transformer_xl", 2),
        ("rotary", 2),
        pytest.param("transformer_xl", 1, marks=pytest.mark.slow),
    ],
)
def test_dispatched_is_dense_forward_and_backward(kind, together, monkeypatch):
    monkeypatch.setattr(dispatch, "SLOTS_AT_A_TIME", 1 if together == 1 else 10**9)
    output_and_gradients.clear_cache()
    params = random_params(conditional(kind))
    dense, ours = (output_and_gradients(conditional(kind, dispatched=on), params, X) for on in (False, True))
    np.testing.assert_allclose(ours[0] * MASK[..., None], dense[0] * MASK[..., None], atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=5e-5), ours[1], dense[1])
    if kind != "rotary":
        assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(ours[1][0]["positions"]))


@pytest.mark.parametrize("kind", slow_but(["transformer_xl"], KINDS))
def test_with_every_sentence_selected_and_none_relevant_it_is_attention_over_the_document(kind):
    module = conditional(kind, t=N)
    params = random_params(module)
    params["selector_query"] *= 0
    y = run(module, params, X, CONTEXT)
    plain = {name: leaf for name, leaf in params.items() if not name.startswith("selector")}
    whole = run(DocumentAttention(D, H, positions=KINDS[kind]), plain, X, CONTEXT)
    np.testing.assert_allclose(y[MASK], whole[MASK], atol=1e-5)


@pytest.mark.parametrize("kind", ["shaw", pytest.param("transformer_xl", marks=pytest.mark.slow)])
def test_in_a_tree_that_is_searched_for_all_it_is_the_same_attention(kind):
    flat = conditional(kind, t=N)
    tree = HierarchicalAttention(
        D, H, t=N, sentence_encoder=MeanPooling(D), merge=MeanPooling(D), positions=KINDS[kind]
    )
    params = random_params(tree)
    params["selector_query"] *= 0
    np.testing.assert_allclose(
        run(tree, params, X, CONTEXT)[MASK], run(flat, params, X, CONTEXT)[MASK], atol=1e-5
    )


def test_without_a_choice_positions_that_add_to_values_take_the_dense_form():
    """Where dispatching would be the faster form, and is what keys alone take."""
    words = jnp.ones((1, 12, 2, D))
    sizes = []
    for kind in ("shaw", "shaw_of_keys"):
        module = conditional(kind, t=1)
        jaxpr = jax.make_jaxpr(module.init)(jax.random.key(0), words, words, Context())
        sizes.append("custom_vjp_call" in str(jaxpr) and "_dispatched" in str(jaxpr))
    assert sizes == [False, True]


def test_more_work_is_counted_for_distances():
    for kind, columns in (
        ("shaw", 2 * 7),
        ("shaw_of_keys", 7),
        ("transformer_xl", 2 * N * M - 1),
        ("rotary", 0),
    ):
        plain, ours = (conditional("rotary", dispatched=False), conditional(kind, dispatched=False))
        (shared, rows), (shared_too, more) = (m.flops(D, N * M, N * M, N) for m in (plain, ours))
        assert shared == shared_too and more - rows == 2 * N * M * columns * D
