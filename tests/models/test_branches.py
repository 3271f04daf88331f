"""Encoders of any kind, alone, mixed and side by side: norms and skips, composition, training, decoding, work."""

import dataclasses
import functools
import itertools
from typing import get_args

import encoders_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from cases import slow_but
from small_models import CONFIG, VOCAB, float32, parameter_shapes, random_ids, random_params, small_model

from flaxnmt.config import BudgetLossConfig
from flaxnmt.decoding.beam import beam_search
from flaxnmt.encoders.static_expansion import StaticExpansion
from flaxnmt.layers.context import Context
from flaxnmt.models import build
from flaxnmt.models.config import (
    DOCUMENT_KINDS,
    ENCODER_SETS,
    BudgetConfig,
    MixingKind,
    encoder_set,
    parse_branch,
)
from flaxnmt.models.flops import encoder_flops, source_flops
from flaxnmt.sharding import make_mesh, unbox, use_mesh
from flaxnmt.training.objective import translation_objective

LENGTHS = [5, 3, 1]
SOURCE, TARGET = jnp.asarray(random_ids(LENGTHS, 6)), jnp.asarray(random_ids([4, 5, 2], 5, 1))
KINDS = ("attention", *get_args(MixingKind))


def with_branches(*branches, **changes):
    changes = {"decoder": dataclasses.replace(CONFIG.decoder, layers=1)} | changes
    encoder = {name: changes.pop(name) for name in ("combine", "expansion", "final_norm") if name in changes}
    encoder = dataclasses.replace(CONFIG.encoder, branches=branches, **encoder)
    return small_model(encoder=encoder, **changes)


def exact_layer(params, kind, x, norm):
    """A layer of Hu et al. 2023 with the norms, skips and feed-forward networks of its section 3."""

    def block(name, function, skip=True):
        return reference.block(
            params[name], x, lambda h: function(params[name].get("sublayer"), h), norm, skip
        )

    if kind == "convs2s":
        return (x + slow.convs2s(params["mixing"]["sublayer"], x)) / np.sqrt(2)
    if kind == "lstm":
        return block("mixing", slow.lstm, skip=False)
    if kind == "static_expansion":
        return block("mixing", slow.static_expansion)
    if kind == "fnet":
        x = block("mixing", slow.fnet)
    else:
        x = block("attention", lambda p, h: reference.multi_head(p, h, h, None))
    return block("feed_forward", reference.feed_forward)


def exact_encoder(params, kinds, x, norm):
    for place, kind in enumerate(kinds):
        x = exact_layer(params["stack"][f"layers_{place}"], kind, x, norm)
    return reference.layer_norm(x, **params["norm"]) if norm == "pre" else x


@pytest.mark.parametrize("norm", slow_but(["pre"], ["pre", "post"]))
@pytest.mark.parametrize("branch", [*(f"{kind}:2" for kind in KINDS), "lstm:1+attention:1+fnet:1+convs2s:1"])
def test_an_encoder_is_its_equations_with_the_norms_and_skips_of_the_paper(branch, norm):
    config = dataclasses.replace(CONFIG, norm=norm)
    module = build.encoder(config, parse_branch(branch))
    mask = jnp.arange(6) < jnp.asarray(LENGTHS)[:, None]
    x = np.random.default_rng(0).normal(size=(3, 6, CONFIG.d_model))
    context = Context(query_mask=mask, key_mask=mask)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(x), context)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(size=leaf.shape) / 4 + (path[-1].key == "scale"), unbox(shapes)
    )
    y, aux = module.apply({"params": float32(params)}, jnp.asarray(x, jnp.float32), context)
    for row, exact, length in zip(y, x, LENGTHS):
        expected = exact_encoder(params, parse_branch(branch), exact[:length], norm)
        np.testing.assert_allclose(row[:length], expected, rtol=1e-4, atol=1e-4)
    assert aux.used is None


