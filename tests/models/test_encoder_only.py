"""An encoder alone: padding, packing, segments, heads, layers, gates, documents and branches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from small_models import float32, parameter_shapes, random_ids, random_params, small_encoder

from flaxnmt.checks.model import check_model
from flaxnmt.config import Config
from flaxnmt.errors import ConfigError
from flaxnmt.layers.active import picked
from flaxnmt.models.config import BudgetConfig, DocumentConfig, EncoderConfig, EncoderOnlyConfig, MultiHead
from flaxnmt.models.flops import sequence_flops
from flaxnmt.models.heads import mean_row
from flaxnmt.sharding import unbox

TOKENS = jnp.asarray(random_ids([7, 4], 7, seed=1))
SHAPES = {"masked": (2, 7, 20), "classes": (2, 3), "labels": (2, 7, 3), "spans": (2, 7, 2)}


def _branches(*branches):
    return EncoderConfig(attention=MultiHead(2), feed_forward=24, branches=branches)


def made(**changes):
    model = small_encoder(**changes)
    return model, {"params": float32(random_params(model))}


@partial(jax.jit, static_argnames=("model", "method"))
def apply(model, params, *inputs, method=None, **named):
    return model.apply(params, *inputs, method=method, **named)


@pytest.mark.parametrize("head", slow_but(["masked", "classes"], SHAPES))
def test_heads_say_what_they_are_for_and_padding_changes_nothing(head):
    model, params = made(head=head, classes=3)
    logits = apply(model, params, TOKENS)
    assert logits.shape == SHAPES[head] and logits.dtype == jnp.float32
    wide = apply(model, params, jnp.pad(TOKENS, ((0, 0), (0, 4))))
    if head == "classes":
        np.testing.assert_allclose(wide, logits, rtol=1e-5, atol=2e-6)
        # Of all tokens, one of which the head looks at.
        hidden, _ = apply(model, params, TOKENS, method="encode")
        np.testing.assert_allclose(
            apply(model, params, hidden, method="logits"), logits, rtol=1e-5, atol=2e-6
        )
    else:
        real = np.asarray(TOKENS != 0)
        np.testing.assert_allclose(wide[:, :7][real], logits[real], rtol=1e-5, atol=2e-6)


def test_every_token_sees_those_before_and_behind_it():
    model, params = made()
    here, there = (
        apply(model, params, tokens, method="encode")[0] for tokens in (TOKENS, TOKENS.at[0, 3].set(9))
    )
    moved = np.abs(here - there)[0].max(-1)
    assert (moved > 1e-4).all()


def test_segments_are_told_apart():
    model, params = made(head="classes")
    segments = jnp.zeros_like(TOKENS).at[:, 3:].set(1)
    assert np.abs(apply(model, params, TOKENS) - apply(model, params, TOKENS, segments)).max() > 1e-3
    without, _ = made(segments=0)
    assert "segment_table" not in random_params(without)


def test_packed_documents_are_encoded_as_if_alone():
    model, params = made()
    tokens, packed = jnp.asarray([[5, 6, 7, 3, 8, 9, 3]]), jnp.asarray([[2, 2, 2, 2, 3, 3, 3]])
    together, _ = apply(model, params, tokens, packed=packed, method="encode")
    alone, _ = apply(model, params, jnp.asarray([[8, 9, 3]]), method="encode")
    np.testing.assert_allclose(together[:, 4:], alone, rtol=1e-5, atol=2e-6)


def test_layers_are_the_contextual_embeddings_in_order():
    model, params = made()
    layers = apply(model, params, TOKENS, method="layers")
    assert layers.shape == (3, 2, 7, 16)
    hidden, _ = apply(model, params, TOKENS, method="encode")
    np.testing.assert_allclose(layers[-1], hidden, rtol=1e-5, atol=2e-6)


ENDS_IN_ROWS = {
    "learned": {},
    "pre-norm, Shaw": {"norm": "pre", "positions": "shaw"},
    "Transformer-XL": {"positions": "transformer_xl"},
    "rotary, nothing kept": {"positions": "rotary", "remat": True},
    "after an LSTM": {"encoder": _branches("lstm:1+attention:1")},
}
COMPUTES_ALL = {
    "gates": {"norm": "pre", "budget": BudgetConfig(encoder=(1.0, 0.5), blocks=2)},
    "scanned": {"scan": True},
    "an LSTM at the end": {"encoder": _branches("attention:1+lstm:1")},
    "two encoders": {"encoder": _branches("attention:1", "lstm:1")},
}


@pytest.mark.parametrize("name", slow_but(["pre-norm, Shaw", "scanned"], [*ENDS_IN_ROWS, *COMPUTES_ALL]))
def test_some_tokens_are_encoded_as_among_all_forward_and_backward(name):
    model, params = made(**(ENDS_IN_ROWS | COMPUTES_ALL)[name])
    assert model.config.ends_in_rows == (name in ENDS_IN_ROWS)
    packed = jnp.asarray([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0]])
    places = jnp.asarray([[4, 0, 6], [2, 3, 5]])
    weights = jnp.asarray(np.random.default_rng(5).normal(size=(2, 3, 16)), jnp.float32)
    # Nobody looks at what is said of padding.
    weights = weights.at[1, 2].set(0)

    def encode(params, places, wanted):
        hidden, aux = model.apply(params, TOKENS, packed=packed, places=places, method="encode")
        return (wanted(hidden) * weights).sum(), (wanted(hidden), aux)

    differentiate = jax.jit(jax.grad(encode, has_aux=True), static_argnums=2)
    some, (hidden, aux) = differentiate(params, places, lambda hidden: hidden)
    every, (expected, expected_aux) = differentiate(params, None, lambda hidden: picked(hidden, places))
    real = np.asarray(weights != 0)
    np.testing.assert_allclose(hidden[real], expected[real], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(aux.use(2), expected_aux.use(2), rtol=1e-6)
    for found, wanted in zip(*map(jax.tree.leaves, (some, every)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=5e-6)


def test_the_work_on_some_tokens_is_what_xla_counts():
    size = {"d_model": 256, "encoder": EncoderConfig(2, MultiHead(4), 1024), "activation": "relu"}
    model, tokens = small_encoder(**size), jnp.ones((2, 32), jnp.int32)
    params = {"params": unbox(parameter_shapes(model))}

    def said(params, tokens, places):
        hidden, _ = model.apply(params, tokens, places=places, method="encode")
        return model.apply(params, hidden, method="logits")

    def found(outputs):
        return sequence_flops(model.config, model.vocab_size, tokens.shape, outputs)

    for outputs in (5, 32):
        lowered = jax.jit(said).lower(params, tokens, jnp.zeros((2, outputs), jnp.int32))
        assert found(outputs) == pytest.approx(lowered.cost_analysis()["flops"], rel=0.05)
    assert found(5) < 0.7 * found(32)


@pytest.mark.slow
def test_gates_have_a_budget_of_the_encoder_alone():
    levels = (1.0, 0.5)
    model, params = made(norm="pre", budget=BudgetConfig(encoder=levels, blocks=2))
    assert model.config.budgets == ((1.0,), (0.5,))

    def encode(skip, budget):
        return model.apply(params, TOKENS, budget=jnp.full(2, budget), skip=skip, method="encode")

    (masked, _), (skipped, aux) = (jax.jit(encode, static_argnums=(0, 1))(skip, 1) for skip in (False, True))
    np.testing.assert_allclose(skipped, masked, rtol=1e-6, atol=1e-6)
    assert aux.used.shape == (2,) and (aux.used > 0).all()
    assert np.abs(masked - encode(False, 0)[0]).max() > 1e-3


@pytest.mark.parametrize("branches", [("lstm:1",), ("lstm:1", "convs2s:1")])
def test_a_class_depends_on_the_last_word_where_no_layer_looks_at_all_of_a_text(branches):
    encoder = EncoderConfig(attention=MultiHead(2), feed_forward=24, branches=branches)
    model, params = made(encoder=encoder, head="classes", norm="pre")
    logits, wide = (apply(model, params, tokens) for tokens in (TOKENS, jnp.pad(TOKENS, ((0, 0), (0, 4)))))
    assert np.abs(apply(model, params, TOKENS.at[0, 6].set(9)) - logits)[0].max() > 1e-4
    np.testing.assert_allclose(wide, logits, rtol=1e-5, atol=2e-6)
    hidden, _ = apply(model, params, TOKENS, method="encode")
    np.testing.assert_allclose(mean_row(hidden, TOKENS != 0)[1], hidden[1, :4].mean(0), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "branches, sees_all",
    [
        (("attention",), True),
        (("lstm:1", "convs2s:2+lstm:1"), False),
        (("lstm:1", "convs2s:1+fnet:1"), True),
        (("static_expansion:1",), True),
        ((), True),
    ],
)
def test_the_first_token_knows_the_text_where_some_layer_looks_at_all_of_it(branches, sees_all):
    assert EncoderOnlyConfig(encoder=EncoderConfig(branches=branches)).sees_all == sees_all


@pytest.mark.parametrize("branches", [("attention:1", "static_expansion:1"), ("lstm:1+fnet:1",)])
def test_any_encoder_can_be_the_one(branches):
    model, params = made(
        encoder=EncoderConfig(attention=MultiHead(2), feed_forward=24, branches=branches), norm="pre"
    )
    assert np.isfinite(apply(model, params, TOKENS)).all()


def test_documents_are_encoded_with_their_sentences_selected():
    document = DocumentConfig(layers=("sentence", "conditional"), t=1)
    model, params = made(document=document, positions="sinusoidal", norm="pre")
    tokens = jnp.asarray(random_ids([4, 3, 4, 0], 4, seed=3)).reshape(1, 4, 4)
    hidden, _ = apply(model, params, tokens, method="encode")
    assert hidden.shape == (1, 4, 4, 16) and np.isfinite(hidden).all()


@pytest.mark.parametrize(
    "changes, flag",
    [
        ({"document": DocumentConfig(layers=("conditional",))}, "--model.document.layers"),
        ({"encoder": EncoderConfig(branches=("attention:1+document:1",))}, "--model.encoder.branches"),
    ],
)
def test_documents_are_refused_where_something_would_be_trained(changes, flag):
    with pytest.raises(ConfigError, match=f"{flag} makes an encoder of documents, and an encoder alone is"):
        check_model(Config(model=EncoderOnlyConfig(**changes)))


def test_gates_around_post_norm_are_refused():
    with pytest.raises(ConfigError, match="gates need --model.norm pre"):
        random_params(small_encoder(budget=BudgetConfig(encoder=(1.0, 0.5))))
