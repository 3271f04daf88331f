"""Context attention against float64 loops over documents, from the equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import slow_but

from flaxnmt.attention.context import ContextAttention, ContextHeads, WordsAndSentences, other_sentences
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context
from flaxnmt.sharding import make_mesh, put_batch, unbox, use_mesh

B, N, M, Q, D, H = 4, 3, 3, 2, 4, 2
# A full document; padded words and a sentence of padding; a single sentence; a document of padding.
LENGTHS = np.array([[3, 3, 3], [2, 1, 0], [3, 0, 0], [0, 0, 0]])
MASK = np.arange(M) < LENGTHS[..., None]
CONTEXT = Context(key_mask=jnp.asarray(MASK))


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def draw(rng, shapes):
    return {name: rng.normal(size=shape) * D**-0.5 for name, shape in shapes.items()}


def projections(rng, heads):
    inward, outward = (D, heads, D // heads), (heads, D // heads, D)
    return draw(rng, {"query": inward, "key": inward, "value": inward, "out": outward})


def make_params():
    rng = np.random.default_rng(0)
    encoder = draw(rng, {"key": (D, D), "value": (D, D), "out": (D, D)}) | {"query": rng.normal(size=D)}
    return projections(rng, H) | {"sentence_encoder": encoder}


def attention(own=True, **changes):
    return ContextAttention(D, H, sentence_encoder=Source2Token(D), own=own, **changes)


@pytest.fixture(scope="module")
def inputs():
    """x, memory and the cotangent of the output."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(B, N, Q, D)), rng.normal(size=(B, N, M, D)), rng.normal(size=(B, N, Q, D))


def source2token(params, words):
    key, value = words @ params["key"], words @ params["value"]
    return reference.attention(params["query"][None], key, value)[0] @ params["out"]


def expected_output(params, x, memory, own, mask=MASK):
    """Each word looks at the encodings of the sentences that have words, by itself; nowhere to look is zeros."""
    y = np.zeros_like(x)
    for b in range(len(x)):
        words = {n: memory[b, n][mask[b, n]] for n in range(memory.shape[1]) if mask[b, n].any()}
        encodings = {n: source2token(params["sentence_encoder"], words[n]) for n in words}
        for n in range(x.shape[1]):
            seen = [encodings[s] for s in encodings if own or s != n]
            if seen:
                y[b, n] = reference.multi_head(params, x[b, n], np.stack(seen), None)
    return y


