import hashlib
import json
import math

import pytest

from flaxnmt.data.discourse import MAX_DISTANCE, PHENOMENA, contrastive
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import DataError
from flaxnmt.evaluation.contrastive import (
    Contrast,
    accuracy,
    candidate_documents,
    format_table,
    from_discourse,
    score_contrasts,
)


def contrast(candidates=("ja", "nein"), answer=0, phenomenon="x", distance=1, group="") -> Contrast:
    document = Document(
        ((Sentence("a", "A"),), (Sentence("b", candidates[answer]), Sentence("c", "C"))), id="d"
    )
    return Contrast(document, 1, tuple(candidates), answer, phenomenon, distance, group)


def digest(*parts) -> float:
    return float(int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6]))


@pytest.fixture(scope="module")
def generated():
    return [from_discourse(e) for e in contrastive("test", 3 * MAX_DISTANCE * 2, seed=3)]


def test_a_scorer_reads_documents_that_differ_in_the_judged_target_alone():
    example = contrast(("ja", "nein", "doch"), answer=2)
    documents = candidate_documents(example)
    assert [document.sentences[index].target for document, index in documents] == ["ja", "nein", "doch"]
    for document, index in documents:
        assert index == 1 and document.id == "d"
        assert [len(part) for part in document.paragraphs] == [1, 2]
        assert [s.source for s in document] == ["a", "b", "c"]
        assert [s.target for i, s in enumerate(document) if i != index] == ["A", "C"]
    assert documents[2][0] == example.document


def test_scores_come_from_one_call_and_go_back_to_their_examples():
    calls = []

    def score(pairs):
        calls.append(len(pairs))
        return [-len(document.sentences[index].target) for document, index in pairs]

    examples = [contrast(("ja", "nein", "vielleicht")), contrast(("doch", "ja"))]
    assert score_contrasts(examples, score) == [(-2.0, -4.0, -10.0), (-4.0, -2.0)]
    assert calls == [5]
    with pytest.raises(DataError, match="4 scores for 5 candidates"):
        score_contrasts(examples, lambda pairs: [0.0] * 4)


def test_accuracy_counts_by_phenomenon_and_distance_and_ties_are_wrong():
    rows = [
        ("p", 1, (-1.0, -2.0)),
        ("p", 1, (-2.0, -1.0)),
        ("p", 2, (-1.0, -1.0)),
        ("q", 2, (-1.0, -3.0)),
        ("q", None, (0.0, -math.inf)),
    ]
    examples = [contrast(phenomenon=name, distance=distance) for name, distance, _ in rows]
    result = accuracy(examples, [scores for *_, scores in rows])
    assert result["overall"] == {"accuracy": 60.0, "right": 3, "ties": 1, "total": 5}
    assert result["by_phenomenon"]["p"] == {"accuracy": 100 / 3, "right": 1, "ties": 1, "total": 3}
    assert result["by_phenomenon"]["q"] == {"accuracy": 100.0, "right": 2, "ties": 0, "total": 2}
    assert {label: cell["right"] for label, cell in result["by_distance"].items()} == {"1": 1, "2": 1, "-": 1}
    assert list(result["by_distance"]) == ["1", "2", "-"]
    both = result["by_phenomenon_and_distance"]
    assert {name: {label: (c["right"], c["total"]) for label, c in row.items()} for name, row in both.items()} == {
        "p": {"1": (1, 2), "2": (0, 1)},
        "q": {"2": (1, 1), "-": (1, 1)},
    }  # fmt: skip
    assert json.loads(json.dumps(result)) == result


def test_the_right_candidate_has_to_beat_every_wrong_one_wherever_it_stands():
    example = contrast(("a", "b", "c"), answer=1)

    def right(*scores) -> int:
        return accuracy([example], [scores])["overall"]["right"]

    assert right(-2, -1, -3) == 1
    assert right(0, -1, -3) == right(-3, -1, 0) == right(-1, -1, -3) == 0


def test_copies_of_the_right_candidate_are_not_wrong():
    twice = contrast(("a", "b", "a"), answer=0)
    assert twice.wrong == ("b",)
    assert accuracy([twice], [(-1, -2, -1)])["overall"] == {
        "accuracy": 100.0, "right": 1, "ties": 0, "total": 1
    }  # fmt: skip
    assert accuracy([contrast(("a", "a"))], [(-1, -1)])["overall"]["right"] == 1


