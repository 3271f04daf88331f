"""Objectives of encoders and of models of texts, against float64 sums written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from small_models import VOCAB, float32, random_ids, random_params, small_decoder, small_encoder

from flaxnmt.config import BudgetLossConfig
from flaxnmt.layers.active import picked
from flaxnmt.models.config import BudgetConfig, DecoderConfig, EncoderConfig, MultiHead
from flaxnmt.training.labelled import labelled_objective, labelled_sums, span_logits
from flaxnmt.training.masking import RATE, choose, corrupt
from flaxnmt.training.objective import language_objective, masked_objective

CLASSES = 3
TOKENS = random_ids([7, 4, 0, 5], 7, seed=1)
LABELS = {
    "classes": np.array([2, -1, -1, 0]),
    "labels": np.where((TOKENS > 0) & (np.arange(7) % 3 > 0), TOKENS % CLASSES, -1),
    "spans": np.array([[1, 3], [0, 0], [-1, -1], [4, 4]]),
}
MASK, WORDS = 4, (7, VOCAB)
SMALL = {"encoder": EncoderConfig(layers=1, attention=MultiHead(2), feed_forward=24), "norm": "pre"}


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def by_hand(logits, said, head):
    """(loss, count) over everything that has a label; an answer is one, with the mean of its ends."""
    log_p, ends = log_softmax(logits), 2 if head == "spans" else 1
    places = [place for place in np.ndindex(said.shape) if said[place] >= 0]
    return -sum(log_p[(*place, said[place])] for place in places) / ends, len(places) / ends


def random_logits(head, seed=0):
    shape = {"classes": (4, CLASSES), "labels": (4, 7, CLASSES), "spans": (4, 7, 2)}[head]
    logits = jnp.asarray(3 * np.random.default_rng(seed).normal(size=shape), jnp.float32)
    return span_logits(logits, jnp.asarray(TOKENS)) if head == "spans" else logits


@pytest.mark.parametrize("head", LABELS)
def test_sums_and_gradients_agree_with_float64(head):
    logits, said = random_logits(head), LABELS[head]

    def loss(logits):
        sums = labelled_sums(logits, jnp.asarray(said), head)
        return sums["loss"], sums

    (_, sums), gradient = jax.value_and_grad(loss, has_aux=True)(logits)
    expected, count = by_hand(logits, said, head)
    assert sums["tokens"] == count > 0
    np.testing.assert_allclose([sums["loss"], sums["nll"]], [expected] * 2, rtol=1e-5)
    # d/dz of -log softmax(z)_y is softmax(z) - e_y, where there is a label.
    onehot = np.eye(logits.shape[-1])[np.maximum(said, 0)]
    by_place = (np.exp(log_softmax(logits)) - onehot) * (said >= 0)[..., None]
    np.testing.assert_allclose(gradient, by_place / (2 if head == "spans" else 1), rtol=1e-5, atol=1e-6)


def test_an_answer_is_not_in_padding():
    logits = random_logits("spans")
    assert logits.shape == (4, 2, 7)
    shares = np.exp(log_softmax(logits))
    assert (shares[:2][np.broadcast_to(TOKENS[:2, None] == 0, (2, 2, 7))] == 0).all()
    said = jnp.asarray(LABELS["spans"])
    assert labelled_sums(logits, said.at[1].set(-1), "spans")["tokens"] == 2


@pytest.fixture(scope="module", params=slow_but(["classes"], LABELS))
def labelled(request):
    """Head, model, parameters, batch and objective with its gradient."""
    model = small_encoder(head=request.param, classes=CLASSES, dropout=0.0, **SMALL)
    batch = {"tokens": TOKENS, "segments": (np.cumsum(TOKENS == 3, -1) > 0).astype(np.int32)}
    batch[request.param] = LABELS[request.param]
    batch = jax.tree.map(jnp.asarray, batch)
    objective = labelled_objective(model)

    def sums(params, batch):
        found = objective(params, batch, jax.random.key(0))
        return found["loss"], found

    return (
        request.param,
        model,
        float32(random_params(model)),
        batch,
        jax.jit(jax.value_and_grad(sums, has_aux=True)),
    )


def test_the_objective_is_that_of_the_logits_of_the_model(labelled):
    head, model, params, batch, objective = labelled
    (loss, sums), gradient = objective(params, batch)
    logits = jax.jit(model.apply)({"params": params}, batch["tokens"], batch["segments"])
    logits = span_logits(logits, batch["tokens"]) if head == "spans" else logits
    expected, count = by_hand(logits, LABELS[head], head)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert sums["tokens"] == count and set(sums) == {"loss", "nll", "tokens"}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)), "a row is empty"
    # Segments are part of what is read.
    other = objective(params, batch | {"segments": jnp.zeros_like(batch["segments"])})[0][0]
    assert abs(other - loss) > 1e-4


def test_rows_without_a_label_have_no_gradient(labelled):
    head, _, params, batch, objective = labelled
    (loss, sums), gradient = objective(params, batch | {head: jnp.full_like(batch[head], -1)})
    assert loss == sums["tokens"] == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


def test_masked_tokens_are_said_where_they_were_drawn():
    model = small_encoder(dropout=0.0, **SMALL)
    params = float32(random_params(model))
    tokens = np.concatenate([random_ids([30, 17, 0], 30, seed=2)] * 2)
    packed = np.where(tokens > 0, 1 + (np.arange(30) > 11), 0)
    batch = jax.tree.map(jnp.asarray, {"tokens": tokens, "packed": packed})
    objective = masked_objective(model, MASK, WORDS)

    def sums(params, key):
        found = objective(params, batch, key)
        return found["loss"], found

    (_, drawn), gradient = jax.jit(jax.value_and_grad(sums, has_aux=True))(params, jax.random.key(5))
    plain = jax.jit(lambda params: objective(params, batch, None))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)), "rows are empty"

    @jax.jit
    def said(params, draws):
        draws = jax.random.split(draws)
        chosen, counts = choose(draws[0], batch["tokens"] >= WORDS[0], RATE)
        shown = corrupt(draws[1], batch["tokens"], chosen, counts, MASK, WORDS)
        hidden, _ = model.apply({"params": params}, shown, packed=batch["packed"], method="encode")
        return chosen, counts, model.apply({"params": params}, picked(hidden, chosen), method="logits")

    for found, draws in (
        (drawn, jax.random.fold_in(jax.random.key(5), 2)),
        (plain, jax.random.key(0)),
    ):
        chosen, counts, logits = map(np.asarray, said(params, draws))
        log_p = log_softmax(logits)
        nll, right, count = 0.0, 0, 0
        for row, place in zip(*np.nonzero(counts)):
            token = tokens[row, chosen[row, place]]
            nll, count = nll - log_p[row, place, token], count + 1
            right += int(log_p[row, place].argmax() == token)
        assert found["tokens"] == count > 10 and found["masked_accuracy"] == right
        np.testing.assert_allclose([found["loss"], found["nll"]], [nll] * 2, rtol=1e-5)


def test_every_symbol_of_a_text_is_said():
    model = small_decoder(
        task="language",
        dropout=0.0,
        decoder=DecoderConfig(layers=1, attention=MultiHead(2), feed_forward=24),
    )
    params = float32(random_params(model))
    tokens = jnp.asarray([[2, 8, 9, 2, 2, 11, 12], [13, 2, 0, 0, 0, 0, 0], [0] * 7])
    target = jnp.asarray([[8, 9, 3, 3, 11, 12, 13], [3, 3, 0, 0, 0, 0, 0], [0] * 7])
    packed = jnp.asarray([[4, 4, 4, 4, 5, 5, 5], [5, 5, 0, 0, 0, 0, 0], [0] * 7])

    @jax.jit
    def logits(params):
        hidden, _ = model.apply({"params": params}, tokens, packed=packed, method="language")
        return model.apply({"params": params}, hidden, method="logits")

    log_p, said = log_softmax(logits(params)), np.argwhere(target)
    expected = -sum(log_p[row, place, target[row, place]] for row, place in said)

    def of(chunk):
        objective, batch = language_objective(model, chunk), {"tokens": tokens, "target": target}
        return jax.jit(lambda params: objective(params, batch | {"packed": packed}, None))(params)

    for sums in map(of, (None, 7)):
        np.testing.assert_allclose([sums["loss"], sums["nll"]], [expected] * 2, rtol=1e-5)
        assert sums["tokens"] == len(said) == 9


@pytest.fixture(scope="module")
def gated():
    model = small_encoder(
        head="classes", dropout=0.0, budget=BudgetConfig(encoder=(1.0, 0.5), blocks=2), **SMALL
    )
    tokens = jnp.asarray(random_ids([7, 5, 6, 0], 7, seed=3))
    batch = {"tokens": tokens, "segments": jnp.zeros_like(tokens), "classes": jnp.asarray([1, 0, 1, -1])}
    return model, float32(random_params(model)), batch


@pytest.mark.slow
def test_the_budget_loss_weighs_as_much_as_the_rows(gated):
    model, params, batch = gated

    def sums(weight):
        config = BudgetLossConfig(weight=weight, noise_steps=10, noise_end=0.0)
        objective = labelled_objective(model, config)
        return jax.jit(lambda params: objective(params, batch, jax.random.key(1), jnp.int32(3)))(params)

    found = sums(0.25)
    assert found["budget_loss"] > 0 and found["tokens"] == 3
    np.testing.assert_allclose(found["loss"], found["nll"] + 0.25 * found["budget_loss"], rtol=1e-5)
    assert "used" not in found and np.isfinite(found["encoder_over_budget"])
    np.testing.assert_allclose(sums(0.0)["loss"], found["nll"], rtol=1e-5)


@pytest.mark.slow
def test_an_evaluation_says_what_each_budget_uses():
    model = small_encoder(dropout=0.0, budget=BudgetConfig(encoder=(1.0, 0.5), blocks=2), **SMALL)
    params = float32(random_params(model))
    tokens = jnp.asarray(random_ids([30, 17, 0], 30, seed=2))
    batch = {"tokens": tokens, "packed": jnp.asarray(tokens > 0, jnp.int32)}
    objective = masked_objective(model, MASK, WORDS, BudgetLossConfig(noise_steps=10))
    evaluate = jax.jit(lambda params, batch: objective(params, batch, None))
    plain = evaluate(params, batch)
    found = [evaluate(params, batch | {"budget": jnp.full(3, place)}) for place in (0, 1)]
    # Without a word on it the budget is the largest.
    np.testing.assert_allclose(found[0]["loss"], plain["loss"], rtol=1e-5)
    assert abs(found[1]["loss"] - plain["loss"]) > 1e-3 and "used" not in plain
    draws = jax.random.split(jax.random.key(0))
    chosen, counts = choose(draws[0], tokens >= WORDS[0], RATE)
    shown = corrupt(draws[1], tokens, chosen, counts, MASK, WORDS)

    @jax.jit
    def encode(params, budget):
        return model.apply({"params": params}, shown, packed=batch["packed"], budget=budget, method="encode")[
            1
        ]

    aux = [encode(params, jnp.full(3, place)) for place in (0, 1)]
    for sums, one in zip(found, aux):
        np.testing.assert_allclose(sums["used"], one.used.sum(), rtol=1e-5)
        np.testing.assert_allclose(sums["full"], one.full.sum(), rtol=1e-5)
        assert 0 < sums["used"] < 1.5 * sums["full"]