def assert_gradients(gradients, loss, arguments, atol):
    """Compares with central differences of a float64 loss, for each leaf of each argument."""
    leaves, tree = jax.tree.flatten(arguments)
    for i, (found, (path, _)) in enumerate(
        zip(jax.tree.leaves(gradients), jax.tree_util.tree_leaves_with_path(arguments), strict=True)
    ):
        numeric = reference.numeric_gradient(
            lambda w, i=i: loss(*tree.unflatten([*leaves[:i], w, *leaves[i + 1 :]])), leaves[i]
        )
        np.testing.assert_allclose(found, numeric, atol=atol, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("own", slow_but([False], [True, False]))
def test_output_and_gradients_are_those_of_float64(own, inputs):
    params, (x, memory, upstream) = make_params(), inputs

    @jax.jit
    def ours(params, x, memory):
        y, backward = jax.vjp(
            lambda params, x, memory: attention(own).apply({"params": params}, x, memory, CONTEXT),
            *(params, x, memory),
        )
        return y, backward(jnp.asarray(upstream, jnp.float32))

    y, gradients = ours(*float32((params, x, memory)))
    np.testing.assert_allclose(y, expected_output(params, x, memory, own), atol=1e-5)
    # The empty document, and without its own encoding the single sentence, have nowhere to look.
    assert not y[3].any() and bool(y[2, 0].any()) == own
    assert not gradients[2][~MASK].any()

    def loss(params, x, memory):
        return np.sum(upstream * expected_output(params, x, memory, own))

    assert_gradients(gradients, loss, (params, x, memory), atol=5e-5)


@pytest.mark.parametrize("encoder", [MultiDimensionalSource2Token(D), MeanPooling(D)], ids=["multi", "mean"])
def test_any_sentence_encoder_stands_below_an_ordinary_attention(encoder, inputs):
    x, memory, _ = float32(inputs)
    module = ContextAttention(D, H, sentence_encoder=encoder)
    params = jax.jit(module.init)(jax.random.key(0), x, memory, CONTEXT)["params"]
    below = {"params": params.get("sentence_encoder", {})}
    above = {"params": {name: params[name] for name in ("query", "key", "value", "out")}}

    @jax.jit
    def two_steps(x, memory):
        encodings = encoder.apply(below, memory, CONTEXT.key_mask)
        sentences = Context(key_mask=CONTEXT.key_mask.any(-1))
        return MultiHeadAttention(D, H).apply(above, x.reshape(B, N * Q, D), encodings, sentences)

    y = jax.jit(module.apply)({"params": params}, x, memory, CONTEXT)
    np.testing.assert_allclose(y, two_steps(x, memory).reshape(x.shape), atol=2e-6)


@pytest.mark.parametrize("own", slow_but([False], [True, False]))
def test_rows_of_an_encoder_of_a_decoder_and_of_hypotheses_are_the_same(own, inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    shapes = ((B * N, Q, D), (B, N * Q, D), (B * N * Q, 1, D))

    @jax.jit
    def run(x, memory):
        bound = attention(own).bind({"params": params})
        shared = bound.keys(memory, CONTEXT)
        one_step = bound.rows(x[:, :, 1:].reshape(B * N, 1, D), shared, CONTEXT)[0]
        return shared, one_step, *(bound.rows(x.reshape(s), shared, CONTEXT)[0] for s in (x.shape, *shapes))

    shared, one_step, whole, *others = run(x, memory)
    assert shared.key.shape == (B, H, N, D // H) and shared.mask.tolist() == (LENGTHS > 0).tolist()
    for y in others:
        np.testing.assert_allclose(y, whole.reshape(y.shape), atol=2e-6)
    np.testing.assert_allclose(one_step, whole[:, :, 1:].reshape(B * N, 1, D), atol=2e-6)


@pytest.mark.parametrize("own", slow_but([False], [True, False]))
def test_padding_of_words_sentences_and_documents_changes_nothing(own, inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    more = ((0, 1), (0, 2), (0, 1))
    mask = jnp.pad(CONTEXT.key_mask, more)
    apply = jax.jit(attention(own).apply)
    padded = apply(
        {"params": params},
        jnp.pad(x, (*more, (0, 0)), constant_values=5.0),
        jnp.where(mask[..., None], jnp.pad(memory, (*more, (0, 0))), 50.0),
        Context(key_mask=mask),
    )
    y = apply({"params": params}, x, memory, CONTEXT)
    np.testing.assert_allclose(padded[:B, :N, :Q], y, atol=2e-6)
    assert np.isfinite(padded).all()


def test_without_a_mask_all_words_are_there(inputs):
    params, (x, memory, _) = make_params(), inputs
    y = jax.jit(attention().apply)({"params": float32(params)}, *float32((x, memory)), Context())
    expected = expected_output(params, x, memory, own=True, mask=np.ones_like(MASK))
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_captured_weights_are_distributions_over_the_sentences_that_are_seen(inputs):
    params, (x, memory, _) = float32(make_params()), float32(inputs)
    bound = attention(own=False).bind({"params": params})
    shared = bound.keys(memory, CONTEXT)
    assert bound.rows(x, shared, CONTEXT)[1] is None
    _, weights = bound.rows(x, shared, CONTEXT.replace(capture=True))
    weights = np.asarray(weights).reshape(B, H, N, Q, N)
    there = (LENGTHS > 0)[:, None] & ~np.eye(N, dtype=bool)
    np.testing.assert_allclose(
        weights.sum(-1), np.broadcast_to(there.any(-1)[:, None, :, None], (B, H, N, Q)), atol=2e-6
    )
    assert not weights[~np.broadcast_to(there[:, None, :, None], weights.shape)].any()


def test_bfloat16_is_close(inputs):
    params, (x, memory, _) = make_params(), inputs
    y = jax.jit(attention(dtype=jnp.bfloat16).apply)(
        {"params": float32(params)}, *float32((x, memory)), CONTEXT
    )
    exact = expected_output(params, x, memory, own=True)
    assert y.dtype == jnp.bfloat16
    # The encodings pass through four roundings to 8 bits before the four of the attention.
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=6e-2 * np.abs(exact).max())


@pytest.mark.slow
def test_as_a_block_of_an_encoder_layer_its_gradients_are_finite(inputs):
    x = jnp.asarray(inputs[1], jnp.float32)
    block = Block(attention(own=False, dropout=0.5), dropout=0.5)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    context = CONTEXT.replace(deterministic=False)

    @jax.jit
    def gradients(x):
        params = block.init(rngs, x, context)["params"]
        return jax.grad(
            lambda params, x: jnp.sum(block.apply({"params": params}, x, context, rngs=rngs)[0] ** 2), (0, 1)
        )(params, x)

    leaves = jax.tree.leaves(gradients(x))
    assert len(leaves) == 4 + 4 + 2 + 1 and all(np.isfinite(leaf).all() and leaf.any() for leaf in leaves)


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    slow_but([MultiDimensionalSource2Token(D)], [Source2Token(D), MultiDimensionalSource2Token(D)]),
    ids=["single", "multi"],
)
def test_documents_lie_over_a_mesh_of_devices(encoder, inputs):
    x, memory, _ = float32(inputs)
    module = ContextHeads(D, H, context=ContextAttention(D, H, sentence_encoder=encoder))
    params = unbox(jax.jit(module.init)(jax.random.key(0), x, memory, CONTEXT))
    alone = jax.jit(module.apply)(params, x, memory, CONTEXT)
    mesh = make_mesh(data=2, fsdp=2, model=2)
    with use_mesh(mesh):
        rows = put_batch({"x": inputs[0], "memory": inputs[1], "mask": MASK}, mesh)
        y = jax.jit(module.apply)(params, rows["x"], rows["memory"], Context(key_mask=rows["mask"]))
    assert y.sharding.spec[0] == ("data", "fsdp")
    np.testing.assert_allclose(y, alone, atol=2e-6)


def test_the_sentence_of_a_row_follows_from_its_place():
    expected = [[0, 1, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1], [1, 1, 0], [1, 1, 0]]
    assert other_sentences(6, 3).astype(int).tolist() == expected
    with pytest.raises(ValueError, match="7 rows do not divide by 3 sentences"):
        other_sentences(7, 3)


def test_additional_heads_are_side_by_side_with_the_heads_over_words(inputs):
    """Concat(heads over words, heads over sentences) W^O, with the two blocks of rows of W^O taken together."""
    rng = np.random.default_rng(5)
    params, (x, memory, upstream) = projections(rng, 2) | {"context": make_params()}, inputs
    module = ContextHeads(D, 2, context=attention(own=False))

    def concatenated(params, x, memory):
        y = expected_output(params["context"], x, memory, own=False)
        words = {name: params[name] for name in ("query", "key", "value", "out")}
        for b, n in np.ndindex(B, N):
            seen = np.broadcast_to(MASK[b, n], (Q, M))
            y[b, n] += reference.multi_head(words, x[b, n], memory[b, n], seen)
        return y

    @jax.jit
    def ours(params, x, memory):
        y, backward = jax.vjp(
            lambda params, x, memory: module.apply({"params": params}, x, memory, CONTEXT), params, x, memory
        )
        return y, backward(jnp.asarray(upstream, jnp.float32))

    y, gradients = ours(*float32((params, x, memory)))
    np.testing.assert_allclose(y, concatenated(params, x, memory), atol=1e-5)
    assert_gradients(
        gradients, lambda *a: np.sum(upstream * concatenated(*a)), (params, x, memory), atol=5e-5
    )
    context = CONTEXT.replace(capture=True)
    bound = module.bind({"params": float32(params)})
    _, captured = bound.rows(*float32((x,)), bound.keys(*float32((memory,)), context), context)
    assert isinstance(captured, WordsAndSentences)
    assert captured.words.shape == (B, N, 2, Q, M) and captured.sentences.shape == (B, H, N * Q, N)


def test_heads_over_words_are_named_as_in_an_attention_without_context():
    x = jax.ShapeDtypeStruct((1, 2, 3, D), jnp.float32)
    modules = (MultiHeadAttention(D, 2), ContextHeads(D, 2, context=attention()))
    plain, ours = (jax.eval_shape(m.init, jax.random.key(0), x, x, Context())["params"] for m in modules)
    assert {name: leaf.value.shape for name, leaf in plain.items()} == {
        name: ours[name].value.shape for name in ours if name != "context"
    }


@pytest.mark.parametrize("heads", [False, True])
def test_flops_are_those_that_xla_counts(heads):
    size, sentences, words = 64, 6, 10
    module = ContextAttention(size, 4, sentence_encoder=Source2Token(size))
    module = ContextHeads(size, 4, context=module) if heads else module
    x = jnp.ones((1, sentences, words, size))
    params = jax.eval_shape(module.init, jax.random.key(0), x, x, Context())
    counted = jax.jit(module.apply).lower(params, x, x, Context()).cost_analysis()["flops"]
    length = sentences * words
    assert abs(sum(module.flops(size, length, length, sentences)) / counted - 1) < 0.05