@pytest.mark.parametrize("kind", slow_but(["convs2s"], ["convs2s", "lstm", "fnet", "static_expansion"]))
def test_stacks_see_as_far_as_their_layers_reach(kind):
    """Which rows an output depends on, [output, input]: in LSTMs those before, in M convolutions M on either side."""
    length, layers = 9, 3
    module = build.encoder(CONFIG, (kind,) * layers)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(length, CONFIG.d_model)), jnp.float32)
    shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), x[None], Context())["params"])
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), shapes)
    jacobian = jax.jit(jax.jacrev(lambda x: module.apply({"params": params}, x[None], Context())[0][0]))(x)
    sees = np.abs(np.asarray(jacobian)).max((1, 3)) > 1e-9
    ahead = np.subtract.outer(np.arange(length), np.arange(length))
    everywhere = np.ones((length, length), bool)
    expected = {"convs2s": np.abs(ahead) <= layers, "lstm": ahead >= 0}.get(kind, everywhere)
    np.testing.assert_array_equal(sees, expected)


def test_the_sum_of_a_convolution_and_its_input_may_be_left_as_it_is():
    def output(**changes):
        config = dataclasses.replace(CONFIG.encoder, **changes)
        module = build.encoder(dataclasses.replace(CONFIG, norm="post", encoder=config), ("convs2s",))
        variables = module.init(jax.random.key(0), x, context)
        return module.apply(variables, x, context)[0]

    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6, CONFIG.d_model)), jnp.float32)
    mask = jnp.arange(6) < jnp.asarray(LENGTHS)[:, None]
    context = Context(query_mask=mask, key_mask=mask)
    np.testing.assert_allclose(output(convolution_skip_scale=1.0), np.sqrt(2) * output(), rtol=1e-5)


def test_depth_decides_how_many_vectors_an_expansion_has():
    encoder = build.encoder(CONFIG, ("static_expansion",) * 14)
    counts = [layer.mixing.sublayer.vectors for layer in encoder.stack.layers]
    assert counts == [6, 6, 12, 8, 12, 8, 6, 6, 12, 8, 12, 8, 6, 6]
    # In a mixed stack its expansions are counted, not all layers.
    encoder = build.encoder(CONFIG, ("sentence", "sentence", *("static_expansion", "lstm") * 4))
    mixing = [layer.mixing.sublayer for layer in encoder.stack.layers if layer.mixing is not None]
    assert [each.vectors for each in mixing if isinstance(each, StaticExpansion)] == [6, 6, 12, 8]


def test_branches_add_up_and_one_branch_is_the_model_itself():
    alone, together = (
        with_branches("attention:2"),
        with_branches("attention:2", "lstm:1", "static_expansion:2"),
    )
    plain = small_model(encoder=dataclasses.replace(CONFIG.encoder, layers=2), decoder=alone.config.decoder)
    assert jax.tree.map(jnp.shape, random_params(alone)) == jax.tree.map(jnp.shape, random_params(plain))
    params = float32(random_params(together))
    run = jax.jit(
        lambda model, params: model.apply({"params": params}, SOURCE, method="encode")[0], static_argnums=0
    )
    total = run(together, params)
    branches = params["encoder"]
    singles = [
        run(with_branches(branch), params | {"encoder": branches[f"branches_{place}"]}).memory
        for place, branch in enumerate(together.config.encoder.branches)
    ]
    real = np.asarray(total.mask)
    np.testing.assert_allclose(total.memory[real], sum(singles)[real], rtol=1e-5, atol=1e-5)


