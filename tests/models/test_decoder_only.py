"""A decoder alone: its layout, what it can see, its cache, its size. Tolerance of float32 logits: 5e-5."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from reference import attention
from small_models import VOCAB, float32, random_ids, random_params, small_decoder, small_model

from flaxnmt.models.config import (
    BudgetConfig,
    DecoderConfig,
    DecoderOnlyConfig,
    EncoderConfig,
    MultiHead,
    Seq2SeqConfig,
)
from flaxnmt.models.decoder_only import DecoderOnly, one_sequence
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.symbols import BOS, EOS
from flaxnmt.training.objective import translation_objective

BEAMS, LENGTH = 2, 6
SOURCE = jnp.asarray(random_ids([5, 3], 5, seed=1))
TARGET = jnp.asarray(random_ids([6, 4], LENGTH, seed=2))
HYPOTHESES = jnp.asarray(random_ids([LENGTH] * 4, LENGTH, seed=2)).reshape(2, BEAMS, LENGTH)
VARIANTS = {
    "plain": {},
    "learned": {"positions": "learned", "norm": "post", "biases": True},
    "window": {"window": 3},
    "bidirectional": {"prefix": "bidirectional"},
    "scanned": {"scan": True, "prefix": "bidirectional", "window": 4},
    "rotary": {"positions": "rotary"},
    "shaw": {"positions": "shaw", "relative_clip": 3},
    "transformer_xl": {"positions": "transformer_xl", "prefix": "bidirectional"},
    "none": {"positions": "none"},
    "gated": {"budget": BudgetConfig(decoder=(1.0, 0.5), blocks=2)},
}


# Distances are those of `test_distances_in_models` here, too.
@pytest.fixture(scope="module", params=slow_but(["scanned", "none"], VARIANTS))
def variant(request):
    model = small_decoder(**VARIANTS[request.param])
    return model, {"params": float32(random_params(model))}


def test_source_delimiter_and_target_are_one_sequence_of_n_plus_h_plus_1():
    source, target = jnp.asarray([[7, 8, 9, EOS, 0]]), jnp.asarray([[11, 12, EOS, 0]])
    tokens, present, places = one_sequence(source, target)
    assert tokens[present].tolist() == [7, 8, 9, BOS, 11, 12]
    assert present.sum() == 3 + 2 + 1 and places[present].tolist() == list(range(6))


@pytest.mark.parametrize("segments", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_steps_over_a_cache_equal_all_positions_at_once(variant, segments):
    model, params = variant
    source = jnp.repeat(SOURCE, BEAMS, axis=0)
    full = jax.jit(model.apply)(params, source, HYPOTHESES.reshape(-1, LENGTH))
    cache = jax.jit(
        lambda: model.apply(params, SOURCE, BEAMS, LENGTH + 1, segments=segments, method="start")
    )()
    step = jax.jit(lambda cache, tokens, t: model.apply(params, cache, tokens, t, method="step"))
    tokens, steps = jnp.full((2, BEAMS), BOS), []
    for t in range(LENGTH):
        logits, cache = step(cache, tokens, jnp.int32(t))
        steps.append(logits)
        tokens = HYPOTHESES[:, :, t]
    stepped = jnp.stack(steps, axis=2)
    np.testing.assert_allclose(stepped, full.reshape(stepped.shape), atol=5e-5)


def test_logits_depend_on_the_source_and_on_no_later_symbol(variant):
    model, params = variant
    apply = jax.jit(model.apply)
    logits = apply(params, SOURCE, TARGET)
    later = apply(params, SOURCE, TARGET.at[:, 3].set(7))
    np.testing.assert_array_equal(logits[:, :4], later[:, :4])
    # Symbol 3 is an input of every position behind it; gates may keep it from all but the first.
    moved = np.abs(logits - later)[0, 4:].max(-1) > 1e-3
    assert moved[0] if model.config.budgets else moved.all()
    other = apply(params, SOURCE.at[:, 0].set(9), TARGET)
    assert np.abs(logits - other)[:, 0].max() > (1e-3 if model.config.window is None else 0)


def test_the_loss_of_a_pair_is_that_of_its_target_alone():
    model = small_decoder()
    params = {"params": float32(random_params(model))}
    batch = {"source": SOURCE, "target": TARGET}
    sums = jax.jit(translation_objective(model, 0.0))(params["params"], batch, None)
    logits = np.asarray(jax.jit(model.apply)(params, SOURCE, TARGET), np.float64)
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    of_target = np.take_along_axis(log_p, np.asarray(TARGET)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(sums["loss"], -of_target[TARGET != 0].sum(), rtol=1e-5)
    assert sums["tokens"] == 6 + 4


def test_padding_of_source_and_target_changes_nothing(variant):
    model, params = variant
    apply = jax.jit(model.apply)
    wide = apply(params, jnp.pad(SOURCE, ((0, 0), (0, 3))), jnp.pad(TARGET, ((0, 0), (0, 2))))
    real = np.asarray(TARGET != 0)
    np.testing.assert_allclose(
        wide[:, :LENGTH][real], apply(params, SOURCE, TARGET)[real], rtol=1e-5, atol=2e-6
    )


def test_a_source_symbol_sees_those_behind_it_only_in_a_bidirectional_prefix():
    def first_of_source(source, **changes):
        # A window of one symbol beside the first hides all of the target's own way to the source.
        model = small_decoder(decoder=DecoderConfig(2, MultiHead(2), 24), **changes)
        params = {"params": float32(random_params(model))}
        cache = jax.jit(lambda source: model.apply(params, source, 1, 2, method="start"))(source)
        return cache.shared[0][1].parts[0].key[:, :, 0]

    changed = SOURCE.at[:, 2].set(9)
    same = first_of_source(SOURCE), first_of_source(changed)
    np.testing.assert_array_equal(*same)
    seen = (first_of_source(source, prefix="bidirectional") for source in (SOURCE, changed))
    assert np.abs(np.subtract(*seen)).max() > 1e-3


def test_a_window_holds_within_a_bidirectional_prefix_too():
    model = small_decoder(decoder=DecoderConfig(1, MultiHead(2), 24), prefix="bidirectional", window=2)
    params, source = {"params": float32(random_params(model))}, jnp.asarray([[5, 6, 7, 8, 9, 3]])
    capture = jax.jit(
        lambda source: model.apply(
            params, model.apply(params, source, method="encode")[0], TARGET[:1], capture=True, method="decode"
        )[1].maps["decoder"][0]["attention"]
    )
    weights = np.asarray(capture(source))[0]
    rows, columns = np.indices((5, 5))
    np.testing.assert_array_equal((weights[:, :5, :5] > 0).all(0), abs(rows - columns) < 2)


def test_packed_documents_do_not_see_each_other():
    model = small_decoder()
    params = {"params": float32(random_params(model))}
    apply = jax.jit(lambda tokens, packed: model.apply(params, tokens, packed=packed, method="language")[0])
    tokens = jnp.asarray([[5, 6, 7, 3, 8, 9, 3, 0]])
    packed = jnp.asarray([[4, 4, 4, 4, 5, 5, 5, 5]])
    together = apply(tokens, packed)
    alone = apply(jnp.asarray([[8, 9, 3, 0, 0, 0, 0, 0]]), jnp.zeros((1, 8), int))
    np.testing.assert_allclose(together[:, 4:7], alone[:, :3], rtol=1e-5, atol=2e-6)


def test_language_model_equals_the_equations_in_float64():
    model = small_decoder(decoder=DecoderConfig(1, MultiHead(2), 24), positions="none")
    params = random_params(model)
    tokens = random_ids([6], 6, seed=3)
    x = params["table"]["table"][tokens[0]] * 4.0
    layer = params["decoder"]["stack"]["layers_0"]

    def norm(x, p):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]

    heads = layer["attention"]["sublayer"]
    h = norm(x, layer["attention"]["layer_norm"])
    query, key, value = (np.einsum("ld,dhk->hlk", h, heads[name]) for name in ("query", "key", "value"))
    seen = attention(query, key, value, np.tril(np.ones((6, 6), bool)))
    x = x + np.einsum("hlk,hkd->ld", seen, heads["out"])
    network = layer["feed_forward"]["sublayer"]
    h = norm(x, layer["feed_forward"]["layer_norm"])
    x = x + np.maximum(h @ network["w_in"] + network["b_in"], 0) @ network["w_out"] + network["b_out"]
    expected = norm(x, params["decoder"]["norm"]) @ params["table"]["table"].T
    hidden, _ = model.apply({"params": float32(params)}, jnp.asarray(tokens), method="language")
    logits = model.apply({"params": float32(params)}, hidden, method="logits")
    np.testing.assert_allclose(logits[0], expected, rtol=1e-5, atol=2e-5)


def test_its_body_has_12_of_the_28_squares_of_a_layer_of_an_encoder_decoder():
    # Feed-forward networks of 4 D: attention has 4 D^2, a network 8 D^2.
    d_model = 32
    layers = {"layers": 3, "attention": MultiHead(4), "feed_forward": 4 * d_model}
    both = Seq2Seq(
        Seq2SeqConfig(d_model=d_model, encoder=EncoderConfig(**layers), decoder=DecoderConfig(**layers)),
        VOCAB,
        VOCAB,
    )
    alone = DecoderOnly(DecoderOnlyConfig(d_model=d_model, decoder=DecoderConfig(**layers)), VOCAB)
    ids = jax.ShapeDtypeStruct((1, 4), jnp.int32)

    def matrices(model, *parts):
        params = jax.eval_shape(model.init, jax.random.key(0), ids, ids)["params"]
        body = [params[part] for part in parts]
        return sum(leaf.size for leaf in jax.tree.leaves(body) if leaf.ndim > 1)

    assert matrices(both, "encoder", "decoder") == 3 * 28 * d_model**2
    assert matrices(alone, "decoder") == 3 * 12 * d_model**2


def test_it_has_no_source_embedding_of_its_own():
    model, both = small_decoder(), small_model(tie="none")
    names = set(random_params(model))
    assert names == {"table", "decoder"} and {"source_table", "target_table"} < set(random_params(both))
