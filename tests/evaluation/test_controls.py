import hashlib
import json

import pytest

from flaxnmt.data.discourse import contrastive, lexicon
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.contrastive import Contrast, accuracy, from_discourse, score_contrasts
from flaxnmt.evaluation.controls import (
    KINDS,
    collect,
    compare_contrastive_controls,
    compare_controls,
    controlled,
    views,
)


def document(name: str, *paragraphs: int) -> Document:
    numbers = iter(range(sum(paragraphs)))
    return Document(
        tuple(tuple(Sentence(f"{name}{i}", f"{name.upper()}{i}") for _, i in zip(range(n), numbers)) for n in paragraphs),
        id=name,
    )  # fmt: skip


DOCUMENTS = [document("a", 2, 3), document("b", 1), document("c", 2), document("d", 3, 1, 4)]


def shape(document: Document) -> list[int]:
    return [len(paragraph) for paragraph in document.paragraphs]


def translate(documents):
    """The reference of every sentence: what comes back must be the references in their order."""
    return [[sentence.target for sentence in document] for document in documents]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_is_wanted_once_and_comes_back_in_order(kind):
    parts = views(DOCUMENTS, kind, seed=3)
    origins = [origin for view in parts for origin in view.origin]
    assert sorted(origins) == [(d, s) for d, document in enumerate(DOCUMENTS) for s in range(len(document))]
    for view in parts:
        wanted = [view.document.sentences[i] for i in view.wanted]
        assert wanted == [DOCUMENTS[d].sentences[s] for d, s in view.origin]
        assert list(view.wanted) == sorted(view.wanted)
    whole = translate([view.document for view in parts])
    assert collect(parts, whole) == translate(DOCUMENTS)
    alone = [[texts[i] for i in view.wanted] for view, texts in zip(parts, whole)]
    assert collect(parts, alone) == translate(DOCUMENTS)
    order = list(range(len(parts)))[::-1]
    assert collect([parts[i] for i in order], [whole[i] for i in order]) == translate(DOCUMENTS)


def test_true_is_the_document_and_none_a_sentence_alone():
    assert [view.document for view in views(DOCUMENTS, "true")] == DOCUMENTS
    for view in views(DOCUMENTS, "none"):
        ((d, s),) = view.origin
        assert view.document.sentences == (DOCUMENTS[d].sentences[s],) and view.wanted == (0,)


def test_random_replaces_every_other_sentence_and_keeps_the_paragraphs():
    parts = views(DOCUMENTS, "random", seed=1)
    assert len(parts) == sum(map(len, DOCUMENTS))
    donors = set()
    for view in parts:
        ((d, s),) = view.origin
        own = DOCUMENTS[d]
        assert shape(view.document) == shape(own) and view.wanted == (s,)
        names = {sentence.source[0] for i, sentence in enumerate(view.document) if i != s}
        if len(own) == 1:
            assert names == set()
            continue
        (name,) = names
        assert name != own.id
        donors.add((own.id, name))
        donor = DOCUMENTS["abcd".index(name)].sentences
        for i, sentence in enumerate(view.document):
            assert sentence == (own.sentences[s] if i == s else donor[i % len(donor)])
    # Sentences of one document draw different donors.
    assert {("d", "a"), ("d", "b"), ("d", "c")} <= donors


def test_shuffled_changes_the_order_alone():
    moved = 0
    for view, own in zip(views(DOCUMENTS, "shuffled", seed=1), DOCUMENTS, strict=True):
        assert shape(view.document) == shape(own)
        assert sorted(view.document.sentences) == sorted(own.sentences)
        moved += view.document != own
    assert moved >= 2


@pytest.mark.parametrize("kind", ["random", "shuffled"])
def test_views_are_a_function_of_the_seed(kind):
    assert views(DOCUMENTS, kind, seed=5) == views(DOCUMENTS, kind, seed=5)
    assert views(DOCUMENTS, kind, seed=5) != views(DOCUMENTS, kind, seed=6)


def contextual(documents):
    """A translator that is right as long as the sentence before is the one that belongs there."""
    outputs = []
    for document in documents:
        sentences = [Sentence("", ""), *document]
        outputs.append(
            [
                s.target if before.source == expected(s.source) else s.target.lower()
                for before, s in zip(sentences, sentences[1:])
            ]
        )
    return outputs


def expected(source: str) -> str:
    name, number = source.split()[0][0], int(source.split()[0][1:])
    return f"{name}{number - 1} is here and there today" if number else ""


TALES = [
    Document((tuple(Sentence(f"{n}{i} is here and there today", f"{n.upper()}{i} Ist Hier und Da heute") for i in range(6)),))
    for n in "abcdefgh"
]  # fmt: skip