def test_a_norm_may_stand_behind_the_sum_in_place_of_one_in_each_encoder():
    model = with_branches("attention:1", "convs2s:2", final_norm="sum")
    params = random_params(model)
    assert not any("norm" in params["encoder"][f"branches_{place}"] for place in range(2))
    x = np.random.default_rng(0).normal(size=(3, 6, CONFIG.d_model))
    mask = jnp.arange(6) < jnp.asarray(LENGTHS)[:, None]
    context = Context(query_mask=mask, key_mask=mask)
    encoders = build.encoders(model.config)
    y, _ = encoders.apply({"params": float32(params["encoder"])}, jnp.asarray(x, jnp.float32), context)
    for row, exact, length in zip(y, x, LENGTHS):
        total = 0
        for place, kinds in enumerate(model.config.encoder_branches):
            branch, h = params["encoder"][f"branches_{place}"]["stack"], exact[:length]
            for layer, kind in enumerate(kinds):
                h = exact_layer(branch[f"layers_{layer}"], kind, h, "pre")
            total = total + h
        expected = reference.layer_norm(total, **params["encoder"]["norm"])
        np.testing.assert_allclose(row[:length], expected, rtol=1e-4, atol=1e-4)
    post = with_branches("attention:1", "convs2s:2", norm="post", final_norm="sum")
    assert "norm" not in parameter_shapes(post)["encoder"]


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["gated", "weighted"])
def test_learned_combinations_begin_as_the_sum(combine):
    model = with_branches("attention:1", "convs2s:2", combine=combine)
    params = unbox(jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)["params"])
    run = jax.jit(lambda model, params: model.apply({"params": params}, SOURCE, TARGET), static_argnums=0)
    learned = run(model, params)
    encoder = {name: value for name, value in params["encoder"].items() if name.startswith("branches")}
    summed = run(with_branches("attention:1", "convs2s:2"), params | {"encoder": encoder})
    np.testing.assert_allclose(learned, summed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "kinds",
    [
        ("lstm", "conditional"),
        pytest.param((*KINDS, *DOCUMENT_KINDS), marks=pytest.mark.slow),
    ],
)
def test_every_pair_of_encoders_has_the_shapes_of_one(kinds):
    for pair in itertools.combinations_with_replacement(kinds, 2):
        model = with_branches(f"{pair[0]}:1", f"{pair[1]}:2")
        shapes = parameter_shapes(model)
        lead = (2, 3) if model.config.is_document else (2,)
        ids = jax.ShapeDtypeStruct((*lead, 4), jnp.int32)
        logits = jax.eval_shape(model.apply, {"params": shapes}, ids, ids)
        assert logits.shape == (*lead, 4, VOCAB), pair


@pytest.mark.parametrize("first, second", slow_but([("convs2s", "fnet")], itertools.combinations(KINDS, 2)))
def test_a_pair_of_encoders_is_the_sum_of_both(first, second):
    one, other = f"{first}:1", f"{second}:2"
    pair = with_branches(one, other)
    params = float32(random_params(pair))
    run = jax.jit(
        lambda model, params: model.apply({"params": params}, SOURCE, method="encode"), static_argnums=0
    )
    parts = [
        run(with_branches(name), params | {"encoder": params["encoder"][f"branches_{place}"]})[0].memory
        for place, name in enumerate((one, other))
    ]
    found = run(pair, params)[0]
    np.testing.assert_allclose(found.memory[found.mask], sum(parts)[found.mask], rtol=1e-5, atol=1e-5)


def train(model, steps=10, **objective):
    """Loss before and after so many steps on one batch, and the parameters."""
    loss = translation_objective(model, 0.1, **objective)
    batch, optimizer = {"source": SOURCE, "target": TARGET}, optax.adam(1e-2)
    params = unbox(jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)["params"])

    @jax.jit
    def step(params, state, key):
        value, gradient = jax.value_and_grad(lambda p: loss(p, batch, key, 0)["loss"])(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value, gradient

    state, values = optimizer.init(params), []
    for number in range(steps):
        params, state, value, gradient = step(params, state, jax.random.key(number))
        values.append(float(value))
    flat = jax.tree_util.tree_leaves_with_path(gradient)
    assert all(np.isfinite(leaf).all() for _, leaf in flat)
    dead = [jax.tree_util.keystr(path) for path, leaf in flat if not np.abs(leaf).max() > 0]
    assert not dead
    return values, params


@pytest.mark.parametrize(
    "branches",
    [
        pytest.param(encoder_set(size, (1, 2, 2, 1, 1)), id=name, marks=pytest.mark.slow)
        for size, name in enumerate(ENCODER_SETS, 1)
    ]
    + [pytest.param((f"{kind}:2",), id=kind, marks=pytest.mark.slow) for kind in KINDS[1:]]
    + [pytest.param(("lstm:1", "lstm:2"), id="twice", marks=pytest.mark.slow)]
    + [pytest.param(("fnet:1+static_expansion:1", "convs2s:1+lstm:1"), id="mixed", marks=pytest.mark.slow)],
)
def test_it_trains_and_decodes(branches):
    model = with_branches(*branches)
    values, params = train(model, 60)
    assert values[-1] < 0.5 * values[0]
    found = jax.jit(lambda params: model.apply({"params": params}, method=best))(params)
    # The batch is learned by heart.
    assert (found == TARGET).mean() > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    "branches", [*ENCODER_SETS.values(), *((f"{kind}:6",) for kind in KINDS[1:])], ids="+".join
)
def test_as_many_layers_as_in_the_paper_train_and_decode(branches):
    model = with_branches(*branches)
    values, params = train(model, 10)
    assert np.isfinite(values).all() and values[-1] < values[0]
    found = jax.jit(lambda params: model.apply({"params": params}, method=best))(params)
    assert found.shape == TARGET.shape and (found < VOCAB).all()


