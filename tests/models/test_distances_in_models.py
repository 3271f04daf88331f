"""Whole models with distances of words or hard weights: documents, padding, steps, gradients, meshes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from small_models import CONFIG, VOCAB, float32, parameter_shapes, random_ids, random_params, small_model

from flaxnmt.models.config import DocumentConfig
from flaxnmt.sharding import make_mesh, put_batch, use_mesh
from flaxnmt.training.objective import translation_objective

SOURCE, TARGET = (jnp.asarray(random_ids([5, 3, 4], 5, seed=s)) for s in (1, 2))
DOCUMENTS = jnp.stack([jnp.asarray(random_ids(sizes, 4, seed=3)) for sizes in ([4, 2, 3], [3, 4, 0])])


def document_model(layers, **changes):
    encoder = dataclasses.replace(CONFIG.encoder, layers=len(layers))
    return small_model(
        encoder=encoder, document=DocumentConfig(layers=layers, t=2), relative_clip=3, **changes
    )


@pytest.mark.parametrize(
    "layers, positions",
    [
        pytest.param(("sentence", "conditional"), "shaw", marks=pytest.mark.slow),
        pytest.param(("sentence", "hierarchical"), "rotary", marks=pytest.mark.slow),
        pytest.param(("document", "heads"), "transformer_xl", marks=pytest.mark.slow),
        pytest.param(("document", "context"), "rotary", marks=pytest.mark.slow),
    ],
)
def test_padding_of_documents_changes_no_distance(layers, positions):
    model = document_model(layers, positions=positions)
    params = {"params": float32(random_params(model))}
    encode = jax.jit(lambda ids: model.apply(params, ids, method="encode")[0].memory)
    memory, padded = (encode(ids) for ids in (DOCUMENTS, jnp.pad(DOCUMENTS, ((0, 0), (0, 1), (0, 2)))))
    seen = DOCUMENTS > 0
    np.testing.assert_allclose(padded[:, :3, :4][seen], memory[seen], atol=5e-5)


def test_words_of_a_document_are_counted_across_its_sentences():
    """What comes between two sentences moves them apart, whether or not it is looked at."""
    model = document_model(("document",), positions="rotary")
    params = {"params": float32(random_params(model))}
    encode = jax.jit(lambda ids: model.apply(params, ids, method="encode")[0].memory)
    cut = jnp.zeros_like(DOCUMENTS).at[:, 0].set(DOCUMENTS[:, 0]).at[:, 2].set(DOCUMENTS[:, 1])
    whole = jnp.zeros_like(DOCUMENTS).at[:, :2].set(DOCUMENTS[:, :2])
    # A sentence without words takes no part in the count.
    seen = DOCUMENTS[:, 1] > 0
    np.testing.assert_allclose(encode(cut)[:, 2][seen], encode(whole)[:, 1][seen], atol=2e-5)
    swapped = encode(whole.at[:, :2].set(whole[:, 1::-1]))[:, 0]
    assert np.abs(swapped - encode(whole)[:, 1])[seen].max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["shaw", "transformer_xl", "rotary"])
def test_sentences_of_documents_are_decoded_step_by_step_as_all_at_once(positions):
    model = document_model(("conditional",), positions=positions)
    params = {"params": float32(random_params(model))}
    expected = jax.jit(model.apply)(params, DOCUMENTS, DOCUMENTS)
    beams, (batch, sentences, length) = 2, DOCUMENTS.shape
    cache = jax.jit(lambda: model.apply(params, DOCUMENTS, beams, length, method="start"))()
    step = jax.jit(lambda cache, tokens, t: model.apply(params, cache, tokens, t, method="step"))
    tokens, found = jnp.full((batch * sentences, beams), 2), []
    for t in range(length):
        logits, cache = step(cache, tokens, jnp.int32(t))
        found.append(logits[:, 0])
        tokens = jnp.repeat(DOCUMENTS.reshape(-1, length)[:, t : t + 1], beams, axis=1)
    found = jnp.stack(found, 1).reshape(expected.shape)
    np.testing.assert_allclose(found[DOCUMENTS > 0], expected[DOCUMENTS > 0], atol=5e-5)


@pytest.mark.parametrize(
    "weights, positions",
    [("threshold", "sinusoidal"), pytest.param("argmax", "shaw", marks=pytest.mark.slow)],
)
def test_hard_weights_are_those_of_every_attention_and_are_trained(weights, positions):
    model = small_model(attention_weights=weights, attention_threshold=0.1, positions=positions, dropout=0.0)
    params = float32(random_params(model))

    @jax.jit
    def maps(params):
        encoded, encoder = model.apply({"params": params}, SOURCE, capture=True, method="encode")
        _, decoder = model.apply({"params": params}, encoded, TARGET, capture=True, method="decode")
        return encoder.maps["encoder"], decoder.maps["decoder"]

    encoder, decoder = maps(params)
    for layer in (*encoder, *decoder):
        for name in {"attention", "cross"} & set(layer):
            assert set(np.unique(layer[name])) == {0.0, 1.0}
            if weights == "argmax":
                np.testing.assert_array_equal(layer[name].sum(-1), 1)
    objective = translation_objective(model, 0.1)
    batch = {"source": SOURCE, "target": TARGET}
    gradient = jax.jit(jax.grad(lambda params: objective(params, batch, None)["loss"]))(params)
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
@pytest.mark.parametrize("positions, scan", [("shaw", False), ("transformer_xl", True), ("rotary", True)])
def test_loss_and_gradient_are_the_same_on_a_mesh(positions, scan):
    model = small_model(positions=positions, scan=scan, relative_clip=2)
    params = float32(random_params(model))
    batch = {
        name: random_ids([5, 3, 4, 2, 5, 1, 2, 3], 5, seed=s) for s, name in enumerate(("source", "target"))
    }
    objective = translation_objective(model, 0.1)

    def loss_and_gradient(params, batch):
        return jax.value_and_grad(lambda params: objective(params, batch, None)["loss"])(params)

    expected = jax.jit(loss_and_gradient)(params, jax.tree.map(jnp.asarray, batch))
    mesh = make_mesh(2, 2, 2)
    with use_mesh(mesh):
        found = jax.jit(loss_and_gradient)(params, put_batch(batch, mesh))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-4), found, expected)


@pytest.mark.parametrize("positions", slow_but(["transformer_xl"], ["shaw", "transformer_xl", "rotary"]))
def test_scanned_layers_have_the_parameters_of_single_ones(positions):
    sizes = [
        sum(
            leaf.size
            for leaf in jax.tree.leaves(parameter_shapes(small_model(positions=positions, scan=scan)))
        )
        for scan in (False, True)
    ]
    assert sizes[0] == sizes[1] > VOCAB