def test_controls_show_that_a_translator_needs_its_context():
    asked = []

    def wanted_only(documents, wanted):
        asked.extend(wanted)
        outputs = contextual(documents)
        return [[texts[i] for i in indices] for texts, indices in zip(outputs, wanted, strict=True)]

    report = compare_controls(contextual, TALES, samples=100, translate_wanted=wanted_only)
    scores = {kind: row["s_bleu"]["score"] for kind, row in report["scores"].items()}
    assert list(scores) == list(KINDS)
    assert scores["true"] == pytest.approx(100)
    assert report["outputs"]["true"] == translate(TALES)
    # The first sentence of a document needs no context.
    assert report["outputs"]["none"][0][0] == "A0 Ist Hier und Da heute"
    assert report["outputs"]["random"][0][1] == report["outputs"]["none"][0][1] == "a1 ist hier und da heute"
    assert max(scores["none"], scores["random"], scores["shuffled"]) < 70
    assert len(asked) == 48 and set(asked) == {(i,) for i in range(6)}
    systems = report["significance"]["d_bleu"]["systems"]
    assert report["significance"]["baseline"] == "true"
    assert all(systems[kind]["p_value"] < 0.05 for kind in KINDS[1:])
    assert json.loads(json.dumps(report)) == report
    assert report == compare_controls(contextual, TALES, samples=100)


def test_controls_do_not_find_a_gain_where_context_is_not_read():
    def alone(documents):
        return [[s.source for s in document] for document in documents]

    report = compare_controls(alone, TALES, kinds=("true", "random", "none"), samples=50, lowercase=True)
    assert report["outputs"]["true"] == report["outputs"]["none"] == report["outputs"]["random"]
    assert "case:lc" in report["scores"]["true"]["s_bleu"]["signature"]
    for kind in ("random", "none"):
        assert report["significance"]["s_bleu"]["systems"][kind]["p_value"] == 1.0