def best(model):
    """The best translation of each source, padded."""
    longest = TARGET.shape[1]
    cache = model.start(SOURCE, 2, longest)
    limits = jnp.full(len(SOURCE), longest)
    return beam_search(model.step, cache, limits, max_length=longest, beam_size=2).tokens[:, 0]


@pytest.mark.slow
def test_gated_branches_train_and_skip_what_their_gates_decide_against():
    budget = BudgetConfig(encoder=(1.0, 0.5), blocks=2)
    model = with_branches("static_expansion:1+convs2s:1", "lstm:1", "fnet:1", budget=budget)
    train(model, 3, budget=BudgetLossConfig(noise_steps=4))
    params = {"params": float32(random_params(model))}
    options = {"budget": jnp.asarray([0, 1, 1]), "method": "encode"}
    masked, aux = jax.jit(lambda: model.apply(params, SOURCE, **options))()
    skipped, other = jax.jit(lambda: model.apply(params, SOURCE, skip=True, **options))()
    real = np.asarray(masked.mask)
    np.testing.assert_allclose(skipped.memory[real], masked.memory[real], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(aux.used, other.used, rtol=1e-6)
    assert (aux.use(3) < 1).all()


def test_one_of_several_encoders_may_be_gated_alone():
    """The other is that of a model without gates, and always counts with all its work."""
    branches = ("attention:1", "convs2s:1")
    alone = with_branches(*branches, budget=BudgetConfig(encoder=(1.0, 0.5), branches=(2,)))
    both = with_branches(*branches, budget=BudgetConfig(encoder=(1.0, 0.5)))
    plain = with_branches(*branches)
    shapes, gated, without = (parameter_shapes(model)["encoder"] for model in (alone, both, plain))
    assert shapes == {"branches_0": without["branches_0"], "branches_1": gated["branches_1"]}
    assert source_flops(plain.config, 6) < source_flops(alone.config, 6) < source_flops(both.config, 6)
    params = {"params": float32(random_params(alone))}

    @functools.partial(jax.jit, static_argnums=0)
    def encode(skip):
        options = {"budget": jnp.asarray([0, 1, 1]), "method": "encode", "capture": True}
        return alone.apply(params, SOURCE, skip=skip, **options)

    (masked, aux), (skipped, other) = map(encode, (False, True))
    np.testing.assert_allclose(skipped.memory[masked.mask], masked.memory[masked.mask], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.used, aux.used, rtol=1e-6)
    assert [list(layer) for layer in aux.gates["encoder"]] == [[], ["mixing"]]
    assert [list(layer) for layer in aux.maps["encoder"]] == [["attention", "feed_forward"], ["mixing"]]
    (gates,) = aux.gates["encoder"][1]["mixing"].values()
    whole = [source_flops(plain.config, length) for length in LENGTHS]
    attention = [encoder_flops(plain.config, ("sentence",), length) for length in LENGTHS]
    np.testing.assert_allclose(aux.full, whole)
    np.testing.assert_array_less(attention, aux.used)
    assert 0 < gates.sum() < sum(LENGTHS)


def test_a_recurrence_has_the_dropout_and_forget_gates_of_its_own_options():
    def made(**options):
        encoder = dataclasses.replace(CONFIG.encoder, **options)
        block = build.mixing(dataclasses.replace(CONFIG, encoder=encoder, dropout=0.3), "lstm", (), 0)
        return block.dropout, block.sublayer.forget_bias

    assert made() == (0.3, 0.0)
    assert made(forget_bias=-2.0, recurrence_dropout=0.0) == (0.0, -2.0)


def test_a_transform_has_the_dropout_of_its_own_option_and_its_feed_forward_that_of_the_model():
    for rate, expected in ((None, 0.3), (0.0, 0.0)):
        encoder = dataclasses.replace(CONFIG.encoder, transform_dropout=rate)
        config = dataclasses.replace(CONFIG, encoder=encoder, dropout=0.3)
        layer = build.encoder_layer(config, "fnet")
        assert (layer.mixing.dropout, layer.feed_forward.dropout) == (expected, 0.3)


@pytest.mark.slow
def test_a_gate_saves_nothing_of_what_mixes_all_rows():
    """An LSTM whose gate is open for a single word is computed whole."""
    module = build.mixing(
        dataclasses.replace(CONFIG, budget=BudgetConfig(encoder=(1.0, 0.5))), "lstm", (1.0, 0.5), 0
    )
    mask = jnp.ones((1, 6), bool)
    context = Context(query_mask=mask, key_mask=mask, capture=True)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, CONFIG.d_model)), jnp.float32)
    shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), x, context)["params"])
    rng = np.random.default_rng(2)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)
    use = module.apply({"params": params}, x, context)[1]
    rows = np.asarray(use.gates["rows"])
    assert 0 < rows.sum() < 6
    np.testing.assert_allclose(use.used, use.full + module.added_flops(6, 6), rtol=1e-6)


