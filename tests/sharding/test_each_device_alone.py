"""On a mesh that divides rows alone, every device leaves out what its own rows do not need."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import CONFIG, float32, parameter_shapes, random_params, small_model

from flaxnmt.config import DecodingConfig
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import train
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.each_device import each_alone, is_divided
from flaxnmt.gates.block import GatedBlock
from flaxnmt.layers.active import on_active
from flaxnmt.layers.context import Context
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.models.config import BudgetConfig, DocumentConfig
from flaxnmt.sharding import constrain, make_mesh, put_batch, tree_shardings, unbox, use_mesh
from flaxnmt.translation.documents import DocumentTranslator
from flaxnmt.translation.search import Sampling
from flaxnmt.translation.translator import Translator

LINES = ["the cat", "a dog sees the cat", "dog", "the dog sees a cat and a dog", "a", "and the cat sees"] * 3
OPTIONS = {"batch_size": 16, "budget": 0.5, "max_length": 6}
BUDGET = BudgetConfig(encoder=(1.0, 0.5), decoder=(1.0, 0.5), blocks=1)
SKIP = Context(skip=True)
COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\(")


def computations(text: str) -> dict[str, str]:
    """The parts of a compiled program by name; the one that runs first is ENTRY."""
    parts = re.findall(r"^(ENTRY |)(%[\w.-]+) .*?\{$(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    return {"ENTRY" if entry else name: body for entry, name, body in parts}


def check_sends(text: str, conditionals: int):
    """That a program has so many parts with conditionals, at least, and sends only before and after all of them."""
    parts = computations(text)
    assert {name for name, body in parts.items() if COLLECTIVE.search(body)} == {"ENTRY"}
    assert sum(" conditional(" in body for body in parts.values()) >= conditionals


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 4, 1)])
def test_each_device_computes_for_as_many_rows_as_it_has(sizes):
    seen = []

    def sized(x):
        jax.debug.callback(lambda: seen.append(x.shape[1]))
        return x * 2

    @jax.jit
    def step(x, active):
        def function(scale, rows):
            assert not is_divided()
            return on_active(sized, constrain(rows[0] * scale, "no axis here"), rows[1])

        return each_alone(function)(3.0, (x, active))

    # Device i has 128 rows, of which 8 i are active: i sixteenths of eight rows.
    x = np.random.default_rng(0).normal(size=(8, 128, 2)).astype(np.float32)
    active = np.arange(128) < 8 * np.arange(8)[:, None]
    with use_mesh(make_mesh(*sizes)) as mesh:
        placed = put_batch({"x": x, "active": active}, mesh)
        y = jax.block_until_ready(step(placed["x"], placed["active"]))
        jax.effects_barrier()
    np.testing.assert_allclose(y, np.where(active[..., None], 6 * x, 0), rtol=1e-6)
    assert sum(seen) == active.sum() < active.size


@pytest.mark.parametrize("sizes", [(4, 1, 2), (1, 1, 8)])
def test_devices_that_share_the_work_on_a_row_go_on_together(sizes):
    def function(whole, rows):
        return rows

    with use_mesh(make_mesh(*sizes)):
        assert each_alone(function) is function
    assert each_alone(function) is function


def test_a_gated_block_in_a_loop_sends_nothing_and_gives_what_one_device_does():
    """As a search does: each device goes on for as long as its own rows ask it to."""
    block = GatedBlock(16, (FeedForward(16, 24),), 4)
    x = np.random.default_rng(0).normal(size=(16, 3, 16)).astype(np.float32)
    times = np.repeat(np.arange(8), 2)
    shapes = jax.eval_shape(block.init, jax.random.key(0), jnp.asarray(x), SKIP)
    draw = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), unbox(shapes))

    @jax.jit
    def step(params, x, times):
        def function(params, rows):
            def advance(i, x):
                return jnp.where(i < rows["times"][:, None, None], block.apply(params, x, SKIP)[0], x)

            return jax.lax.fori_loop(0, rows["times"].max(), advance, rows["x"])

        return each_alone(function)(params, {"x": x, "times": times}).sum()

    expected = step(params, x, times)
    with use_mesh(make_mesh()) as mesh:
        placed = put_batch({"x": x, "times": times}, mesh)
        compiled = step.lower(params, placed["x"], placed["times"]).compile()
        np.testing.assert_allclose(compiled(params, placed["x"], placed["times"]), expected, rtol=1e-4)
    check_sends(compiled.as_text(), conditionals=1)


@pytest.fixture(scope="module")
def parts():
    """A model with gates, its parameters, vocabularies and defaults."""
    tokenizer = train("bpe", LINES, 32)
    size = tokenizer.vocab_size
    decoder = dataclasses.replace(CONFIG.decoder, layers=1)
    model = small_model(size, size, budget=BUDGET, decoder=decoder)
    params = float32(random_params(model))
    return model, params, Vocabularies(tokenizer, tokenizer), DecodingConfig(beam_size=2)


@pytest.fixture(scope="module")
def by_itself(parts):
    return Translator(*parts).hypotheses(LINES, **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1)])
def test_translations_are_those_of_one_device(sizes, parts, by_itself):
    model, params, *rest = parts
    with use_mesh(mesh := make_mesh(*sizes)):
        shardings = tree_shardings(parameter_shapes(model), mesh)
    translator = Translator(model, jax.device_put(params, shardings), *rest, mesh)
    for one, other in zip(by_itself, translator.hypotheses(LINES, **OPTIONS), strict=True):
        assert [found.tokens for found in one] == [found.tokens for found in other]
        np.testing.assert_allclose([f.score for f in one], [f.score for f in other], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (4, 1, 2)])
def test_scores_and_use_are_those_of_one_device(sizes, parts):
    model, params, *rest = parts
    with use_mesh(mesh := make_mesh(*sizes)):
        shardings = tree_shardings(parameter_shapes(model), mesh)
    translators = Translator(*parts), Translator(model, jax.device_put(params, shardings), *rest, mesh)
    both = (one.score(LINES, LINES[::-1], batch_size=16, budget=0.5) for one in translators)
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(other.token_log_probs, one.token_log_probs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other.use, one.use, rtol=1e-5)
        assert 0 < min(one.use) and max(one.use) < 1


@pytest.mark.slow
def test_scores_of_documents_are_those_of_one_device(parts):
    gated, _, *rest = parts
    size, document = gated.target_vocab, DocumentConfig(("conditional",), t=2)
    model = small_model(size, size, budget=BUDGET, document=document)
    params = float32(random_params(model))
    texts = [Document((tuple(Sentence(line, line) for line in LINES[i : i + 1 + i % 3]),)) for i in range(12)]
    both = (
        DocumentTranslator(model, params, *rest, mesh, max_sentences=4, overlap=1).score_documents(
            texts, budget=0.5
        )
        for mesh in (None, make_mesh())
    )
    for one, other in zip(*both, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_allclose(theirs.token_log_probs, mine.token_log_probs, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(theirs.use, mine.use, rtol=1e-5)


@pytest.mark.slow
def test_samples_are_those_of_one_device(parts):
    options = OPTIONS | {"sampling": Sampling(temperature=0.5, seed=3)}
    drawn = [Translator(*parts, mesh).translate(LINES, **options) for mesh in (None, make_mesh())]
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_nothing_is_sent_inside_of_a_search(parts):
    """Conditionals are those of the skipped rows; what other devices have to know is sent before or after."""
    model, params, *rest = parts
    batch = {name: np.ones(16, np.int32) for name in ("max_lengths", "min_lengths", "rows", "budget")}
    batch |= {"source": np.ones((16, 8), np.int32), "prefix": np.zeros((16, 0), np.int32)}
    options = {"max_length": 4, "beam_size": 2, "n_best": 1, "length_penalty": 0.0}
    with use_mesh(mesh := make_mesh()):
        search = Translator(model, params, *rest, mesh)._beam
        text = search.lower(params, put_batch(batch, mesh), **options).compile().as_text()
    check_sends(text, conditionals=2)


@pytest.mark.slow
def test_nothing_is_sent_inside_of_scoring(parts):
    model, params, *rest = parts
    batch = {name: np.ones((16, 8), np.int32) for name in ("source", "target")}
    batch["budget"] = np.ones(16, np.int32)
    with use_mesh(mesh := make_mesh()):
        score = Translator(model, params, *rest, mesh)._score
        text = score.lower(params, put_batch(batch, mesh)).compile().as_text()
    check_sends(text, conditionals=2)
