"""Models with gates: budgets in training, decisions in decoding, padding, causality, documents."""

import dataclasses
from functools import partial

import gates_reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import (
    CONFIG,
    VOCAB,
    float32,
    parameter_shapes,
    random_ids,
    random_params,
    small_decoder,
    small_encoder,
    small_model,
)

from flaxnmt.checks.model import check_model
from flaxnmt.checks.options import check_ranges
from flaxnmt.config import BudgetLossConfig, Config, TrainingConfig
from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import budget_loss
from flaxnmt.layers.context import Aux
from flaxnmt.models.config import (
    BudgetConfig,
    DecoderConfig,
    DecoderOnlyConfig,
    DocumentConfig,
    EncoderConfig,
    EncoderOnlyConfig,
    MultiHead,
)
from flaxnmt.models.flops import forward_flops
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.sharding import make_mesh, tree_shardings, unbox
from flaxnmt.symbols import BOS, PAD
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.objective import BudgetLoss, translation_objective

LEVELS = (1.0, 0.5)
BOTH = BudgetConfig(encoder=LEVELS, decoder=LEVELS, blocks=2)
SMALL = dataclasses.replace(CONFIG, decoder=dataclasses.replace(CONFIG.decoder, layers=1))
BEAMS, LENGTH = 2, 5
SOURCE, TARGET = jnp.asarray(random_ids([5, 3, 4], 6)), jnp.asarray(random_ids([4, 5, 2], 5, 1))
BUDGET = jnp.asarray([0, 3, 2])


@pytest.fixture(scope="module")
def made():
    model = small_model(budget=BOTH, decoder=SMALL.decoder)
    return model, {"params": float32(random_params(model))}


@partial(jax.jit, static_argnames=("model", "skip"))
def logits(model, variables, source, target, budget=BUDGET, skip=False):
    def run(model, source, target):
        encoded, encoder = model.encode(source, budget=budget, skip=skip, capture=True)
        hidden, decoder = model.decode(encoded, target, skip=skip, capture=True)
        return model.logits(hidden), encoder, decoder

    return model.apply(variables, source, target, method=run)


@pytest.mark.slow
def test_what_is_not_computed_is_what_is_multiplied_by_zero(made):
    masked, encoder, decoder = logits(*made, SOURCE, TARGET)
    skipped, *use = logits(*made, SOURCE, TARGET, skip=True)
    real = np.asarray(TARGET != 0)[..., None]
    np.testing.assert_allclose(skipped * real, masked * real, rtol=1e-6, atol=1e-6)
    for one, other in zip((encoder, decoder), use):
        np.testing.assert_allclose(one.used, other.used, rtol=1e-6)
        gates = np.concatenate([np.ravel(gate) for gate in jax.tree.leaves(one.gates)])
        assert 0.1 < gates.mean() < 0.9 and set(gates) == {0.0, 1.0}


@pytest.mark.parametrize("logit", [0.0, -1e-3])
def test_with_all_gates_open_it_is_the_transformer_with_another_norm_and_with_all_closed_no_layer_acts(logit):
    model = small_model(budget=BudgetConfig(LEVELS, LEVELS, blocks=1), decoder=SMALL.decoder)
    params = gates_reference.set_gates(random_params(model), logit)
    for skip in (False, True):
        found, *sides = logits(model, {"params": float32(params)}, SOURCE, TARGET, skip=skip)
        for ours, source, target, budget in zip(found, SOURCE, TARGET, BUDGET):
            slow = gates_reference.EqualGates(params, logit >= 0, int(budget))
            source, target = (np.asarray(ids)[np.asarray(ids) != 0] for ids in (source, target))
            np.testing.assert_allclose(ours[: len(target)], slow.logits(source, target), atol=5e-5)
        gates = np.concatenate([np.ravel(gate) for side in sides for gate in jax.tree.leaves(side.gates)])
        assert (gates.max(), gates.mean() > 0) == ((1, True) if logit >= 0 else (0, False))