@pytest.mark.slow
def test_a_stack_is_scanned_where_its_layers_are_alike():
    model = with_branches("attention:2", "static_expansion:3", "convs2s:2+lstm:1", scan=True)
    stacks = [branch.stack.scan for branch in build.encoders(model.config).branches]
    assert stacks == [True, False, False]
    shapes = parameter_shapes(model)["encoder"]
    unrolled = parameter_shapes(with_branches("attention:2", "static_expansion:3", "convs2s:2+lstm:1"))[
        "encoder"
    ]
    counts = [sum(leaf.size for leaf in jax.tree.leaves(unbox(tree))) for tree in (shapes, unrolled)]
    assert counts[0] == counts[1]
    logits = jax.eval_shape(model.apply, {"params": unbox(parameter_shapes(model))}, SOURCE, TARGET)
    assert logits.shape == (*TARGET.shape, VOCAB)


@pytest.mark.slow
def test_a_scanned_branch_trains():
    train(with_branches("attention:2", "static_expansion:3", "convs2s:2+lstm:1", scan=True), 3)


def test_what_is_captured_is_of_all_layers_of_all_branches():
    model = with_branches("attention:2", "lstm:1", "fnet:1+attention:1")
    params = {"params": float32(random_params(model))}
    _, aux = model.apply(params, SOURCE, capture=True, method="encode")
    weights = [layer["attention"].shape for layer in aux.maps["encoder"] if "attention" in layer]
    assert len(aux.maps["encoder"]) == 5 and weights == [(3, 2, 6, 6)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 8, 1)])
def test_branches_on_a_mesh_are_those_of_one_device(sizes):
    model = with_branches(
        "attention:1", "static_expansion:1", "lstm:1", "convs2s:1", "fnet:1", combine="gated"
    )
    params = float32(random_params(model))
    source, target = (jnp.asarray(random_ids([5, 3, 4, 2, 6, 1, 2, 3], 6, seed)) for seed in (1, 2))
    loss = translation_objective(model, 0.1)

    def gradient(params):
        return jax.value_and_grad(lambda p: loss(p, {"source": source, "target": target}, None)["loss"])(
            params
        )

    value, expected = jax.jit(gradient)(params)
    with use_mesh(make_mesh(*sizes)):
        on_mesh, found = jax.jit(gradient)(params)
    np.testing.assert_allclose(on_mesh, value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, expected)


@pytest.mark.parametrize("final_norm, adds", [("each", False), ("sum", True)])
def test_weights_of_branches_are_scales_of_their_norms_where_each_has_one(final_norm, adds):
    weighted = with_branches("attention:1", "lstm:1", combine="weighted", final_norm=final_norm)
    params = float32(random_params(weighted))
    weights = params["encoder"]["combination"]["weights"] = jnp.asarray([1.7, -0.4])
    encoder = {name: value for name, value in params["encoder"].items() if name != "combination"}
    for place, weight in enumerate(weights):
        branch = encoder[f"branches_{place}"]
        if "norm" in branch:
            encoder[f"branches_{place}"] = branch | {
                "norm": {name: weight * value for name, value in branch["norm"].items()}
            }
    summed = with_branches("attention:1", "lstm:1", final_norm=final_norm)
    found = weighted.apply({"params": params}, SOURCE, TARGET)
    other = summed.apply({"params": params | {"encoder": encoder}}, SOURCE, TARGET)
    assert np.allclose(found, other, rtol=1e-4, atol=1e-5) != adds