@pytest.mark.parametrize(
    ("documents", "options", "error", "message"),
    [
        ([*TALES, Document(((Sentence("a0"),),), id="e")], {}, DataError, "document 9 'e'.*without a target"),
        (TALES[:1], {}, DataError, "two documents or more"),
        (TALES, {"kinds": ("true", "reversed")}, ConfigError, "unknown context control 'reversed'"),
        (TALES, {"kinds": ("true",)}, ConfigError, "at least one to compare it with"),
        (TALES, {"tokenize": "14a"}, ConfigError, "unknown BLEU tokenizer '14a'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_it_is_translated(documents, options, error, message):
    asked = []
    with pytest.raises(error, match=message):
        compare_controls(lambda read: asked.append(read), documents, **options)
    assert not asked


@pytest.fixture(scope="module")
def generated():
    examples = contrastive("test", 3 * 12 * 2, seed=8)
    return [from_discourse(e) for e in examples], {e.document.id: e.deciding_sentence for e in examples}


def oracle(pairs):
    """Reads the document for a sentence that decides, and prefers what follows from it; else by a hash."""
    kinds = lexicon.ANTECEDENTS.values()
    gender = {noun.english: noun.gender for kind in kinds for nouns in kind.values() for noun in nouns}
    cues = {
        c.english: (s.noun.english, s.noun.german)
        for senses in lexicon.AMBIGUOUS
        for s in senses
        for c in s.cues
    }
    familiar, formal = ({noun.english for noun in nouns} for nouns in (lexicon.FAMILIAR, lexicon.FORMAL))
    pronouns = {"m": {"er", "ihn"}, "f": {"sie"}, "n": {"es"}}
    scores = []
    for read, index in pairs:
        judged = read.sentences[index]
        words = judged.target.rstrip(".?!").replace(",", "").split()
        source = judged.source.rstrip(".?!").replace(",", "").split()
        score = int.from_bytes(hashlib.sha256(repr(judged).encode()).digest()[:4]) / 2**33
        for place, sentence in enumerate(read):
            said = sentence.source.rstrip(".?!").split()
            if place == index:
                continue
            topics = [w for w in said[said.index("about") :] if w in gender] if "about" in said else []
            if topics and {"it", "It"} & set(source):
                score += bool(pronouns[gender[topics[0]]] & {word.lower() for word in words})
            for cue in set(said) & set(cues):
                if cues[cue][0] in source and "about" in said:
                    score += cues[cue][1] in words
            if {"you", "You"} & set(source) and (familiar | formal) & set(said):
                close = bool(familiar & set(said))
                score += close == bool({"du", "Du", "dich"} & set(words))
        scores.append(score)
    return scores


def only_deciding(examples, deciding):
    """Examples of documents that consist of the deciding and the judged sentence."""
    result = []
    for e in examples:
        places = sorted((deciding[e.document.id], e.sentence))
        sentences = tuple(e.document.sentences[i] for i in places)
        short = Document((sentences,), id=e.document.id)
        result.append(
            Contrast(short, places.index(e.sentence), e.candidates, 0, e.phenomenon, e.distance, e.group)
        )
    return result


def test_an_oracle_is_right_with_true_context_and_on_half_without(generated):
    examples = only_deciding(*generated)
    report = compare_contrastive_controls(oracle, examples)
    assert {kind: row["overall"]["accuracy"] for kind, row in report.items()} == {
        "true": 100.0, "none": 50.0, "random": 50.0, "shuffled": 100.0
    }  # fmt: skip
    for kind in ("none", "random"):
        cells = [*report[kind]["by_phenomenon"].values(), *report[kind]["by_distance"].values()]
        assert all(cell["accuracy"] == 50 for cell in cells)
        assert report[kind]["groups"]["right"] == 0


def test_no_scorer_does_better_than_half_on_closed_sets_without_their_context(generated):
    examples, _ = generated

    def score(pairs):
        texts = [(d.sentences, [len(p) for p in d.paragraphs], index) for d, index in pairs]
        return [float(int.from_bytes(hashlib.sha256(repr(t).encode()).digest()[:6])) for t in texts]

    for seed in (0, 1):
        for kind in ("none", "random"):
            changed = controlled(examples, kind, seed)
            result = accuracy(changed, score_contrasts(changed, score))
            assert {cell["accuracy"] for cell in result["by_distance"].values()} == {50.0}
    # The same scorer is not held to one half where contexts differ.
    assert accuracy(examples, score_contrasts(examples, score))["overall"]["accuracy"] != 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_judged_sentence_stays_whatever_happens_to_its_context(generated, kind):
    examples, deciding = generated
    changed = controlled(examples, kind, seed=2)
    assert changed == controlled(examples, kind, seed=2)
    for before, after in zip(examples, changed, strict=True):
        assert before.document.sentences[before.sentence] == after.document.sentences[after.sentence]
        assert (after.candidates, after.group, after.distance) == (
            before.candidates,
            before.group,
            before.distance,
        )
        said = before.document.sentences[deciding[before.document.id]]
        rest = [s for i, s in enumerate(after.document) if i != after.sentence]
        assert (said in rest) == (kind in ("true", "shuffled"))
        assert len(after.document) == (1 if kind == "none" else len(before.document))
        if kind in ("random", "shuffled"):
            assert after.sentence == before.sentence and shape(after.document) == shape(before.document)
    if kind == "shuffled":
        pairs = list(zip(examples, changed))
        assert all(sorted(a.document) == sorted(b.document) for a, b in pairs)
        assert sum(a.document != b.document for a, b in pairs) > len(pairs) / 2


def test_random_context_never_comes_from_the_own_group(generated):
    examples, _ = generated
    owners = {}
    for e in examples:
        for s in e.document:
            owners.setdefault(s, set()).add(e.group)
    for e in controlled(examples, "random"):
        context = [owners[s] for i, s in enumerate(e.document) if i != e.sentence]
        donors = set.intersection(*context)
        assert donors - {e.group}
    ungrouped = [Contrast(d, 0, (d.sentences[0].target, "x"), 0, "p") for d in DOCUMENTS]
    for own, changed in zip(ungrouped, controlled(ungrouped, "random"), strict=True):
        assert not {s.source[0] for s in changed.document.sentences[1:]} & {own.document.id}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: views(DOCUMENTS, "reversed"), ConfigError, "unknown context control 'reversed'"),
        (lambda: controlled([], "reversed"), ConfigError, "choose from true, none, random, shuffled"),
        (lambda: views(DOCUMENTS[:1], "random"), DataError, "two documents or more"),
        (
            lambda: controlled([Contrast(DOCUMENTS[0], 0, ("A0", "x"), 0, "p")], "random"),
            DataError,
            "two groups of contrasts or more",
        ),
        (lambda: collect(views(DOCUMENTS, "true"), []), DataError, "outputs for 0 documents, where 4"),
        (
            lambda: collect(views(DOCUMENTS, "true"), [["x"]] * 4),
            DataError,
            "1 outputs for document 1 'a', which has 5 sentences of which 5 are wanted",
        ),
    ],
)
def test_errors_say_what_and_what_to_do(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
