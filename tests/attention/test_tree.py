"""ConstructBT and TraverseTree against the text of the paper (Trankova et al. 2024, section 3.3), in float64.

Scores of the searches that are compared are small integers, so that equality is exact and ties are frequent.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree_reference
from cases import slow_but

from flaxnmt.attention.dot_product import MASKED
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.attention.tree import (
    construct_tree,
    level_sizes,
    path_keys,
    traverse,
    traverse_dense,
    tree_path,
)
from flaxnmt.attention.tree_costs import traverse_flops
from flaxnmt.sharding import unbox

MERGES = {"mean": MeanPooling(4), "source2token": Source2Token(4), "multi": MultiDimensionalSource2Token(4)}
HEADS, WORDS = 2, 3


def pairs_of(level):
    """[B, n] as [B, ceil(n / 2), 2]."""
    return np.pad(level, ((0, 0), (0, level.shape[1] % 2))).reshape(len(level), -1, 2)


def node_masks(mask):
    """Masks of all levels."""
    masks = [np.asarray(mask)]
    while masks[-1].shape[1] > 1:
        masks.append(pairs_of(masks[-1]).any(-1))
    return tuple(jnp.asarray(m) for m in masks)


def integer_keys(mask, seed=0):
    """Keys of one feature for every node, those of copies as of what they copy; a query of one makes them scores."""
    rng = np.random.default_rng(seed)
    heads = []
    for _ in range(HEADS):
        levels, there = [rng.integers(-3, 4, mask.shape)], mask
        while there.shape[1] > 1:
            pairs, below = pairs_of(there), pairs_of(np.where(there, levels[-1], 0))
            levels.append(np.where(pairs.all(-1), rng.integers(-3, 4, pairs.shape[:2]), below.sum(-1)))
            there = pairs.any(-1)
        heads.append(levels)
    return tuple(np.stack(level, 1)[..., None] * 1.0 for level in zip(*heads))


search = jax.jit(traverse, static_argnames=("t", "by", "count_copies", "block", "whole_level"))


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def as_values(selection, sentences):
    """[B, H, L, N] values of the leaves, -inf where dropped, out of a selection."""
    index, relevance, valid = (np.asarray(x) for x in (selection.index, selection.relevance, selection.valid))
    values = np.full((*index.shape[:3], sentences), -np.inf)
    for at in zip(*np.nonzero(valid)):
        assert values[at[:3]][index[at]] == -np.inf, "a sentence is kept once"
        values[at[:3]][index[at]] = relevance[at]
    assert not np.any(relevance[~valid]) and not np.any(index[~valid])
    return values


def unmasked(dense):
    return np.where(np.asarray(dense) == np.float32(MASKED), -np.inf, dense)


def test_levels_have_half_the_nodes_rounded_up():
    assert level_sizes(11) == (11, 6, 3, 2, 1)
    for n in range(1, 300):
        sizes = level_sizes(n)
        assert sizes == tuple(int(np.ceil(n / 2**k)) for k in range(len(sizes)))
        assert sizes[-1] == 1 and (n == 1 or sizes[-2] == 2)
        assert len(sizes) == int(np.ceil(np.log2(n))) + 1


def test_trace_of_constructing_a_tree_of_eleven_sentences():
    # Fig. 2 with the numbers 1 to 11 and the mean: 11 stands alone twice and is copied twice, 10.25 once.
    expected = [
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        [1.5, 3.5, 5.5, 7.5, 9.5, 11],
        [2.5, 6.5, 10.25],
        [4.5, 10.25],
        [7.375],
    ]
    numbers = jnp.arange(1.0, 12.0)[:, None]
    nodes, masks = construct_tree(numbers, jnp.ones(11, bool), lambda x, m: x.mean(-2))
    assert [level[:, 0].tolist() for level in nodes] == expected
    assert sum(level.shape[0] for level in nodes) == 11 + 6 + 3 + 2 + 1
    assert all(mask.all() for mask in masks)


# Fig. 3 with hand-made scores, from the root to the leaves; "-" was dropped above, * is kept by its level.
#   root            1*
#   of 2            3*                                   2*
#   of 3            0           4*                       2*            the third is a copy of the second above
#   of 6           (9    9)     2      5*                3      4*
#   of 11       (9 9 9 9)     7   1  2   6*            9   9  4*       the eleventh is a copy of the sixth above
TRACE = [[9, 9, 9, 9, 7, 1, 2, 6, 9, 9, 4], [9, 9, 2, 5, 3, 4], [0, 4, 2], [3, 2], [1]]
TRACE_VALUES = {
    ("raw", True): {7: 1 + 3 + 4 + 5 + 6, 10: 1 + 2 + 2 + 4 + 4},
    ("raw", False): {7: 1 + 3 + 4 + 5 + 6, 10: 1 + 2 + 4},
    # Sums of six: 4 + 4 + 2 = 10 and 13 against 8 and 9, so the sixth is dropped, and of the leaves 17 11 15 19.
    ("cumulative", True): {7: 1 + 3 + 4 + 5 + 6, 4: 1 + 3 + 4 + 2 + 7},
    # Without the copy the third of three has 3, less than the first with 4: sums 13 13 10 13, then 22 four times.
    ("cumulative", False): {0: 1 + 3 + 0 + 9 + 9, 1: 1 + 3 + 0 + 9 + 9},
}


@pytest.mark.parametrize(("by", "count_copies"), TRACE_VALUES)
@pytest.mark.parametrize("form", slow_but(["search"], ["dense", "search", "fetched"]))
def test_trace_of_traversing_a_tree_of_eleven_sentences(form, by, count_copies):
    masks = node_masks(np.ones((1, 11), bool))
    keys = tuple(jnp.asarray(level, jnp.float32).reshape(1, 1, -1, 1) for level in TRACE)
    if form == "dense":
        scores = tuple(key[..., 0][:, :, None] for key in keys)
        values = unmasked(traverse_dense(scores, masks, 2, by=by, count_copies=count_copies))
    else:
        whole_level = 64 if form == "search" else 0
        selection = traverse(
            jnp.ones((1, 1, 1, 1)), keys, masks, 2, by=by, count_copies=count_copies, whole_level=whole_level
        )
        values = as_values(selection, 11)
    kept = {int(i): float(values[0, 0, 0, i]) for i in np.flatnonzero(np.isfinite(values[0, 0, 0]))}
    assert kept == TRACE_VALUES[by, count_copies]


def lengths_mask(sentences):
    """A document of every length from 0 to N, and some with holes."""
    rows = [np.arange(sentences) < n for n in range(sentences + 1)]
    rng = np.random.default_rng(sentences)
    return np.stack(rows + [rng.random(sentences) < p for p in (0.1, 0.3, 0.6, 0.9)])


CASES = [
    (33, 1, "raw", True, 0),
    *((33, 2, by, copies, 0) for by, copies in itertools.product(("raw", "cumulative"), (True, False))),
    (33, 4, "raw", True, 64),
    (33, 4, "cumulative", False, 8),
    (33, 40, "cumulative", True, 0),
    (1, 2, "raw", True, 0),
]


@pytest.mark.parametrize(
    ("sentences", "t", "by", "count_copies", "whole_level"),
    slow_but((CASES[2], CASES[6]), CASES),
)
def test_search_and_dense_form_keep_what_the_paper_keeps(sentences, t, by, count_copies, whole_level):
    mask = lengths_mask(sentences)
    masks, keys = node_masks(mask), integer_keys(mask)
    query = np.random.default_rng(1).choice([-1.0, 1.0], (len(mask), HEADS, WORDS, 1))
    scores = [query @ np.swapaxes(key, -1, -2) for key in keys]
    expected = np.stack(
        [
            [
                [
                    tree_reference.traverse([s[b, h, w] for s in scores], mask[b], t, by, count_copies)
                    for w in range(WORDS)
                ]
                for h in range(HEADS)
            ]
            for b in range(len(mask))
        ]
    )
    selection = search(
        *float32((query, keys)), masks, t, by=by, count_copies=count_copies, block=2, whole_level=whole_level
    )
    assert selection.index.shape == (len(mask), HEADS, WORDS, min(t, sentences))
    np.testing.assert_array_equal(as_values(selection, sentences), expected)
    dense = traverse_dense(float32(tuple(scores)), masks, t, by=by, count_copies=count_copies)
    np.testing.assert_array_equal(unmasked(dense), expected)


def test_equal_scores_are_kept_in_the_order_of_the_sentences_and_the_best_comes_first():
    masks = node_masks(np.ones((1, 9), bool))
    keys = tuple(jnp.zeros((1, 1, n, 1)) for n in level_sizes(9))
    query = jnp.ones((1, 1, 1, 1))
    assert search(query, keys, masks, 3).index.ravel().tolist() == [0, 1, 2]
    ordered = (keys[0].at[0, 0, :, 0].set(jnp.array([1.0, 3, 2, 5, 4, 0, 0, 0, 0])), *keys[1:])
    assert search(query, ordered, masks, 9).index.ravel().tolist() == [3, 4, 1, 2, 0, 5, 6, 7, 8]


@pytest.mark.slow
def test_a_large_tree_in_blocks_keeps_what_the_dense_form_keeps():
    rng = np.random.default_rng(0)
    mask = np.arange(90) < np.array([[90], [71]])
    masks = node_masks(mask)
    keys = float32(tuple(rng.normal(size=(2, HEADS, n, 8)) for n in level_sizes(90)))
    query = float32(rng.normal(size=(2, HEADS, 37, 8)))
    scores = tuple(jnp.einsum("bhlk,bhnk->bhln", query, key) * 8**-0.5 for key in keys)
    dense = unmasked(jax.jit(traverse_dense, static_argnums=2)(scores, masks, 4))
    values = as_values(search(query, keys, masks, 4, block=10), 90)
    np.testing.assert_allclose(values, dense, atol=1e-5)
    assert (np.isfinite(values).sum(-1) == 4).all()


@pytest.mark.parametrize(
    ("by", "count_copies"),
    slow_but([("cumulative", True)], [("raw", True), ("raw", False), ("cumulative", True)]),
)
def test_gradients_are_those_of_the_dense_form(by, count_copies):
    rng = np.random.default_rng(0)
    mask = np.arange(11) < np.array([[11], [6], [1], [0]])
    masks = node_masks(mask)
    keys = float32(tuple(rng.normal(size=(4, HEADS, n, 4)) for n in level_sizes(11)))
    query, upstream = float32(rng.normal(size=(4, HEADS, 5, 4))), float32(rng.normal(size=(4, HEADS, 5, 11)))

    def searched(query, keys):
        kept = traverse(query, keys, masks, 2, by=by, count_copies=count_copies, block=2)
        return jnp.sum(kept.relevance * jnp.take_along_axis(upstream, kept.index, -1))

    def dense(query, keys):
        scores = tuple(jnp.einsum("bhlk,bhnk->bhln", query, key) * 0.5 for key in keys)
        values = traverse_dense(scores, masks, 2, by=by, count_copies=count_copies)
        return jnp.sum(jnp.where(values == MASKED, 0, values * upstream))

    actual = jax.jit(jax.value_and_grad(searched, (0, 1)))(query, keys)
    expected = jax.jit(jax.value_and_grad(dense, (0, 1)))(query, keys)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, e, atol=1e-5)
    assert all(np.any(g) for g in jax.tree.leaves(actual[1]))


def with_parameters(module, seed=0):
    """The module as a merge, with parameters drawn at random."""
    x = jnp.zeros((1, 2, 4))
    params = unbox(module.init(jax.random.key(seed), x, jnp.ones((1, 2), bool)))
    return lambda x, mask: module.apply(params, x, mask)


@pytest.mark.slow
def test_padding_changes_no_node():
    merge, x = with_parameters(Source2Token(4)), float32(np.random.default_rng(0).normal(size=(11, 4)))
    construct = jax.jit(construct_tree, static_argnums=2)
    nodes, _ = construct(x, jnp.ones(11, bool), merge)
    for padded in (12, 33):
        garbage = jnp.concatenate([x, jnp.full((padded - 11, 4), 1e9)])
        longer, masks = construct(garbage, jnp.arange(padded) < 11, merge)
        for level, expected in enumerate(nodes):
            assert int(masks[level].sum()) == len(expected)
            np.testing.assert_allclose(longer[level][: len(expected)], expected, rtol=1e-5, atol=1e-6)
            assert not np.any(np.asarray(longer[level])[~np.asarray(masks[level])])
        for level, mask in zip(longer[len(nodes) :], masks[len(nodes) :]):
            assert int(mask.sum()) == 1
            np.testing.assert_allclose(level[0], nodes[-1][0], rtol=1e-5, atol=1e-6)


def test_a_lone_child_is_copied_and_others_are_merged():
    merge = with_parameters(Source2Token(4))
    x = float32(np.random.default_rng(0).normal(size=(5, 4)))
    nodes, masks = construct_tree(x, jnp.array([True, True, False, True, True]), merge)
    pair = merge(x[None, :2], jnp.ones((1, 2), bool))[0]
    np.testing.assert_allclose(nodes[1], jnp.stack([pair, x[3], x[4]]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(nodes[2][1], x[4])
    assert [mask.tolist() for mask in masks[1:]] == [[True] * 3, [True] * 2, [True]]


def test_padding_changes_no_value():
    rng = np.random.default_rng(0)
    x, query = float32(rng.normal(size=(1, 11, 4))), float32(rng.normal(size=(1, 1, 20, 4)))

    def values(padded):
        documents = jnp.pad(x, ((0, 0), (0, padded - 11), (0, 0)))
        nodes, masks = construct_tree(
            documents, jnp.arange(padded)[None] < 11, with_parameters(Source2Token(4))
        )
        return traverse(query, tuple(level[:, None] for level in nodes), masks, 2)

    expected = as_values(jax.jit(values, static_argnums=0)(11), 11)
    longer = as_values(jax.jit(values, static_argnums=0)(17), 17)
    np.testing.assert_allclose(longer[..., :11], expected, atol=1e-5)
    assert not np.isfinite(longer[..., 11:]).any()


@pytest.mark.parametrize("merge", slow_but([MERGES["source2token"]], MERGES.values()), ids=MERGES)
def test_gradients_are_finite_with_every_padding_pattern(merge):
    merge = with_parameters(merge)
    mask = jnp.array(list(itertools.product([False, True], repeat=5)))
    rng = np.random.default_rng(0)
    x, query = float32(rng.normal(size=(32, 5, 4))), float32(rng.normal(size=(32, 1, 2, 4)))

    def loss(x, query):
        nodes, masks = construct_tree(x, mask, merge)
        kept = traverse(query, tuple(level[:, None] for level in nodes), masks, 2)
        return jnp.sum(kept.relevance**2)

    d_x, d_query = jax.jit(jax.grad(loss, (0, 1)))(x, query)
    assert np.isfinite(d_x).all() and np.isfinite(d_query).all()
    assert not np.any(np.asarray(d_x)[~np.asarray(mask)]) and not np.any(d_query[0])
    assert np.asarray(d_query)[1:].any((1, 2, 3)).all()


@pytest.mark.slow
def test_the_own_sentence_is_kept_with_its_path():
    mask = np.arange(21) < np.array([[21], [13]])
    masks, keys = node_masks(mask), integer_keys(mask)
    own = np.random.default_rng(2).integers(0, 13, (1, WORDS))
    query = jnp.ones((2, HEADS, WORDS, 1))
    selection = search(query, float32(keys), masks, 3, own=jnp.asarray(own), whole_level=0)
    values = as_values(selection, 21)
    for b, h, w in np.ndindex(2, HEADS, WORDS):
        scores = [key[b, h, :, 0] for key in keys]
        expected = tree_reference.traverse(scores, mask[b], 3, "raw", True, own[0, w])
        np.testing.assert_array_equal(values[b, h, w], expected)
        assert selection.index[b, h, w, 0] == own[0, w]
    dense = traverse_dense(
        float32(tuple(key.swapaxes(-1, -2) for key in keys)), masks, 3, own=jnp.asarray(own[:, :1])
    )
    np.testing.assert_array_equal(unmasked(dense)[:, :, 0], values[:, :, 0])


def test_path_leads_from_the_root_to_the_sentence_and_its_scores_sum_to_the_relevance():
    masks = node_masks(np.ones((1, 11), bool))
    keys = tuple(jnp.asarray(level, jnp.float32).reshape(1, 1, -1, 1) for level in TRACE)
    query = jnp.ones((1, 1, 1, 1))
    selection = search(query, keys, masks, 2)
    path = tree_path(query, keys, selection)
    assert selection.index.ravel().tolist() == [7, 10]
    assert path.node.reshape(2, 5).tolist() == [[0, 0, 1, 3, 7], [0, 1, 2, 5, 10]]
    assert path.score.reshape(2, 5).tolist() == [[1, 3, 4, 5, 6], [1, 2, 2, 4, 4]]
    np.testing.assert_array_equal(path.score.sum(-1), selection.relevance)


@pytest.mark.slow
def test_half_precision_keeps_the_same_sentences_with_scores_in_float32():
    rng = np.random.default_rng(0)
    masks = node_masks(np.ones((1, 40), bool))
    keys = tuple(jnp.asarray(rng.integers(-2, 3, (1, 1, n, 4)), jnp.bfloat16) for n in level_sizes(40))
    query = jnp.asarray(rng.integers(-2, 3, (1, 1, 9, 4)), jnp.bfloat16)
    half = search(query, keys, masks, 4, whole_level=0)
    full = search(*float32((query, keys)), masks, 4, whole_level=0)
    assert half.relevance.dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, half, full)


def counted_flops(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


@pytest.mark.slow
def test_operations_of_the_compiled_search_grow_with_the_logarithm_of_the_sentences():
    words, t, size = 16, 4, 64
    sizes = [64, 256, 1024, 4096]
    levels = np.diff(np.log2(sizes))
    compiled, dense = [], []
    for n in sizes:
        query = jax.ShapeDtypeStruct((1, 1, words, size), jnp.float32)
        keys = tuple(jax.ShapeDtypeStruct((1, 1, k, size), jnp.float32) for k in level_sizes(n))
        scores = tuple(jax.ShapeDtypeStruct((1, 1, words, k), jnp.float32) for k in level_sizes(n))
        masks = tuple(jax.ShapeDtypeStruct((1, k), bool) for k in level_sizes(n))
        paths = counted_flops(path_keys, keys, masks)
        # One block, since the analysis counts the body of a loop once; sums over paths are not of the search.
        whole = counted_flops(lambda q, k, m: traverse(q, k, m, t, block=words), query, keys, masks)
        compiled.append((whole - paths) / words)
        if n in (64, 256):
            dense.append(counted_flops(lambda s, m: traverse_dense(s, m, t), scores, masks))
    steps = np.diff(compiled) / levels
    assert steps.max() / steps.min() < 1.02, "each doubling of the sentences adds one level of 2t candidates"
    predicted = np.array([traverse_flops(n, t, size) for n in sizes])
    assert set(np.diff(predicted) / levels) == {2 * size * 2 * t}
    # A product and a sum with ones in place of one product, and the ranking of the candidates.
    assert steps.min() > 2 * size * 2 * t and steps.max() < 2.5 * 2 * size * 2 * t
    assert compiled[-1] < 2 * predicted[-1] and predicted[-1] < 0.05 * 2 * size * sizes[-1]
    assert dense[1] / dense[0] > 0.5 * 256 / 64, "what scores whole levels is told apart"


def test_t_must_be_positive():
    masks = node_masks(np.ones((1, 2), bool))
    with pytest.raises(ValueError, match="t is 0: attention keeps at least one sentence"):
        traverse(jnp.ones((1, 1, 1, 1)), (jnp.ones((1, 1, 2, 1)), jnp.ones((1, 1, 1, 1))), masks, 0)
