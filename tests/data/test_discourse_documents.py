"""Documents of the embedded corpus: what decides what, how far away, and what the test split holds back."""

import json
import random
import re
from collections import Counter, defaultdict

import pytest

from flaxnmt.data.discourse import MAX_DISTANCE, PHENOMENA, generate, lexicon, write_jsonl
from flaxnmt.data.discourse.generate import check
from flaxnmt.errors import ConfigError

ANTECEDENT = {
    noun.english: noun for kind in lexicon.ANTECEDENTS.values() for nouns in kind.values() for noun in nouns
}
CUES = {
    cue.english: sense.noun.german for senses in lexicon.AMBIGUOUS for sense in senses for cue in sense.cues
}
SENSES = {senses[0].noun.english: {sense.noun.german for sense in senses} for senses in lexicon.AMBIGUOUS}
FAMILIAR = {noun.english for noun in lexicon.FAMILIAR}
FORMAL = {noun.english for noun in lexicon.FORMAL}


@pytest.fixture(scope="module")
def train():
    return generate("train", 5000)


@pytest.fixture(scope="module")
def test():
    return generate("test", 1000)


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+", sentence.lower())


def resolve(document, annotation) -> tuple[int, str]:
    """Finds the deciding sentence by its construction alone, and what it says."""
    sources = [words(sentence.source) for sentence in document.sentences]
    found = []
    for i, source in enumerate(sources):
        if annotation.phenomenon == "pronoun" and ("we" in source or source[0] == "this"):
            nouns = [word for word in source[source.index("about") :] if word in ANTECEDENT]
            found.append((i, ANTECEDENT[nouns[0]].gender))
        elif annotation.phenomenon == "noun":
            found += [(i, CUES[word]) for word in source if CUES.get(word) in SENSES[annotation.source_word]]
        elif annotation.phenomenon == "address":
            start = 0
            for number, paragraph in enumerate(document.paragraphs):
                inside = start <= i < start + len(paragraph)
                if number == annotation.paragraph and inside:
                    found += [(i, "du") for word in source if word in FAMILIAR]
                    found += [(i, "Sie") for word in source if word in FORMAL]
                start += len(paragraph)
    assert len(found) == 1, (annotation, found)
    return found[0]


def test_the_context_decides_every_ambiguous_word(test):
    forms = {"subject": {"m": "er", "f": "sie", "n": "es"}, "object": {"m": "ihn", "f": "sie", "n": "es"}}
    for made in test:
        for a in made.annotations:
            where, decision = resolve(made.document, a)
            role = a.template.split("/")[0]
            assert where == a.deciding_sentence
            if a.phenomenon == "pronoun":
                assert a.target_words[0].lower() == forms[role][decision]
            elif a.phenomenon == "noun":
                assert a.target_words == (decision,)
            elif decision == "Sie":
                assert "Sie" in a.target_words
            else:
                assert {word.lower() for word in a.target_words} >= {"du" if role == "subject" else "dich"}


def test_annotations_point_at_their_words(test):
    for made in test:
        paragraph_of = [n for n, paragraph in enumerate(made.document.paragraphs) for _ in paragraph]
        for a in made.annotations:
            sentence = made.document.sentences[a.sentence]
            assert a.source_word in words(sentence.source)
            assert set(a.target_words) <= set(re.findall(r"\w+", sentence.target))
            assert 1 <= a.distance <= MAX_DISTANCE
            assert a.paragraph == paragraph_of[a.sentence]
            assert a.deciding_paragraph == paragraph_of[a.deciding_sentence]
            assert a.phenomenon != "address" or a.paragraph == a.deciding_paragraph
            assert a.phenomenon != "pronoun" or a.deciding_sentence < a.sentence


def test_every_ambiguous_word_is_annotated_and_every_other_sentence_has_one_translation(train):
    translations = defaultdict(set)
    for made in train:
        annotated = {a.sentence for a in made.annotations}
        for i, sentence in enumerate(made.document):
            ambiguous = bool({"it", "you", *SENSES} & set(words(sentence.source)))
            assert ambiguous == (i in annotated), sentence
            if not ambiguous:
                translations[sentence.source].add(sentence.target)
    assert max(map(len, translations.values())) == 1


def test_sizes(train):
    assert {len(made.document) for made in train} == set(range(4, 17))
    assert {len(made.document.paragraphs) for made in train} == {1, 2, 3, 4}
    lengths = Counter(len(sentence.source.split()) for made in train for sentence in made.document)
    assert set(lengths) == set(range(4, 11))
    share = sum(len(made.annotations) for made in train) / sum(lengths.values())
    assert 0.3 <= share <= 0.5
    short = generate("dev", 50, min_sentences=2, max_sentences=3, max_paragraphs=1)
    assert {len(made.document) for made in short} == {2, 3}
    assert {len(made.document.paragraphs) for made in short} == {1}


def test_vocabulary_is_small(train):
    for side in ("source", "target"):
        counts = Counter(w for made in train for s in made.document for w in words(getattr(s, side)))
        assert len(counts) <= 700


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_each_distance_has_plenty_of_examples(train, phenomenon):
    counts = Counter(a.distance for made in train for a in made.annotations if a.phenomenon == phenomenon)
    assert min(counts[distance] for distance in range(1, MAX_DISTANCE + 1)) >= 100


