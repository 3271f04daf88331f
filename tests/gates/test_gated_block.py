"""Gated blocks against float64, and what is not computed against what is multiplied by 0."""

from functools import partial
from typing import ClassVar

import gates_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but
from flax import linen as nn

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.context import ContextAttention, ContextHeads
from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import ShawPositions
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.encoders.fnet import FourierMixing
from flaxnmt.encoders.lstm import LSTM
from flaxnmt.encoders.static_expansion import StaticExpansion
from flaxnmt.gates.block import GatedBlock
from flaxnmt.gates.control import control_flops, decided, soft_gate
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context, Gating
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.sharding import unbox

B, Q, D, H, F, HIDDEN = 2, 5, 6, 2, 8, 3
# Work of a gated attention on a row that another one does not have: its control network, or two; a norm of its output.
CONTROL, NORM = control_flops(D, HIDDEN, 1), 7 * D
X, UPSTREAM = np.random.default_rng(0).normal(size=(2, B, Q, D))
MASK = np.asarray([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)
SOFT = Context(query_mask=jnp.asarray(MASK), key_mask=jnp.asarray(MASK), deterministic=False)
HARD = SOFT.replace(deterministic=True)


def make(*sublayers, **options):
    return GatedBlock(D, sublayers, HIDDEN, **options)


def attention_block(normed_keys=False, **options):
    return make(MultiHeadAttention(D, H, normed_keys=normed_keys), **options)


def feed_forward_block(parts=2, **options):
    return make(*(FeedForward(D, F // parts, parts=parts) for _ in range(parts)), **options)


def random_params(module, seed=6, x=X):
    """Float64 parameters with which some gates are open and some are closed."""
    rng = np.random.default_rng(seed)
    context = HARD if x is X else Context()
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(x), context)["params"]
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(size=leaf.shape) + path[-1].key.endswith("scale"), unbox(shapes)
    )


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def run(module, params, x, context, memory=None):
    def both(block, x):
        shared = None if memory is None else block.keys(memory, context)
        return block(x, context, shared)

    return module.apply({"params": params}, x, method=both)


def soft(module, params, gating):
    """(outputs, what was used) in training, with the same noise every time."""
    context, rngs = SOFT.replace(gating=gating), {"dropout": jax.random.key(3)}
    y, use = module.apply({"params": params}, float32(X), context, rngs=rngs)
    return y, use.used


def slow_attention_block(params, x, hard):
    return slow.attention_block(params, x, MASK, hard)


def slow_scaled(params, x, hard):
    return slow.feed_forward_block(slow.scale_gates(params, 3.0), x, hard)


KINDS = {
    "attention": (attention_block(), slow_attention_block),
    "attention, normed keys": (attention_block(normed_keys=True), slow_attention_block),
    "feed-forward": (feed_forward_block(), slow.feed_forward_block),
    "attention, outputs as they are": (attention_block(normed_outputs=False), slow_attention_block),
    "feed-forward, outputs as they are": (
        feed_forward_block(normed_outputs=False),
        slow.feed_forward_block,
    ),
    "feed-forward, logits by a factor": (feed_forward_block(control_scale=3.0), slow_scaled),
}


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
    "kind", slow_but(["attention", "feed-forward", "feed-forward, outputs as they are"], KINDS)
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


N, M, T = 3, 4, 1
OF_DOCUMENTS = {
    "sentence": lambda: MultiHeadAttention(D, H),
    "context": lambda: ContextAttention(D, H, sentence_encoder=Source2Token(D)),
    "heads": lambda: ContextHeads(D, H, context=ContextAttention(D, H, sentence_encoder=MeanPooling(D))),
    "conditional": lambda: ConditionalAttention(D, H, t=T, sentence_encoder=MultiDimensionalSource2Token(D)),
    "hierarchical": lambda: HierarchicalAttention(
        D, H, t=T, sentence_encoder=Source2Token(D), merge=Source2Token(D), always_keep_own=True
    ),
    "fourier": lambda: FourierMixing(),
    "expansion": lambda: StaticExpansion(D, 4),
}


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


class Watched(SubLayer):
    """All rows share their mean, and say when it is computed."""

    computed: ClassVar[list[bool]] = []

    def keys(self, memory, context):
        def nothing_but_say_so():
            self.computed.append(True)
            return np.zeros((), np.float32)

        # What nobody reads is not computed, which a callback without a result would be.
        zero = jax.pure_callback(nothing_but_say_so, jax.ShapeDtypeStruct((), jnp.float32))
        return memory.mean(-2, keepdims=True) + zero

    def rows(self, x, shared, context):
        return x + shared, None

    def flops(self, d_model, queries, keys, sentences=1):
        return 1000 * keys, 0


def test_what_rows_share_is_computed_where_one_of_them_is_on():
    module = make(Watched())
    params = random_params(module)

    step = jax.jit(
        lambda params, skip, apart: run(
            module, params, float32(X), HARD.replace(skip=skip), float32(X) if apart else None
        ),
        static_argnums=(1, 2),
    )

    def computed(bias, *options):
        Watched.computed.clear()
        y, use = step(float32(slow.set_gates(params, bias)), *options)
        jax.effects_barrier()
        added = MASK.sum(1) * (CONTROL + NORM)
        np.testing.assert_allclose(use.used - added, (bias >= 0) * 1000 * MASK.sum(1), rtol=1e-6)
        np.testing.assert_array_equal(
            y == float32(X), np.broadcast_to((bias < 0) | ~MASK[..., None], y.shape)
        )
        return len(Watched.computed)

    assert computed(-1.0, True, False) == 0
    assert computed(1.0, True, False) == computed(-1.0, False, False) == 1
    # Of a memory that other rows may want.
    assert computed(-1.0, True, True) == 1


@pytest.mark.parametrize("kind", slow_but(["heads"], ["heads", "hierarchical", "lstm", "expansion"]))
def test_closed_sublayers_that_share_something_are_the_identity(kind):
    module = make(LSTM(D) if kind == "lstm" else OF_DOCUMENTS[kind]())
    seen = jnp.asarray(np.stack([MASK[:, :4], MASK[:, 1:]]))
    context = Context(query_mask=seen, key_mask=seen)
    x = float32(np.random.default_rng(3).normal(size=(*seen.shape, D)))
    shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), x, context)["params"])
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)

    def apply(params, skip):
        y, use = module.apply({"params": params}, x, context.replace(skip=skip))
        return y * seen[..., None], use.used

    step = jax.jit(apply, static_argnums=1)
    np.testing.assert_array_equal(step(float32(slow.set_gates(params, -1.0)), True)[0], x * seen[..., None])
    for one, other in zip(*(step(float32(params), skip) for skip in (True, False)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


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