def test_far_distances_are_put_together():
    examples = [contrast(distance=distance) for distance in (0, 12, 3, 4, None)]
    result = accuracy(examples, [(1, 0), (0, 1), (1, 0), (1, 0), (1, 0)], farthest=3)
    cells = {label: (cell["right"], cell["total"]) for label, cell in result["by_distance"].items()}
    assert cells == {"0": (1, 1), "3": (1, 1), ">3": (1, 2), "-": (1, 1)}
    assert list(cells) == ["0", "3", ">3", "-"]
    apart = accuracy(examples, [(1, 0)] * 5)
    assert list(apart["by_distance"]) == ["0", "3", "4", "12", "-"]


def test_a_group_is_right_where_all_of_it_is():
    examples = [contrast(group=group) for group in ("a", "b", "a", "b", "")]
    result = accuracy(examples, [(1, 0), (1, 0), (1, 0), (0, 1), (0, 1)])
    assert result["groups"] == {"accuracy": 50.0, "right": 1, "total": 2}
    assert accuracy(examples[4:], [(1, 0)])["groups"] == {"accuracy": None, "right": 0, "total": 0}


def test_tables_show_per_cent_and_counts():
    examples = [
        contrast(phenomenon=name, distance=distance) for name in ("er", "sie") for distance in (1, 10)
    ]
    result = accuracy([*examples, contrast(phenomenon="er")], [(1, 0), (0, 1), (1, 0), (1, 0), (1, 1)])
    assert format_table(result).splitlines() == [
        "phenomenon      1     10    all  examples",
        "er           50.0    0.0   33.3         3",
        "sie         100.0  100.0  100.0         2",
        "all          66.7   50.0   60.0         5",
        "examples        3      2      5",
        "1 tie(s) counted as wrong",
    ]
    markdown = format_table(result, markdown=True).splitlines()
    assert markdown[0] == "| phenomenon |     1 |    10 |   all | examples |"
    assert markdown[1] == "| ---------- | ----: | ----: | ----: | -------: |"
    assert markdown[2] == "| er         |  50.0 |   0.0 |  33.3 |        3 |"
    unknown = accuracy([contrast(distance=None)], [(1, 0)])
    assert format_table(unknown).splitlines()[:2] == [
        "phenomenon    all  examples",
        "x           100.0         1",
    ]


def test_a_cell_without_examples_is_empty():
    result = accuracy([contrast(phenomenon="p"), contrast(phenomenon="q", distance=2)], [(1, 0), (0, 1)])
    assert format_table(result).splitlines()[1:3] == [
        "p           100.0       100.0         1",
        "q                  0.0    0.0         1",
    ]


def test_generated_sets_are_closed_under_swapping(generated):
    """Any scorer that does not read the context is right on one half, and on the other after swapping."""
    assert {example.phenomenon for example in generated} == set(PHENOMENA)
    assert all(example.right != example.wrong[0] and example.group for example in generated)

    def blind(pairs):
        return [digest(document.sentences[index]) for document, index in pairs]

    result = accuracy(generated, score_contrasts(generated, blind))
    assert all(cell["accuracy"] == 50 for cell in result["by_distance"].values())
    assert all(cell["accuracy"] == 50 for cell in result["by_phenomenon"].values())
    keys = {(e.group, e.right, e.wrong) for e in generated}
    assert keys == {(group, wrong[0], (right,)) for group, right, wrong in keys}
    assert len(keys) == len(generated)


def test_an_oracle_is_right_on_all_of_a_generated_set(generated):
    right = {(e.document.id, e.right) for e in generated}

    def oracle(pairs):
        return [float((d.id, d.sentences[index].target) in right) for d, index in pairs]

    result = accuracy(generated, score_contrasts(generated, oracle))
    assert result["overall"]["accuracy"] == 100 == result["groups"]["accuracy"]
    assert set(result["by_distance"]) == {str(distance) for distance in range(1, MAX_DISTANCE + 1)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy([], []), "nothing to measure"),
        (lambda: accuracy([contrast()], []), "1 contrasts but 0 rows"),
        (lambda: accuracy([contrast()], [(1,)]), r"document 'd': scores \[1\] for 2 candidates"),
        (lambda: accuracy([contrast()], [(1, math.nan)]), "nan"),
        (lambda: contrast(("ja",)), "no choice between 1"),
        (lambda: Contrast(contrast().document, 3, ("ja", "nein"), 0, "x"), "sentence 3 of 3"),
        (lambda: Contrast(contrast().document, 1, ("ja", "nein"), 1, "x"), "does not hold the right"),
        (lambda: Contrast(contrast().document, 1, ("ja", "nein"), 2, "x"), "answer 2"),
    ],
)
def test_errors_say_what_and_what_to_do(call, message):
    with pytest.raises(DataError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