def test_nouns_are_decided_before_and_after(train):
    nouns = [a for made in train for a in made.annotations if a.phenomenon == "noun"]
    after = [a.deciding_sentence > a.sentence for a in nouns]
    assert 0.4 <= sum(after) / len(after) <= 0.6
    seen = Counter((a.source_word, a.target_words) for a in nouns)
    assert len(seen) == 2 * len(SENSES) and min(seen.values()) >= 50


def test_distractors_of_another_gender_stand_between(train):
    gender = {"er": "m", "ihn": "m", "sie": "f", "es": "n"}
    distracted = []
    for made in train:
        for a in made.annotations:
            if a.phenomenon == "pronoun" and a.distance >= 2:
                between = made.noun_phrases[a.deciding_sentence + 1 : a.sentence]
                own = gender[a.target_words[0].lower()]
                distracted.append(any(phrase.gender != own for phrases in between for phrase in phrases))
    assert sum(distracted) / len(distracted) >= 0.95


def test_without_paragraphs_the_relation_misleads(train):
    """Neither the nearest relation nor the last one before tells du from Sie over a distance."""
    nearest, before = [], []
    for made in train:
        relations = [
            (i, bool(FAMILIAR & set(words(s.source))))
            for i, s in enumerate(made.document)
            if (FAMILIAR | FORMAL) & set(words(s.source))
        ]
        for a in made.annotations:
            if a.phenomenon == "address" and a.distance > 3 and len(made.document.paragraphs) > 1:
                familiar = bool({"du", "Du", "dich"} & set(a.target_words))
                nearest.append(min(relations, key=lambda r: abs(r[0] - a.sentence))[1] == familiar)
                earlier = [kind for i, kind in relations if i < a.sentence]
                before.append(bool(earlier) and earlier[-1] == familiar)
    assert sum(nearest) / len(nearest) < 0.9
    assert sum(before) / len(before) < 0.85


@pytest.mark.parametrize("split", ["dev", "test"])
def test_nine_in_ten_sentences_are_new(train, test, split):
    known = {sentence.source for made in train for sentence in made.document}
    made_here = test if split == "test" else generate("dev", 1000)
    new = [sentence.source not in known for made in made_here for sentence in made.document]
    assert sum(new) / len(new) >= 0.95
    for phenomenon in PHENOMENA:
        new = [
            made.document.sentences[a.sentence].source not in known
            for made in made_here
            for a in made.annotations
            if a.phenomenon == phenomenon
        ]
        assert sum(new) / len(new) >= 0.9, phenomenon


def test_held_out_pairs_of_antecedent_and_template_are_in_test_only(train, test):
    def pairs(documents):
        for made in documents:
            for a in made.annotations:
                if a.phenomenon == "pronoun":
                    source = words(made.document.sentences[a.deciding_sentence].source)
                    yield (next(w for w in source if w in ANTECEDENT), a.template), a.held_out

    trained = dict(pairs(train))
    assert not any(trained.values())
    developed = dict(pairs(generate("dev", 500)))
    assert not any(developed.values())
    tested = list(pairs(test))
    held = [pair for pair, held_out in tested if held_out]
    assert 0.4 <= len(held) / len(tested) <= 0.6
    assert not set(held) & set(trained)
    assert {noun for noun, _ in held} <= {noun for noun, _ in trained}
    assert {template for _, template in held} <= {template for _, template in trained}


def test_documents_are_a_function_of_split_seed_and_number():
    state = random.getstate()
    some, more = generate("train", 20, seed=3), generate("train", 40, seed=3)
    assert random.getstate() == state
    assert some == more[:20]
    texts = {
        tuple(s.source for s in made.document)
        for split in ("train", "dev", "test")
        for seed in (3, 4)
        for made in generate(split, 40, seed=seed)
    }
    assert len(texts) == 240
    first = generate("train", 1)[0].document
    assert [(s.source, s.target) for s in first.sentences[:2]] == GOLDEN


GOLDEN = [  # what seed 0 gives with any Python
    (
        "The sad witch should disturb the girl in the house.",
        "Die traurige Hexe soll das Mädchen im Haus stören.",
    ),
    (
        "The baker writes about the pond in the big station.",
        "Der Bäcker schreibt über den Teich im großen Bahnhof.",
    ),
]


def test_phenomena_can_be_chosen():
    for phenomenon in PHENOMENA:
        made = generate("train", 50, phenomena=(phenomenon,))
        assert {a.phenomenon for m in made for a in m.annotations} == {phenomenon}
    assert not any(m.annotations for m in generate("train", 5, phenomena=()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_sentences": 9, "max_sentences": 8}, "9 to 8 sentences"),
        ({"max_paragraphs": 0}, "max_paragraphs >= 1"),
    ],
)
def test_impossible_requests_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        generate("train", 1, **options)


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown split 'valid'; use train, dev or test"):
        check("valid", 4, 16, 4, PHENOMENA)
    with pytest.raises(ConfigError, match="unknown phenomenon 'pronouns'; use pronoun, noun, address"):
        check("dev", 4, 16, 4, ("noun", "pronouns"))


def test_json_lines(tmp_path):
    documents = [made.document for made in generate("dev", 7)]
    write_jsonl(documents, tmp_path / "dev.jsonl")
    records = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text("utf-8").splitlines()]
    assert [record["doc_id"] for record in records] == [document.id for document in documents]
    for record, document in zip(records, documents, strict=True):
        assert record["section"] == "discourse"
        read = [list(zip(p["src"], p["tgt"], strict=True)) for p in record["paragraphs"]]
        assert read == [[(s.source, s.target) for s in paragraph] for paragraph in document.paragraphs]
