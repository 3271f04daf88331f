"""Small files in the format of ctxpro, with sentences of our own; structure and fields as published."""

import json

import pytest

from flaxnmt.errors import DataError
from flaxnmt.evaluation.ctxpro import contains, form_accuracy, read_ctxpro

ENTRIES = [
    {
        "src pronoun": "it",
        "expected": "sie",
        "ante distance": 2,
        "ref segment": "Hast du sie gesehen?",
        "src segment": "Have you seen it?",
        "segment id": 12,
        "document id": "de-en/2001/2001_1_2",
        "rule": "FEM.ACC",
    },
    {
        "expected": "tut",
        "ref segment": "Ja, das tut er.",
        "src segment": "Yes, he  does.",
        "segment id": 3,
        "document id": "de-en/2001/2001_1_3",
        "rule": "DO.ELL",
    },
]
INPUTS = ["The lamp is gone.<eos> Again?<eos> Have you seen it?", "Yes, he does."]


@pytest.fixture
def files(tmp_path):
    def write(entries=ENTRIES, inputs=INPUTS):
        paths = tmp_path / "set.json", tmp_path / "set.txt"
        paths[0].write_text(json.dumps(entries, indent=1), encoding="utf-8")
        paths[1].write_text("".join(line + "\n" for line in inputs), encoding="utf-8")
        return paths

    return write


def test_context_comes_from_the_inputs(files):
    path, inputs = files()
    first, second = read_ctxpro(path, inputs)
    assert [(s.source, s.target) for s in first.document] == [
        ("The lamp is gone.", None),
        ("Again?", None),
        ("Have you seen it?", "Hast du sie gesehen?"),
    ]
    assert (first.expected, first.rule, first.distance) == ("sie", "FEM.ACC", 2)
    assert first.document.id == "de-en/2001/2001_1_2/12"
    assert len(second.document) == 1 and second.distance is None
    assert [len(e.document) for e in read_ctxpro(path)] == [1, 1]


@pytest.mark.parametrize(
    ("translation", "form", "right"),
    [
        ("Sie ist da.", "sie", True),
        ("Hast du sie?", "Sie", True),
        ("Sieh da.", "sie", False),
        ("Da, (sie)", "sie", True),
        ("des Siebs", "sie", False),
        ("Er tut es nicht.", "tut es", True),
        ("", "sie", False),
    ],
)
def test_forms_are_words(translation, form, right):
    assert contains(translation, form) is right


def test_accuracy_by_rule_and_distance(files):
    examples = read_ctxpro(*files())
    result = form_accuracy([*examples, examples[0]], ["Hast du sie gesehen?", "Ja.", "Sah er ihn?"])
    assert result["overall"] == {"accuracy": 100 / 3, "right": 1, "ties": 0, "total": 3}
    assert result["by_phenomenon"]["FEM.ACC"]["accuracy"] == 50
    assert {label: cell["right"] for label, cell in result["by_distance"].items()} == {"2": 1, "-": 0}
    references = [example.document.sentences[-1].target for example in examples]
    assert form_accuracy(examples, references)["overall"]["accuracy"] == 100
    with pytest.raises(DataError, match="1 translations for 2 examples"):
        form_accuracy(examples, ["x"])


def test_broken_files_are_named_with_their_line(files):
    with pytest.raises(DataError, match=r"set.txt:1: 1 lines for the 2 entries"):
        read_ctxpro(*files(inputs=INPUTS[:1]))
    with pytest.raises(DataError, match=r"set.txt:2: ends with 'Have you seen it\?', but .* 'Yes"):
        read_ctxpro(*files(inputs=INPUTS[:1] * 2))
    broken = {key: value for key, value in ENTRIES[1].items() if key != "expected"}
    with pytest.raises(DataError, match=r"set.json:12: no 'expected'"):
        read_ctxpro(*files(entries=[ENTRIES[0], broken]))