def test_steps_over_a_cache_decide_as_the_full_pass_does(made):
    model, variables = made
    hypotheses = jnp.asarray(random_ids([LENGTH] * 6, LENGTH, seed=2)).reshape(3, BEAMS, LENGTH)
    start = jax.jit(lambda: model.apply(variables, SOURCE, BEAMS, LENGTH, budget=BUDGET, method="start"))
    step = jax.jit(lambda *args: model.apply(variables, *args, method="step"))
    cache, tokens, steps = start(), jnp.full((3, BEAMS), BOS), []
    for t in range(LENGTH):
        scores, cache = step(cache, tokens, jnp.int32(t))
        tokens = hypotheses[:, :, t]
        steps.append(scores)
    source, budget = (jnp.repeat(x, BEAMS, axis=0) for x in (SOURCE, BUDGET))
    full, _, _ = logits(model, variables, source, hypotheses.reshape(-1, LENGTH), budget)
    np.testing.assert_allclose(
        jnp.stack(steps, axis=2), full.reshape(*hypotheses.shape, VOCAB), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("family", ["two stacks", pytest.param("one sequence", marks=pytest.mark.slow)])
def test_a_dead_hypothesis_goes_through_no_layer(made, family):
    model, _ = made
    if family == "one sequence":
        model = small_decoder(budget=BudgetConfig(decoder=LEVELS), positions="rotary")
    variables = {"params": float32(gates_reference.set_gates(random_params(model), 1.0))}

    @partial(jax.jit, static_argnames="skip")
    def logits(tokens, skip):
        cache = model.apply(variables, SOURCE, BEAMS, LENGTH, method="start")
        return model.apply(variables, cache, tokens, jnp.int32(0), skip=skip, method="step")[0]

    for skip in (False, True):
        alive, half = logits(jnp.full((3, BEAMS), BOS), skip), logits(jnp.asarray([[BOS, PAD]] * 3), skip)
        np.testing.assert_allclose(half[:, 0], alive[:, 0], rtol=1e-5, atol=1e-5)
        # Nothing of its source reaches it.
        np.testing.assert_array_equal(half[:1, 1], half[1:2, 1])
        assert np.abs(alive[0, 1] - alive[1, 1]).max() > 1e-3


@pytest.mark.slow
def test_padding_neither_counts_nor_changes_anything(made):
    short, encoder, decoder = logits(*made, SOURCE, TARGET)
    wide = [jnp.pad(ids, ((0, 0), (0, 3))) for ids in (SOURCE, TARGET)]
    longer, *use = logits(*made, *wide)
    real = np.asarray(TARGET != 0)[..., None]
    np.testing.assert_allclose(longer[:, : TARGET.shape[1]] * real, short * real, rtol=1e-5, atol=1e-5)
    for one, other in zip((encoder, decoder), use):
        np.testing.assert_allclose((one.used, one.full), (other.used, other.full), rtol=1e-6)


@pytest.mark.slow
def test_padding_of_documents_does_not_count_either():
    """Twice as many sentences would take the form of attention that pays for many, and have a deeper tree."""
    document = DocumentConfig(layers=("hierarchical",), t=1, decoder_context=True, decoder_heads=True)
    model = Seq2Seq(dataclasses.replace(SMALL, document=document, budget=BOTH), VOCAB, VOCAB)
    source = jnp.asarray(np.stack([random_ids([4, 3, 2], 4, 5), random_ids([3, 4, 0], 4, 6)]))
    target = jnp.asarray(np.stack([random_ids([3, 2, 3], 3, 7), random_ids([2, 3, 0], 3, 8)]))
    variables, budget = {"params": float32(random_params(model))}, jnp.asarray([1, 3])
    works = []
    for more in (0, 4):
        ids = [jnp.pad(side, ((0, 0), (0, more), (0, more and 2))) for side in (source, target)]
        _, *stacks = logits(model, variables, *ids, budget)
        works.append([(stack.used, stack.full) for stack in stacks])
    np.testing.assert_allclose(*works, rtol=1e-6)
    fraction = jnp.asarray(model.config.budgets)
    losses = [
        [budget_loss(*work, fraction[:, part], budget) for part, work in enumerate(stacks)]
        for stacks in works
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_gate_reads_its_own_token_so_that_nothing_comes_from_the_future(made):
    before, _, decoder = logits(*made, SOURCE, TARGET)
    changed = TARGET.at[:, 2:].set(jnp.where(TARGET[:, 2:] != 0, 7, 0))
    after, _, other = logits(*made, SOURCE, changed)
    np.testing.assert_allclose(after[:, :3], before[:, :3], rtol=1e-5, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[:, :3], b[:, :3]),
        *([layer["attention"] for layer in aux.gates["decoder"]] for aux in (decoder, other)),
    )
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-3


@pytest.mark.slow
def test_another_budget_is_another_translation_and_none_is_the_full_one(made):
    model, variables = made
    full, _, _ = logits(model, variables, SOURCE, TARGET, jnp.zeros(3, jnp.int32))
    unsaid = jax.jit(model.apply)(variables, SOURCE, TARGET)
    np.testing.assert_allclose(unsaid, full, rtol=1e-5, atol=1e-5)
    half, _, _ = logits(model, variables, SOURCE, TARGET, jnp.full(3, 3))
    assert np.abs(half - full).max() > 1e-2


def test_gradients_reach_every_control_network_and_the_budgets(made):
    model, variables = made
    objective = translation_objective(model, 0.1, budget=BudgetLossConfig(noise_steps=4))
    batch = {"source": SOURCE, "target": TARGET}

    @jax.jit
    def gradient(params, update):
        def loss(params):
            sums = objective(params, batch, jax.random.key(0), update)
            return sums["loss"], sums

        return jax.value_and_grad(loss, has_aux=True)(params)

    (_, sums), gradients = gradient(variables["params"], 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        if "control" in name or "budget_table" in name:
            assert np.abs(leaf).max() > 0, name
    tokens = float(sums["tokens"])
    assert tokens == float((TARGET != 0).sum())
    assert 0 < float(sums["budget_loss"]) / tokens < 2
    # Noise grows with the updates: none at the first.
    (later, _), _ = gradient(variables["params"], 4)
    assert abs(float(later) - float(sums["loss"])) > 1e-3


@pytest.mark.slow
def test_the_budget_loss_is_worth_its_weight_in_target_tokens(made):
    model, variables = made
    batch = {"source": SOURCE, "target": TARGET}

    def sums(weight):
        budget = BudgetLossConfig(weight=weight, noise_steps=4)
        return translation_objective(model, 0.1, budget=budget)(
            variables["params"], batch, jax.random.key(0), 0
        )

    step = jax.jit(sums)
    without, double = step(0.0), step(2.0)
    np.testing.assert_allclose(double["loss"] - without["loss"], 2 * without["budget_loss"], rtol=1e-4)


def test_below_the_full_budget_decisions_count_and_values_at_it(made, monkeypatch):
    model, variables = made
    batch = {"source": SOURCE, "target": TARGET}
    # The number of the update is that of the budget, so that all of them are one compilation.
    monkeypatch.setattr(BudgetLoss, "draw", lambda self, key, rows, step: jnp.full(rows, step))

    def over_budget(count):
        config = BudgetLossConfig(count=count, noise_start=2.0, noise_end=2.0)
        objective = jax.jit(
            partial(translation_objective(model, 0.1, budget=config), variables["params"], batch)
        )
        sums = [objective(jax.random.key(0), drawn) for drawn in range(len(model.config.budgets))]
        return np.asarray([[one["encoder_over_budget"], one["decoder_over_budget"]] for one in sums])

    # Both sides full, each of them, none.
    same = over_budget("expected") == over_budget("decided")
    np.testing.assert_array_equal(same, np.asarray(model.config.budgets) == 1)


def test_until_budgets_begin_all_is_trained_at_the_full_one_without_noise(made):
    model, _ = made
    config = BudgetLossConfig(begin=3, noise_start=1.0, noise_end=5.0, noise_steps=7)
    gated = BudgetLoss(model, config)
    keys = jax.random.split(jax.random.key(1), 2)
    assert all((gated.draw(keys[0], 64, step) == 0).all() for step in range(3)) and model.config.budgets[
        0
    ] == (1, 1)
    assert set(np.asarray(gated.draw(keys[0], 64, 3))) == {0, 1, 2, 3}
    np.testing.assert_array_equal(
        gated.draw(keys[1], 64, 3), BudgetLoss(model, BudgetLossConfig(noise_steps=7)).draw(keys[1], 64, 0)
    )
    assert [float(gated.noise(step)) for step in (0, 2, 3, 5, 7, 9)] == [0, 0, 1, 3, 5, 5]
    assert [bool(gated.open(step)) for step in (0, 2, 3, 9)] == [True, True, False, False]
    assert BudgetLoss(model, BudgetLossConfig(noise_steps=7)).open(3) is None


def test_gates_are_decided_from_an_update_on(made):
    model, _ = made
    gated = BudgetLoss(model, BudgetLossConfig(begin=2, decide_from=5, noise_steps=7))
    assert [bool(gated.decided(step)) for step in (0, 4, 5, 9)] == [False, False, True, True]
    budget = jnp.zeros(3, jnp.int32)
    assert bool(gated.gating(budget, 5, 0).decided) and not gated.gating(budget, 4, 0).decided
    assert BudgetLoss(model, BudgetLossConfig(noise_steps=7)).gating(budget, 5, 0).decided is None


def test_budgets_come_down_to_their_levels_in_a_line(made):
    model, _ = made
    levels = np.asarray(model.config.budgets)
    falling = BudgetLoss(model, BudgetLossConfig(begin=2, fall_steps=6, noise_steps=7))
    for step, share in ((0, 0), (2, 0), (3, 0.25), (5, 0.75), (6, 1), (9, 1)):
        np.testing.assert_allclose(falling.shares(step), 1 - (1 - levels) * share)
    at_once = BudgetLoss(model, BudgetLossConfig(begin=2, noise_steps=7))
    np.testing.assert_allclose(at_once.shares(0), levels)
    # The loss of the same use is one of the other budget.
    half = levels.tolist().index([0.5, 0.5])
    drawn, reports = jnp.full(3, half), [Aux(used=jnp.ones(3) * 3.0, full=jnp.ones(3) * 4.0)] * 2
    for step, expected in ((2, -0.25), (4, 0.0), (6, 0.25)):
        sums = falling.sums(drawn, step, *reports)
        np.testing.assert_allclose(sums["encoder_over_budget"], expected, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [{}, {"normaliser": "total"}, {"normaliser": "squared"}, {"two_sided": False}, {"per_sequence": True}],
)
def test_the_loss_is_that_of_the_options(made, options):
    model, _ = made
    drawn = jnp.asarray([0, 1, 2, 3, 3, 1])
    used, full = jnp.asarray([4.0, 1.0, 3.0, 1.0, 3.5, 2.0]), jnp.full(6, 4.0)
    reports = [Aux(used=used, full=full), Aux(used=used[::-1], full=full)]
    found = BudgetLoss(model, BudgetLossConfig(noise_steps=7, **options)).sums(drawn, 3, *reports)
    expected = sum(
        budget_loss(
            aux.used,
            aux.full,
            jnp.asarray([budget[part] for budget in model.config.budgets]),
            drawn,
            **options,
        )
        for part, aux in enumerate(reports)
    )
    np.testing.assert_allclose(found["budget_loss"], expected, rtol=1e-6)
    plain = BudgetLoss(model, BudgetLossConfig(noise_steps=7)).sums(drawn, 3, *reports)
    # Each option makes another loss of this use.
    assert not options or abs(float(plain["budget_loss"] - found["budget_loss"])) > 1e-3


def test_half_of_the_sequences_may_be_full_on_both_sides_at_once(made):
    model, _ = made
    both = model.config.budgets.index((1.0, 1.0))
    options = ({}, 1 / 4), ({"joint": True}, 1 / 2 + 1 / 8), ({"full_share": 0.8}, 0.64)
    for changes, share in options:
        gated = BudgetLoss(model, BudgetLossConfig(noise_steps=7, **changes))
        found = np.asarray(gated.draw(jax.random.key(3), 4096, 3)) == both
        assert found.mean() == pytest.approx(share, abs=0.03)


@pytest.mark.slow
def test_one_side_may_be_gated_alone():
    model = small_model(budget=BudgetConfig(decoder=LEVELS))
    assert model.config.budgets == ((1.0, 1.0), (1.0, 0.5))
    variables = {"params": float32(random_params(model))}
    assert not any("control" in name for name in variables["params"]["encoder"]["stack"]["layers_0"])
    use = jax.jit(lambda: model.apply(variables, SOURCE, TARGET, method="logits_and_use"))()[1]
    assert use.shape == (3, 2)
    np.testing.assert_array_equal(use[:, 0], 1)
    assert (use[:, 1] < 1).all()


@pytest.mark.parametrize(
    "kind, scan",
    [
        pytest.param("conditional", False, marks=pytest.mark.slow),
        pytest.param("context", True, marks=pytest.mark.slow),
    ],
)
def test_attention_over_documents_is_gated_trains_and_skips(kind, scan):
    document = DocumentConfig(layers=(kind,), t=2)
    config = dataclasses.replace(SMALL, document=document, budget=BOTH, scan=scan)
    model = Seq2Seq(config, VOCAB, VOCAB)
    source = jnp.asarray(np.stack([random_ids([4, 3, 2], 4, 5), random_ids([3, 4, 0], 4, 6)]))
    target = jnp.asarray(np.stack([random_ids([3, 2, 3], 3, 7), random_ids([2, 3, 0], 3, 8)]))
    variables = {"params": float32(random_params(model))}
    budget = jnp.asarray([1, 3])
    masked, encoder, _ = logits(model, variables, source, target, budget)
    skipped, other, _ = logits(model, variables, source, target, budget, skip=True)
    real = np.asarray(target != 0)[..., None]
    np.testing.assert_allclose(skipped * real, masked * real, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.used, encoder.used, rtol=1e-6)
    gates = np.concatenate([np.ravel(gate) for gate in jax.tree.leaves(encoder.gates)])
    assert 0.1 < gates.mean() < 0.9 and set(gates) == {0.0, 1.0}
    objective = translation_objective(model, 0.1, budget=BudgetLossConfig(count="decided", noise_steps=4))
    batch = {"source": source, "target": target}
    gradients = jax.jit(jax.grad(lambda p: objective(p, batch, jax.random.key(0), 2)["loss"]))(
        variables["params"]
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        # What decides: gates, and of conditional attention the selector.
        if any(part in name for part in ("control", "budget_table", "selector")):
            assert np.abs(leaf).max() > 0, name


def test_work_of_a_gated_model_is_that_of_the_plain_one_of_its_control_networks_and_norms(made):
    shapes = VOCAB, SOURCE.shape, TARGET.shape
    gated, plain = (forward_flops(config, *shapes) for config in (made[0].config, SMALL))
    hidden, d_model = CONFIG.d_model // 8, CONFIG.d_model
    rows = {"source": SOURCE.size, "target": TARGET.size}
    one, two = 2 * hidden * (d_model + 1), 2 * hidden * (d_model + 2)
    # An attention has a norm more than without gates, a feed-forward network of two parts three.
    norm = 7 * d_model
    encoder = rows["source"] * (2 * one + two + 4 * norm)
    decoder = rows["target"] * (3 * one + two + 5 * norm) + rows["source"] * one
    assert gated - plain == encoder + decoder


def test_keys_are_normed_in_the_stacks_that_have_gates_alone():
    changes = {"document": DocumentConfig(layers=("heads",))}
    model = small_model(budget=BudgetConfig(encoder=(1.0, 0.5), blocks=2, normed_keys=True), **changes)
    names = named_leaves(unbox(parameter_shapes(model)))
    normed = {name.rsplit("/", 1)[0] for name in names if name.endswith("key_norm_scale")}
    assert normed and all(name.startswith("encoder/") and "context" not in name for name in normed), normed


def test_few_budgets_and_segments_lie_whole_where_vocabularies_are_cut():
    budget = BudgetConfig((1.0, 0.5, 0.25), (1.0, 0.5, 0.25), 2)
    mesh = make_mesh(1, 1, 4, devices=jax.devices()[:4])
    heads = MultiHead(4)
    encoder = EncoderConfig(layers=1, attention=heads, feed_forward=24)
    models = (
        small_model(budget=budget, encoder=encoder, decoder=DecoderConfig(1, heads, 24)),
        small_encoder(budget=dataclasses.replace(budget, decoder=()), encoder=encoder, norm="pre"),
    )
    for model in models:
        shardings = named_leaves(tree_shardings(parameter_shapes(model), mesh))
        for name, sharding in shardings.items():
            few = name in ("budget_table/table", "segment_table/table")
            assert not (few or name.endswith("table/table")) or sharding.is_fully_replicated == few, name


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ConfigError, match="model.norm post with budgets"):
        small_model(budget=BOTH, norm="post").lazy_init(jax.random.key(0), SOURCE, TARGET)
    with pytest.raises(ConfigError, match="model.budget.blocks 5 does not divide the feed-forward size 24"):
        small_model(budget=dataclasses.replace(BOTH, blocks=5)).lazy_init(jax.random.key(0), SOURCE, TARGET)
    with pytest.raises(ConfigError, match="noise on gates grows without an end"):
        translation_objective(small_model(budget=BOTH), 0.1)
    constant = BudgetLossConfig(noise_start=2.0, noise_end=2.0)
    translation_objective(small_model(budget=BOTH), 0.1, budget=constant)


@pytest.mark.parametrize("name", ["decide_from", "fall_steps"])
def test_what_begins_after_the_end_is_refused(name):
    def config(max_steps):
        budget = BudgetLossConfig(**{name: 100})
        training = TrainingConfig(max_steps=max_steps, budget=budget)
        return Config(model=dataclasses.replace(CONFIG, budget=BOTH), training=training)

    flag = f"--training.budget.{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"{flag} 100: give less than --max-steps, here 100"):
        check_ranges(config(100))
    check_ranges(config(101))


@pytest.mark.parametrize("places, said", [((3,), "3"), ((0, 1), "0 1"), ((2, 2), "2 2")])
def test_encoders_that_there_are_not_have_no_gates(places, said):
    encoder = dataclasses.replace(CONFIG.encoder, branches=("attention:1", "lstm:1"))
    budget = dataclasses.replace(BOTH, branches=places)
    message = f"--model.budget.branches {said}: there are 2 encoders; give some of 1 to 2"
    with pytest.raises(ConfigError, match=message):
        check_model(Config(model=dataclasses.replace(CONFIG, encoder=encoder, budget=budget)))


def test_budgets_below_what_encoders_without_gates_use_are_refused():
    def config(*levels):
        encoder = dataclasses.replace(CONFIG.encoder, branches=("attention:1", "attention:3"))
        budget = BudgetConfig(encoder=levels, blocks=2, branches=(2,))
        return Config(model=dataclasses.replace(CONFIG, encoder=encoder, budget=budget))

    check_model(config(1.0, 0.26))
    with pytest.raises(ConfigError, match="--model.budget.encoder 0.25: encoders without .* are 0.25 of the"):
        check_model(config(1.0, 0.25))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"noise_steps": 0}, "--training.budget.noise-steps 0: give at least 1"),
        ({"weight": -1.0}, "--training.budget.weight -1: give 0 or more"),
        ({"begin": -1}, "--training.budget.begin -1: give 0 or more"),
        ({"begin": 7, "noise_steps": 7}, "--training.budget.begin 7: give less than .* here 7"),
        (
            {"begin": 7, "fall_steps": 7, "noise_steps": 9},
            "--training.budget.fall-steps 7: give more than .* here 7",
        ),
        (
            {"begin": 7, "decide_from": 7, "noise_steps": 9},
            "--training.budget.decide-from 7: give more than .* here 7",
        ),
        ({"noise_start": -2.0}, "--training.budget.noise-start -2: give 0 or more"),
        ({}, "noise on gates grows without an end: give --training.budget.noise-steps or --max-steps"),
    ],
)
def test_noise_that_is_none_is_refused_before_a_vocabulary_is_trained(changes, message):
    training = TrainingConfig(budget=BudgetLossConfig(**changes))
    config = Config(model=dataclasses.replace(CONFIG, budget=BOTH), training=training)
    with pytest.raises(ConfigError, match=message):
        check_ranges(config)
    check_ranges(config.replace(training=TrainingConfig(budget=BudgetLossConfig(noise_end=0.0))))
    check_ranges(config.replace(training=TrainingConfig(max_steps=100)))


@pytest.mark.parametrize(
    "kind, part, other",
    [(DecoderOnlyConfig, "encoder", "decoder"), (EncoderOnlyConfig, "decoder", "encoder")],
)
@pytest.mark.parametrize("both", [False, True])
def test_budgets_of_a_stack_that_is_not_there_are_refused(kind, part, other, both):
    levels = {part: LEVELS} | ({other: LEVELS} if both else {})
    config = Config(model=kind(budget=BudgetConfig(**levels)))
    with pytest.raises(
        ConfigError, match=f"--model.budget.{part} 1 0.5: the model has no {part}; leave it out"
    ):
        check_model(config)
