"""Models of documents: every kind of attention, at once and step by step, padded, alone and in company."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from small_models import CONFIG, float32, parameter_shapes, random_ids, small_model

from experiments.initial import at_word_level
from flaxnmt.data.boundaries import Boundaries
from flaxnmt.models.config import DocumentConfig
from flaxnmt.models.flops import forward_flops
from flaxnmt.sharding import unbox
from flaxnmt.training.integrity import named_leaves
from flaxnmt.training.objective import translation_objective

N, M, T = 4, 6, 5
KINDS = ("sentence", "document", "context", "heads", "conditional", "hierarchical")
FULL = {"decoder_context": True, "cross": "document"}
SEEN = [("sentence", {}), ("context", {}), ("hierarchical", {}), ("conditional", FULL)]
SEEN += [("sentence", {"decoder_heads": True}), ("conditional:1 lstm:2 fnet:1", {})]


def documents(sentences: list[int], width: int, seed: int, count: int = N) -> np.ndarray:
    """[B, N, width]: documents with that many sentences of 2 to `width` tokens."""
    rng = np.random.default_rng(seed)
    lengths = [[rng.integers(2, width + 1) if n < size else 0 for n in range(count)] for size in sentences]
    return np.stack([random_ids(row, width, seed + i) for i, row in enumerate(lengths)])


SOURCE, TARGET = documents([4, 3, 1], M, 0), documents([4, 3, 1], T, 50)
PARAGRAPHS = np.asarray([[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]], np.int32)


def document_model(kind: str, **changes):
    """Of layers of this kind, or of encoders side by side such as `conditional:1 lstm:2`."""
    branches = tuple(kind.split()) if ":" in kind else ()
    document = DocumentConfig(layers=() if branches else (kind,), **{"t": 2, **changes})
    encoder = dataclasses.replace(CONFIG.encoder, layers=2, branches=branches)
    return small_model(encoder=encoder, document=document)


def random_params(model, seed=0):
    """Parameters whose scores differ by more than rounding, so that a choice is the same wherever it is made."""
    rng = np.random.default_rng(seed)
    ids = map(jnp.asarray, (SOURCE, TARGET, PARAGRAPHS))
    made = jax.eval_shape(
        lambda key, source, target, paragraphs: model.init(key, source, target, paragraphs=paragraphs),
        jax.random.key(0), *ids,
    )  # fmt: skip
    shapes = unbox(made["params"])
    return float32(jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) / 4, shapes))


class Made:
    """A model with parameters, and its logits for SOURCE and TARGET."""

    def __init__(self, kind: str, **changes):
        self.model = document_model(kind, **changes)
        self.variables = {"params": random_params(self.model)}

        def apply(variables, source, target, paragraphs):
            return self.model.apply(variables, source, target, paragraphs=paragraphs)

        self._apply = jax.jit(apply)
        self.expected = self.logits(SOURCE)

    def logits(self, source, target=TARGET, paragraphs=PARAGRAPHS) -> np.ndarray:
        return np.asarray(self._apply(self.variables, source, target, paragraphs))


# Sentences alone are what `test_sentence_attention_over_documents_is_the_sentence_model` compares.
@pytest.fixture(
    scope="module",
    params=[
        case if case in (SEEN[2], SEEN[-1]) else pytest.param(case, marks=pytest.mark.slow) for case in SEEN
    ],
    ids=str,
)
def made(request):
    kind, changes = request.param
    return Made(kind, **changes)


def assert_equal_where(target, actual, expected):
    np.testing.assert_allclose(actual[target > 0], expected[target > 0], atol=2e-5)


def test_padding_of_words_and_of_sentences_changes_nothing(made):
    wide = np.pad(SOURCE, ((0, 0), (0, 3), (0, 2)))
    target, paragraphs = np.pad(TARGET, ((0, 0), (0, 3), (0, 0))), np.pad(PARAGRAPHS, ((0, 0), (0, 3)))
    assert_equal_where(TARGET, made.logits(wide, target, paragraphs)[:, :N], made.expected)


def test_a_document_does_not_depend_on_its_batch(made):
    for order in ([2, 0, 1], [1, 1, 0]):
        again = made.logits(SOURCE[order], TARGET[order], PARAGRAPHS[order])
        assert_equal_where(TARGET[order], again, made.expected[order])


def test_only_a_model_of_sentences_ignores_the_rest_of_the_document(made):
    other = SOURCE.copy()
    other[0, 2] = np.where(other[0, 2] > 3, (other[0, 2] - 3) % 16 + 4, other[0, 2])
    change = np.abs(made.logits(other) - made.expected)[0]
    elsewhere = max(change[n][TARGET[0, n] > 0].max() for n in (0, 1, 3))
    assert change[2][TARGET[0, 2] > 0].max() > 1e-3
    document = made.model.config.document
    assert (elsewhere < 1e-5) == (document.layers == ("sentence",) and not document.decoder_looks_around)
    assert elsewhere < 1e-5 or elsewhere > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("cross", slow_but(["document"], ["sentence", "document"]))
def test_the_decoder_knows_which_sentence_it_writes(cross):
    """Before the first symbol nothing but the source, or the position of the sentence, can say it."""
    first = Made("conditional", cross=cross).expected[0, :, 0]
    assert min(np.abs(first[i] - first[j]).max() for i in range(N) for j in range(i)) > 1e-3


WANTED = np.asarray([[3, 1], [2, 0], [0, 1]], np.int32)
"""Some sentences of each document, one of them without words."""


@pytest.mark.parametrize(
    "kind, changes, wanted",
    [
        pytest.param("sentence", {}, None, marks=pytest.mark.slow),
        pytest.param("hierarchical", {}, None, marks=pytest.mark.slow),
        pytest.param("conditional", FULL, None, marks=pytest.mark.slow),
        ("conditional", FULL, WANTED),
        pytest.param("context", {"decoder_context": True}, WANTED, marks=pytest.mark.slow),
        ("sentence", {"decoder_heads": True}, WANTED),
    ],
)
def test_step_by_step_equals_all_at_once(kind, changes, wanted):
    """Also where only some sentences of each document are decoded."""
    made, beams = Made(kind, **changes), 2
    target, expected = TARGET, made.expected
    if wanted is not None:
        target, expected = (np.stack([x[i] for x, i in zip(y, wanted)]) for y in (target, expected))
    rows = target.reshape(-1, T)
    model, variables = made.model, made.variables
    start = jax.jit(
        lambda *ids: model.apply(
            variables,
            ids[0],
            beams,
            T,
            ids[1],
            wanted=None if wanted is None else jnp.asarray(wanted),
            method="start",
        )
    )
    step = jax.jit(lambda cache, tokens, t: model.apply(variables, cache, tokens, t, method="step"))
    cache, tokens, found = start(SOURCE, PARAGRAPHS), np.full(len(rows), 2), []
    for t in range(T):
        logits, cache = step(cache, jnp.asarray(np.stack([tokens] * beams, 1)), jnp.int32(t))
        found.append(logits[:, 0])
        tokens = rows[:, t]
    assert_equal_where(target, np.stack(found, 1).reshape(expected.shape), expected)


@pytest.mark.parametrize("around", slow_but(["decoder_heads"], ["decoder_context", "decoder_heads"]))
def test_scanned_layers_find_the_same_sentences(around):
    single = document_model("context", **{around: True})
    scanned = small_model(encoder=single.config.encoder, document=single.config.document, scan=True)

    def shapes(model):
        ids = map(jnp.asarray, (SOURCE, PARAGRAPHS, WANTED))

        def start(params, source, paragraphs, wanted):
            return model.apply({"params": params}, source, 2, T, paragraphs, wanted=wanted, method="start")

        return jax.eval_shape(start, unbox(parameter_shapes(model)), *ids).shared

    (_, layers, mask, _), (_, stacked, stacked_mask, _) = map(shapes, (single, scanned))
    assert mask.shape == stacked_mask.shape == (3, 2, M)
    for number, layer in enumerate(jax.tree.leaves(layers[0])):
        assert jax.tree.leaves(stacked)[number].shape == (2, *layer.shape)


@pytest.mark.parametrize(
    "kind, changes", [pytest.param("hierarchical", {}, marks=pytest.mark.slow), ("conditional", FULL)]
)
def test_gradients_are_finite_where_documents_and_sentences_are_empty(kind, changes):
    model = document_model(kind, **changes)
    source, target = SOURCE.copy(), TARGET.copy()
    source[1], target[1], target[0, 1] = 0, 0, 0
    batch = jax.tree.map(jnp.asarray, {"source": source, "target": target, "paragraph": PARAGRAPHS})
    objective = translation_objective(model, 0.1)
    loss = jax.jit(jax.value_and_grad(lambda params: objective(params, batch, None)["loss"]))
    value, gradient = loss(random_params(model))
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert sum(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(gradient)) == len(jax.tree.leaves(gradient))


def test_sentence_attention_over_documents_is_the_sentence_model():
    made = Made("sentence", levels=("word",), count="unit")
    plain = small_model(encoder=made.model.config.encoder)
    rows = jax.jit(plain.apply)(made.variables, SOURCE.reshape(-1, M), TARGET.reshape(-1, T))
    assert_equal_where(TARGET, made.expected, np.asarray(rows).reshape(made.expected.shape))


@pytest.mark.parametrize(
    "kind, positions",
    slow_but([("hierarchical", "learned")], itertools.product(KINDS, ["sinusoidal", "learned"])),
)
def test_a_sentence_model_initialises_all_of_its_parameters_in_a_document_model(kind, positions):
    config = document_model(kind, decoder_context=True, decoder_heads=True).config
    plain = small_model(encoder=config.encoder, positions=positions)
    ids = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    found = unbox(jax.eval_shape(plain.init, jax.random.key(0), ids, ids)["params"])
    document = small_model(encoder=config.encoder, document=config.document, positions=positions)
    known, made = named_leaves(at_word_level(found, document.config)), named_leaves(random_params(document))
    assert len(known) == len(named_leaves(found))
    assert {name: leaf.shape for name, leaf in known.items()} == {name: made[name].shape for name in known}


@pytest.mark.parametrize("kind", slow_but(["hierarchical"], KINDS))
def test_scanned_layers_of_documents_have_the_shapes_of_single_ones(kind):
    single = parameter_shapes(document_model(kind))
    config = dataclasses.replace(document_model(kind).config, scan=True)
    scanned = parameter_shapes(
        small_model(**{"encoder": config.encoder, "document": config.document, "scan": True})
    )
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(unbox(tree))) for tree in (single, scanned)]
    assert sizes[0] == sizes[1]


def test_layers_of_several_kinds_are_in_one_encoder():
    model = small_model(
        encoder=dataclasses.replace(CONFIG.encoder, layers=3),
        document=DocumentConfig(layers=("sentence", "hierarchical", "context"), t=2),
    )
    names = named_leaves(random_params(model))
    found = [any(f"layers_{i}/{part}" in name for name in names) for i, part in
             ((0, "context"), (1, "attention/sublayer/selector_query"), (2, "context"))]  # fmt: skip
    assert found == [False, True, True]


@pytest.mark.parametrize(
    "levels", [pytest.param(("word",), marks=pytest.mark.slow), ("sentence", "paragraph")]
)
def test_positions_are_those_of_the_levels(levels):
    made = Made("document", levels=levels)
    moved = np.where(PARAGRAPHS > 0, PARAGRAPHS + 1, 0)
    change = np.abs(made.logits(SOURCE, paragraphs=moved) - made.expected)
    assert (change[0].max() > 1e-4) == ("paragraph" in levels)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["conditional"], ["document", "conditional"]))
def test_boundaries_matter_where_a_layer_knows_of_sentences(kind):
    """Words counted from the beginning of the document, all in sight, are the same wherever it is cut."""
    made = Made(kind, levels=("word",))
    cut = Boundaries("jittered", 1)({"source": SOURCE, "paragraph": PARAGRAPHS})
    assert (cut["source"] != SOURCE).any()
    source, paragraph, places = (jnp.asarray(cut[name]) for name in ("source", "paragraph", "places"))
    logits, _ = jax.jit(partial(made.model.apply, method="logits_and_use"))(
        made.variables, source, TARGET, paragraph, places=places
    )
    same = np.abs(np.asarray(logits) - made.expected)[TARGET > 0].max() < 2e-5
    assert same == (kind == "document")


@pytest.mark.slow
def test_without_break_tokens_the_encoder_does_not_see_the_end_of_a_sentence():
    ends, none = Made("document"), Made("document", sentence_ends=False)
    assert_equal_where(TARGET, none.logits(np.where(SOURCE == 3, 0, SOURCE)), none.expected)
    assert np.abs(ends.expected - none.expected)[TARGET > 0].max() > 1e-3


@pytest.mark.parametrize("kind", slow_but(["heads"], KINDS[:4]))
def test_flops_are_those_that_xla_counts(kind):
    model = document_model(kind, decoder_context=True, decoder_heads=kind == "heads")
    shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((8, 8, 24), (8, 8, 24), (8, 8))]
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), random_params(model))

    def forward(params, source, target, paragraphs):
        return model.apply({"params": params}, source, target, paragraphs=paragraphs)

    counted = jax.jit(forward).lower(params, *shapes).cost_analysis()["flops"]
    computed = forward_flops(model.config, 20, (8, 8, 24), (8, 8, 24))
    # A model this narrow spends a good part on softmax and norms, which are not products.
    assert 0.6 < computed / counted < 1.0
