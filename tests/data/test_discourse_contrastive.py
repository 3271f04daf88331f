"""Contrastive sets: without the deciding sentence half is right, whatever the scorer; with it all is."""

import hashlib
from collections import Counter, defaultdict

import pytest

from flaxnmt.data.discourse import MAX_DISTANCE, PHENOMENA, contrastive, lexicon
from flaxnmt.errors import ConfigError


@pytest.fixture(scope="module")
def examples():
    return contrastive("test", 3 * MAX_DISTANCE * 8, seed=5)


def digest(*parts) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8])


def sentence(example):
    return example.document.sentences[example.sentence].source


def without_decider(example) -> list[str]:
    """All that a document says but for the deciding sentence, with all references but the judged one."""
    rest = [
        (s.source, "" if i == example.sentence else s.target)
        for i, s in enumerate(example.document)
        if i != example.deciding_sentence
    ]
    return [*map(str, rest), str([len(paragraph) for paragraph in example.document.paragraphs])]


BLIND_SCORERS = {
    "random by sentence": lambda e, target: digest(sentence(e), target),
    "random by target": lambda e, target: digest(target),
    "random by everything but the deciding sentence": lambda e, target: digest(
        without_decider(e), e.sentence, e.deciding_sentence, e.distance, e.set, target
    ),
    "prefers masculine": lambda e, target: (" er " in f" {target.lower()} ", digest(target)),
    "shorter": lambda e, target: (-len(target), digest(target)),
    "longer": lambda e, target: (len(target), target),
    "alphabet": lambda e, target: target,
    "alphabet, turned round by position": lambda e, target: (
        [-ord(c) for c in target] if (e.sentence + len(e.document)) % 2 else [ord(c) for c in target]
    ),
}


@pytest.mark.parametrize("name", BLIND_SCORERS)
def test_without_the_deciding_sentence_exactly_half_is_right(examples, name):
    score = BLIND_SCORERS[name]
    for phenomenon in PHENOMENA:
        for distance in range(1, MAX_DISTANCE + 1):
            chosen = [e for e in examples if e.phenomenon == phenomenon and e.distance == distance]
            right = sum(score(e, e.right) > score(e, e.wrong) for e in chosen)
            assert len(chosen) >= 16 and 2 * right == len(chosen)


def test_with_the_deciding_sentence_all_is_right(examples):
    kinds = lexicon.ANTECEDENTS.values()
    gender = {noun.english: noun.gender for kind in kinds for nouns in kind.values() for noun in nouns}
    cues = {c.english: s.noun.german for senses in lexicon.AMBIGUOUS for s in senses for c in s.cues}
    familiar = {noun.english for noun in lexicon.FAMILIAR}
    pronouns = {"m": {"er", "ihn"}, "f": {"sie"}, "n": {"es"}}

    def score(example, target) -> bool:
        said = example.document.sentences[example.deciding_sentence].source.rstrip(".").split()
        words = target.rstrip(".?").replace(",", "").split()
        if example.phenomenon == "pronoun":
            noun = next(word for word in said[said.index("about") :] if word in gender)
            return bool(pronouns[gender[noun]] & {word.lower() for word in words})
        if example.phenomenon == "noun":
            return next(cues[word] for word in said if word in cues) in words
        return bool(familiar & set(said)) == bool({"du", "Du", "dich"} & set(words))

    assert all(score(e, e.right) > score(e, e.wrong) for e in examples)


def test_sets_are_closed_under_swapping(examples):
    counts = Counter((e.set, sentence(e), e.sentence, len(e.document), e.right, e.wrong) for e in examples)
    for (*same, right, wrong), count in counts.items():
        assert counts[(*same, wrong, right)] == count == 1
    sizes = Counter(e.set for e in examples)
    kinds = {e.set: e.phenomenon for e in examples}
    assert all(sizes[number] == (6 if kind == "pronoun" else 2) for number, kind in kinds.items())


def test_twins_differ_in_the_deciding_sentence_and_the_judged_translation_only(examples):
    twins = defaultdict(list)
    for example in examples:
        assert example.document.sentences[example.sentence].target == example.right != example.wrong
        assert abs(example.sentence - example.deciding_sentence) == example.distance
        twins[example.set].append(example)
    for group in twins.values():
        assert len({str(without_decider(e)) for e in group}) == 1
        deciding = {e.document.sentences[e.deciding_sentence].source for e in group}
        assert len(deciding) == len({e.right for e in group})


def test_the_test_split_judges_held_out_pairs_and_the_others_do_not(examples):
    held = [e.held_out for e in examples if e.phenomenon == "pronoun"]
    assert 0.3 <= sum(held) / len(held) <= 0.7
    assert not any(e.held_out for e in contrastive("train", 60))


def test_sets_are_a_function_of_the_seed_and_take_turns():
    some = contrastive("dev", 6, phenomena=("noun", "address"), distances=(2, 12), seed=1)
    assert some == contrastive("dev", 12, phenomena=("noun", "address"), distances=(2, 12), seed=1)[:12]
    assert some != contrastive("dev", 6, phenomena=("noun", "address"), distances=(2, 12), seed=2)
    turns = [(e.phenomenon, e.distance) for e in some[::2]]
    assert turns == [("noun", 2), ("address", 2), ("noun", 12), ("address", 12), ("noun", 2), ("address", 2)]


def test_impossible_distances_are_refused():
    with pytest.raises(ConfigError, match="distances from 1 to max_sentences - 1"):
        contrastive("test", 1, max_sentences=12)
    with pytest.raises(ConfigError, match="at least one phenomenon"):
        contrastive("test", 1, phenomena=())
