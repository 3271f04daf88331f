"""Readers of labelled text: files as people have them, sets of TFDS, and what is wrong with a line."""

import gzip
import json
import os
from pathlib import Path

import pytest
from labelled_sets import questions, squad

from flaxnmt.data.labelled.examples import LABELS, TaggedExample, TextExample
from flaxnmt.data.labelled.questions import read_questions
from flaxnmt.data.labelled.tags import read_tags, tag_names
from flaxnmt.data.labelled.texts import label_names, read_texts
from flaxnmt.errors import DataError

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("FLAXNMT_DATA", ROOT / "../shared/data"))
SST2, MNLI = LABELS["sst2"], LABELS["mnli"]
GLUE = "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"


def file(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tables_of_single_texts(tmp_path, name):
    path = file(tmp_path, name, 'label\tsentence\n1\ta "b\n0\tc d\n')
    assert list(read_texts(path, SST2)) == [TextExample('a "b', None, 1, 2), TextExample("c d", None, 0, 3)]
    assert label_names(path) == ("0", "1")
    assert list(read_texts(path, SST2, limit=1)) == [TextExample('a "b', None, 1, 2)]
    named = file(tmp_path, "b.tsv", "text\tlabel\nx\tpositive\n")
    assert list(read_texts(named, SST2)) == [TextExample("x", None, 1, 2)]
    hidden = file(tmp_path, "c.tsv", "index\tsentence\n0\tx\n")
    assert list(read_texts(hidden, SST2)) == [TextExample("x", None, None, 2)]


def test_the_files_of_cola_name_no_columns(tmp_path):
    path = file(tmp_path, "train.tsv", 'gj04\t1\t\tOur "friends" buy.\nbc01\t0\t*\tHim laughs.\n')
    assert list(read_texts(path, LABELS["cola"])) == [
        TextExample('Our "friends" buy.', None, 1, 1),
        TextExample("Him laughs.", None, 0, 2),
    ]


def test_pairs_in_the_columns_of_glue_and_in_json_lines(tmp_path):
    path = file(tmp_path, "m.tsv", f"{GLUE}0\tfiction\tA b.\tC.\tneutral\tentailment\n1\tx\tD\tE\t-\t-\n")
    assert list(read_texts(path, MNLI)) == [TextExample("A b.", "C.", 0, 2)]
    assert label_names(path) == ("entailment",)
    rows = [
        {"sentence1": "A\nb", "sentence2": "C", "gold_label": "contradiction", "label": None},
        {"premise": "D", "hypothesis": "E", "label": 1},
        {"premise": "F", "hypothesis": "G", "label": -1},
    ]
    path = file(tmp_path, "m.jsonl.gz", "\n\n".join(map(json.dumps, rows)))
    assert list(read_texts(path, MNLI)) == [
        TextExample("A b", "C", 2, 1),
        TextExample("D", "E", 1, 3),
        TextExample("F", "G", None, 5),
    ]


@pytest.mark.parametrize("names", ["1 2 3", "0 1 2 3 4 5 6 7 8 9 10 11", "-2 0.5 none"])
def test_classes_whose_names_are_numbers_are_those_of_their_names(tmp_path, names):
    rows = "".join(f"text\t{name}\n" for name in names.split())
    path = file(tmp_path, "a.tsv", f"sentence\tlabel\n{rows}")
    found = label_names(path)
    assert " ".join(found) == names
    assert [found[example.label] for example in read_texts(path, found)] == names.split()
    with pytest.raises(DataError, match="'12' is none of the labels"):
        list(read_texts(file(tmp_path, "b.tsv", "sentence\tlabel\ntext\t12\n"), found))


def test_a_secret_among_labels_is_said_and_may_be_a_class(tmp_path, caplog):
    path = file(tmp_path, "a.tsv", "sentence\tlabel\na\t-1\nb\t0\nc\t1\n")
    assert label_names(path) == ("0", "1")
    assert "label -1 stands for a secret, so that nothing is learned of the 1 examples" in caplog.text
    labels = ("-1", "0", "1")
    assert [example.label for example in read_texts(path, labels)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "label\tsentence\n1\ta\n2\tb\n", "a.tsv:3: '2' is none of the labels negative, positive"),
        (
            "a.tsv",
            "label\tsentence\n1\ta\tb\n",
            "a.tsv:2: 3 tab-separated columns, not 2 as in the first line",
        ),
        ("a.tsv", "label\tsentence\n1\t \n", "a.tsv:2: no text"),
        ("a.tsv", "label\tsentence1\tsentence2\n1\tx\t\n", "a.tsv:2: no second text"),
        ("a.tsv", "1\ta\n", "a.tsv:1: no column sentence, text"),
        ("a.tsv", "label\tsentence\n", "a.tsv: no example in it"),
        ("a.tsv", "", "a.tsv is empty"),
        ("a.tsv.gz", "", "a.tsv.gz:1: no column sentence, text"),
        ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence"\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: no object"),
        ("a.jsonl", '{"label": 1}\n', "a.jsonl:1: no text"),
        ("a.txt", "a\n", r"a.txt: labelled text is .tsv\[.gz\], .jsonl\[.gz\] or tfds"),
        ("b.tsv", None, "b.tsv does not exist"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(tmp_path, name, text, message):
    path = tmp_path / name if text is None else file(tmp_path, name, text)
    with pytest.raises(DataError, match=message) as error:
        list(read_texts(path, SST2))
    assert "\n" not in str(error.value)


def test_reading_goes_on_where_problems_are_collected(tmp_path):
    path = file(tmp_path, "a.tsv", "label\tsentence\n7\ta\n1\n1\tb\n")
    problems = []
    assert [example.text for example in read_texts(path, SST2, report=problems.append)] == ["b"]
    assert [(problem.kind, problem.line) for problem in problems] == [("label", 2), ("columns", 3)]
    with pytest.raises(DataError, match="no label in it"):
        label_names(file(tmp_path, "b.tsv", "sentence\na\n"))


def test_labels_are_those_of_all_corpora(tmp_path):
    first, second = (
        file(tmp_path, f"{name}.tsv", f"sentence\tlabel\na\t{name}\n") for name in ("pos", "neg")
    )
    assert label_names(first, second) == label_names(second, first) == ("neg", "pos")
    words = [file(tmp_path, f"{name}.conll", f"a {name}\n") for name in ("B", "A")]
    assert tag_names(*words) == ("A", "B")


def test_a_label_that_is_empty_is_none(tmp_path):
    path = file(tmp_path, "a.tsv", "sentence\tlabel\na\t\nb\tx\n")
    for read in (label_names, lambda path: list(read_texts(path, SST2))):
        with pytest.raises(DataError, match="a.tsv:2: no label; give -1 where it is a secret"):
            read(path)


def test_words_with_labels(tmp_path):
    text = (
        "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\n# a remark\nPeter NNP B-NP B-PER\n"
    )
    path = file(tmp_path, "train.conll", text.replace("-DOCSTART- -X- O O", "-DOCSTART- -X- -X- O"))
    names = tag_names(path)
    assert names == ("B-ORG", "B-PER", "O")
    assert list(read_tags(path, names)) == [
        TaggedExample(("EU", "rejects"), (0, 2), 3),
        TaggedExample(("Peter",), (1,), 8),
    ]
    assert len(list(read_tags(path, names, limit=1))) == 1
    # The sign of the pound in the Wall Street Journal.
    pounds = file(tmp_path, "d.conll", "only IN O\n# # B\n5 CD O\n")
    assert [example.words for example in read_tags(pounds, ("B", "O"))] == [("only", "#", "5")]
    with pytest.raises(DataError, match="train.conll:8: 'B-PER' is none of the labels B-ORG, O"):
        list(read_tags(path, ("B-ORG", "O")))
    with pytest.raises(DataError, match="b.conll:2: 3 columns, not 2 as in the lines before"):
        list(read_tags(file(tmp_path, "b.conll", "a O\nb X O\n"), ("O",)))
    with pytest.raises(DataError, match="c.conll:1: 1 columns, not a word and its label"):
        tag_names(file(tmp_path, "c.conll", "a\n"))


@pytest.mark.parametrize("name", ["q.json", "q.json.gz"])
def test_questions_come_back(tmp_path, name):
    path = file(tmp_path, name, squad(questions()))
    assert list(read_questions(path)) == questions()
    assert list(read_questions(path, limit=2)) == questions()[:2]


def test_questions_of_the_first_version(tmp_path):
    content = {
        "data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "c", "answers": []}]}]}]
    }
    (found,) = read_questions(file(tmp_path, "q.json", json.dumps(content)))
    assert (found.id, found.question, found.context, found.answers) == ("1", "c", "a b", ())


def test_what_is_wrong_with_a_question_is_said(tmp_path):
    right = squad(questions(), indent=1)
    moved = right.replace(f'"answer_start": {questions()[1].answers[0].start}', '"answer_start": 1', 1)
    line = 1 + moved[: moved.index('"id1"')].count("\n")
    message = rf"q.json:{line}: question id1: the answer '.*' is not at character 1 of its context"
    with pytest.raises(DataError, match=message):
        list(read_questions(file(tmp_path, "q.json", moved)))
    problems = []
    found = list(read_questions(tmp_path / "q.json", report=problems.append))
    assert [example.id for example in found] == [example.id for example in questions() if example.id != "id1"]
    assert len(problems) == 1
    with pytest.raises(DataError, match="q.json:1: not JSON"):
        list(read_questions(file(tmp_path, "q.json", f"]{right}")))
    with pytest.raises(DataError, match="not a set of questions like SQuAD.*was expected"):
        list(read_questions(file(tmp_path, "q.json", '{"data": [{}]}')))
    with pytest.raises(DataError, match="question id0: no question"):
        list(read_questions(file(tmp_path, "q.json", right.replace("Which 0?", " "))))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    pytest.importorskip("tensorflow_datasets")
    import labelled_builders

    folder = tmp_path_factory.mktemp("tfds")
    for builder in (labelled_builders.TinyInferences, labelled_builders.TinyQuestions):
        builder(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_prepared_sets(prepared):
    assert label_names("tfds:tiny_inferences", data_dir=prepared) == MNLI
    found = list(read_texts("tfds:tiny_inferences:validation_matched", MNLI, data_dir=prepared))
    assert sorted((each.text, each.second, each.label) for each in found) == [
        (f"premise {row} goes on", f"that {row}", row) for row in range(3)
    ]
    assert [each.line for each in found] == [1, 2, 3]
    assert len(list(read_texts("tfds:tiny_inferences", MNLI, data_dir=prepared, limit=5))) == 5
    hidden = read_texts("tfds:tiny_inferences:test_matched", MNLI, data_dir=prepared)
    assert [each.label for each in hidden] == [None] * 3
    asked = read_questions("tfds:tiny_questions", data_dir=prepared)
    assert sorted(asked, key=lambda each: int(each.id[2:])) == questions()


@pytest.mark.parametrize(
    ("read", "name", "message"),
    [
        (read_texts, "tfds:tiny_questions", "is no set of labelled texts"),
        (read_texts, "tfds:tiny_inferences:dev", "has no split dev; it has"),
        (read_texts, "tfds:no_such_set", "no such set or config"),
        (read_texts, "tfds:glue/mnli:validation_mismatched", "not prepared in .*download_and_prepare"),
        (
            read_questions,
            "tfds:tiny_inferences",
            "is no set of questions: it has no answers, context, question",
        ),
        (read_questions, "tfds:squad", "not prepared in .*download_and_prepare"),
        (read_questions, "tfds:squad/v9", "no such set or config"),
    ],
)
def test_errors_of_sets_are_one_line(prepared, read, name, message):
    with pytest.raises(DataError, match=message) as error:
        list(
            read(name, labels=MNLI, data_dir=prepared)
            if read is read_texts
            else read(name, data_dir=prepared)
        )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "count", "positive"),
    [("sst2/test", 872, 444), ("sst2/dev", 6735, None), ("cola/test", 1043, 721), ("cola/train", 7250, None)],
)
def test_real_classes(file, count, positive):
    path = SHARED / f"{file}.tsv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    found = list(read_texts(path, LABELS[path.parent.name]))
    assert len(found) == count and {example.label for example in found} == {0, 1}
    assert positive is None or sum(example.label for example in found) == positive


def test_real_questions():
    path = SHARED / "xquad/xquad.de.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    found = list(read_questions(path))
    assert len(found) == 1190 and all(example.answers for example in found)
