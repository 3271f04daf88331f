"""Small files in the public formats, with sentences of our own; structure and fields as published."""

import gzip
import json

import pytest

from flaxnmt.cli import main
from flaxnmt.errors import DataError
from flaxnmt.evaluation.contrastive import accuracy, candidate_documents
from flaxnmt.evaluation.contrastive_formats import (
    read_bawden,
    read_contrapro,
    read_scores,
    read_voita,
    write_scores,
)
from flaxnmt.evaluation.contrastive_text import read_bawden_lines, read_voita_lines

CONTRAPRO = [
    {
        "src segment": "I left it on the train.",
        "ref segment": "Ich habe ihn im Zug gelassen.",
        "src pronoun": "it",
        "ref pronoun": "ihn",
        "ante distance": 1,
        "intrasegmental": False,
        "document id": "1999_12_34.de",
        "segment id": 4,
        "corpus": "opensubs1999-ende",
        "errors": [
            {"contrastive": "Ich habe sie im Zug gelassen.", "replacement": "sie", "type": "coreference"},
            {"contrastive": "Ich habe es im Zug gelassen.", "replacement": "es", "type": "coreference"},
        ],
    },
    {
        "src segment": "It's mine.",
        "ref segment": "Sie gehört mir.",
        "src pronoun": "It",
        "ref pronoun": "Sie",
        "ante distance": 5,
        "document id": "1999_12_34.de",
        "segment id": 1,
        "errors": [{"contrastive": "Er gehört mir.", "replacement": "Er"}],
    },
]
FILM = {
    "en": ["It ' s mine.", "Where is the umbrella?", "", "I left it on the train.", "Later."],
    "de": ["Sie gehört mir.", "Wo ist der Schirm?", "", "Ich habe ihn im Zug gelassen.", "Später."],
}


def write(path, value, **options):
    path.write_text(json.dumps(value, ensure_ascii=False, **options), encoding="utf-8")
    return path


@pytest.fixture
def film(tmp_path):
    for ending, lines in FILM.items():
        path = tmp_path / "documents" / "1999" / f"1999_12_34.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "documents"


def pairs(example):
    return [(s.source, s.target) for s in example.document]


def test_contrapro_takes_context_from_the_documents(tmp_path, film):
    path = write(tmp_path / "contrapro.json", CONTRAPRO, indent=2)
    first, second = read_contrapro(path, film)
    # A blank line of the subtitles is no sentence.
    assert pairs(first) == [
        ("It ' s mine.", "Sie gehört mir."),
        ("Where is the umbrella?", "Wo ist der Schirm?"),
        ("I left it on the train.", "Ich habe ihn im Zug gelassen."),
    ]
    assert first.sentence == 2 and first.right == "Ich habe ihn im Zug gelassen."
    assert first.wrong == ("Ich habe sie im Zug gelassen.", "Ich habe es im Zug gelassen.")
    assert (first.phenomenon, first.distance, first.document.id) == ("it:ihn", 1, "1999_12_34.de/4")
    assert pairs(second) == [("It's mine.", "Sie gehört mir.")]
    assert (second.sentence, second.phenomenon, second.distance) == (0, "it:sie", 5)
    assert [len(e.document) for e in read_contrapro(path, film, context=2)] == [2, 1]
    assert [len(e.document) for e in read_contrapro(path)] == [1, 1]


def test_contrapro_knows_no_distance_below_zero(tmp_path):
    entries = [dict(CONTRAPRO[0], **{"ante distance": distance}) for distance in (0, -1)]
    path = write(tmp_path / "c.json", entries)
    assert [e.distance for e in read_contrapro(path)] == [0, None]


def test_contrapro_refuses_lines_that_are_not_the_judged_ones(tmp_path, film):
    path = write(tmp_path / "contrapro.json", CONTRAPRO, indent=2)
    with pytest.raises(DataError, match=r"contrapro.json:2: line 5 of 1999_12_34.de is 'Later.'"):
        read_contrapro(path, film, first_line=0)
    assert len(read_contrapro(path, film, first_line=0, check=False)) == 2
    far = write(tmp_path / "far.json", [dict(CONTRAPRO[0], **{"segment id": 6})])
    with pytest.raises(DataError, match=r"far.json:1: segment 6 of 1999_12_34.de, which has 5 lines"):
        read_contrapro(far, film)
    (film / "1999" / "1999_12_34.en").unlink()
    other = write(tmp_path / "other.json", [dict(CONTRAPRO[0], **{"document id": "1999_12_35.de"})])
    with pytest.raises(DataError, match=r"1999_12_35.en does not exist"):
        read_contrapro(other, film)


ANAPHORA = {
    "10": {
        "inspired by": ["x", "y"],
        "src": ["The lamp is new.", "Where is it?"],
        "trg": [
            {
                "correct": ["La lampe est neuve.", "Où est-elle ?"],
                "incorrect": ["La lampe est neuve.", "Où est-il ?"],
                "type": "f.sg",
            }
        ],
    },
    "2": {
        "src": ["The cars are old.", "They go fast."],
        "trg": [
            {
                "correct": ["Les voitures sont vieilles.", "Elles vont vite."],
                "incorrect": ["Les voitures sont vieilles.", "Ils vont vite."],
                "type": "f.pl",
            },
            {
                "semi-correct": ["Les camions sont vieux.", "Ils vont vite."],
                "incorrect": ["Les camions sont vieux.", "Elles vont vite."],
                "type": "m.pl",
            },
        ],
    },
}
CHOICE = {
    "1": {
        "type": "disambig",
        "examples": [
            {
                "src": [before, "He lost the match."],
                "trg": {"correct": [context, right], "incorrect": [context, wrong]},
            }
            for before, context, right, wrong in (
                ("He plays well.", "Il joue bien.", "Il a perdu le match.", "Il a perdu l'allumette."),
                ("He lit a fire.", "Il a fait un feu.", "Il a perdu l'allumette.", "Il a perdu le match."),
            )
        ],
    },
    "2": {"examples": []},
}


def test_anaphora_of_bawden_comes_in_the_order_of_its_blocks(tmp_path):
    examples = read_bawden(write(tmp_path / "anaphora.json", ANAPHORA, indent=2))
    assert [(e.group, e.phenomenon, e.distance, e.sentence) for e in examples] == [
        ("anaphora/2", "anaphora f.pl", 1, 1),
        ("anaphora/2", "anaphora m.pl semi-correct", 1, 1),
        ("anaphora/10", "anaphora f.sg", 1, 1),
    ]
    assert pairs(examples[1]) == [
        ("The cars are old.", "Les camions sont vieux."),
        ("They go fast.", "Ils vont vite."),
    ]
    assert examples[1].candidates == ("Ils vont vite.", "Elles vont vite.")
    assert examples[2].document.sentences[0].line == 2


def test_lexical_choice_of_bawden(tmp_path):
    examples = read_bawden(write(tmp_path / "lexical-choice.json", CHOICE))
    assert [e.candidates for e in examples] == [examples[1].candidates[::-1], examples[0].candidates[::-1]]
    assert pairs(examples[1])[0] == ("He lit a fire.", "Il a fait un feu.")
    assert {(e.phenomenon, e.group) for e in examples} == {("lexical choice disambig", "lexical-choice/1")}


VOITA = [
    {
        "src": "She came . _eos Who ? _eos Anna . _eos Anna is here .",
        "dst": [
            f"Она пришла . _eos Кто ? _eos {name} . _eos {last} здесь ."
            for name, last in (("Энн", "Анна"), ("Энн", "Энн"), ("Энн", "Энни"))
        ],
        "true_ind": 1,
        "ctx_dist": 1,
    },
    {"src": "Go . _eos Now .", "dst": ["Иди . _eos Сейчас ."] * 2, "true_ind": 0, "ctx_dist": 3},
]


def test_the_sets_of_voita(tmp_path):
    first, second = read_voita(write(tmp_path / "lex_cohesion_test.json", VOITA))
    assert first.candidates == ("Анна здесь .", "Энн здесь .", "Энни здесь .") and first.answer == 1
    assert pairs(first)[2:] == [("Anna .", "Энн ."), ("Anna is here .", "Энн здесь .")]
    assert (first.sentence, first.phenomenon, first.distance) == (3, "lex_cohesion", 1)
    # A published set has an example all of whose candidates are alike.
    assert len(second.candidates) == 2 and second.wrong == ()
    assert read_voita(tmp_path / "lex_cohesion_test.json", "names")[0].phenomenon == "names"


def lines(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return path


def as_lines(examples):
    """Source and target of the context and of what is judged, a line a candidate."""
    rows = []
    for example in examples:
        (*before, judged) = pairs(example)
        rows += [(before, judged[0], text) for text in example.candidates]
    return rows


def test_sets_of_bawden_as_lines_are_those_of_json(tmp_path):
    known = read_bawden(write(tmp_path / "anaphora.json", ANAPHORA))
    rows = as_lines(known)
    for kind, text in {
        "prev.en": [before[0][0] for before, _, _ in rows],
        "prev.fr": [before[0][1] for before, _, _ in rows],
        "current.en": [source for _, source, _ in rows],
        "current.fr": [target for _, _, target in rows],
    }.items():
        lines(tmp_path / f"anaphora.{kind}", text)
    found = read_bawden_lines(tmp_path / "anaphora.current.en")
    assert list(map(pairs, found)) == list(map(pairs, known))
    assert [(e.candidates, e.answer, e.distance) for e in found] == [
        (e.candidates, e.answer, e.distance) for e in known
    ]
    assert [e.group for e in found] == ["anaphora/1", "anaphora/1", "anaphora/2"]
    scores = lines(tmp_path / "scores", ["-1", "-2"] * 3)
    command = ["contrast", "--form", "bawden", "--set", str(tmp_path / "anaphora.current.en")]
    assert main([*command, "--scores", str(scores)]) == 0
    lines(tmp_path / "anaphora.prev.fr", ["a", "b"] * 3)
    with pytest.raises(DataError, match=r"anaphora.current.en:1: this line and the next are of one example"):
        read_bawden_lines(tmp_path / "anaphora.current.en")
    lines(tmp_path / "anaphora.prev.fr", ["a"])
    with pytest.raises(
        DataError, match=r"two lines for each example, and as many: anaphora.prev.en 6, .* 1, "
    ):
        read_bawden_lines(tmp_path / "anaphora.current.en")
    (tmp_path / "anaphora.current.fr").unlink()
    with pytest.raises(DataError, match="expected the current sentences of one other language beside it"):
        read_bawden_lines(tmp_path / "anaphora.current.en")
    with pytest.raises(DataError, match=r"expected NAME.current.LANGUAGE of the source, or a JSON file"):
        read_bawden_lines(tmp_path / "anaphora.prev.en")


@pytest.mark.parametrize("folder", ["", "scoring_data"])
def test_sets_of_voita_as_lines_are_those_of_json_in_other_words(tmp_path, folder):
    known = read_voita(write(tmp_path / "lex_cohesion_test.json", VOITA))
    source = tmp_path / folder / "lex_cohesion_test.src"
    lines(source, [entry["src"].lower() for entry in VOITA for _ in entry["dst"]])
    lines(source.with_suffix(".dst"), [text.lower() for entry in VOITA for text in entry["dst"]])
    found = read_voita_lines(source)
    assert [e.candidates for e in found] == [tuple(map(str.lower, e.candidates)) for e in known]
    assert pairs(found[0])[2:] == [("anna .", "энн ."), ("anna is here .", "энн здесь .")]
    assert [(e.answer, e.phenomenon, e.distance) for e in found] == [
        (e.answer, e.phenomenon, e.distance) for e in known
    ]
    lines(source, ["go . _eos now ."] * 5)
    with pytest.raises(
        DataError, match=r"lex_cohesion_test.src:1: 3 lines were expected that differ in the last"
    ):
        read_voita_lines(source)
    lines(source, ["go . _eos now ."])
    with pytest.raises(DataError, match="1 sources and 5 targets for 5 candidates of the set"):
        read_voita_lines(source)


def test_score_files_have_a_line_for_every_candidate(tmp_path):
    examples = read_voita(write(tmp_path / "deixis_dev.json", VOITA))
    path = tmp_path / "scores"
    path.write_text("3.5\n2\n1e1\n-1\n 4 \n")
    assert read_scores(path, examples) == [(-3.5, -2.0, -10.0), (1.0, -4.0)]
    assert accuracy(examples, read_scores(path, examples))["overall"]["right"] == 2
    assert read_scores(path, examples, higher_is_better=True)[0] == (3.5, 2.0, 10.0)
    assert accuracy(examples, read_scores(path, examples, higher_is_better=True))["overall"]["right"] == 1
    for text, message in (
        ("1\n2\n3\n4\n", "scores:4: 4 scores for the 5 candidates of 2 examples"),
        ("1\n2\n3\n4\n5\n6\n", "scores:6: 6 scores for the 5"),
        ("1\n2\nx\n4\n5\n", "scores:3: 'x' is no score"),
        ("1\n\n3\n4\n5\n", "scores:2: '' is no score"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_scores(path, examples)


def test_scores_survive_a_file_as_the_published_scripts_read_it(tmp_path):
    examples = read_bawden(write(tmp_path / "anaphora.json", ANAPHORA))
    scores = [(-1 / 3, -2.5), (-1e-9, -7.0), (-40.0, -4.0)]
    write_scores(tmp_path / "scores", scores)
    assert read_scores(tmp_path / "scores", examples) == scores
    lines = [float(line) for line in (tmp_path / "scores").read_text().splitlines()]
    # Right before wrong, lower is better.
    right = sum(lines[i] < lines[i + 1] for i in range(0, len(lines), 2))
    assert right == accuracy(examples, scores)["overall"]["right"] == 2
    flat = [document.sentences[i].target for e in examples for document, i in candidate_documents(e)]
    assert len(flat) == len(lines)


def test_compressed_files_are_read(tmp_path):
    path = tmp_path / "deixis_test.json.gz"
    path.write_bytes(gzip.compress(json.dumps(VOITA).encode()))
    assert len(read_voita(path, "deixis")) == 2


def without(entry: dict, name: str) -> dict:
    return {key: value for key, value in entry.items() if key != name}


SHORT = dict(VOITA[0], dst=["Она . _eos Анна здесь .", "Она . _eos Энн здесь ."])
CONTEXTS = dict(VOITA[0], dst=[VOITA[0]["dst"][1], VOITA[0]["dst"][0].replace("Кто", "Что")])


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (read_voita, [], ":1: a list of entries was expected"),
        (read_voita, ANAPHORA, ":1: a list of entries was expected"),
        (read_bawden, VOITA, ":1: an object of entries was expected"),
        (read_voita, CONTRAPRO, ":2: no 'src': a text was expected"),
        (read_contrapro, VOITA, ":2: no 'src segment'"),
        (read_voita, [VOITA[1], ["x"]], ":11: no 'src'"),
        (read_voita, [dict(VOITA[0], true_ind=3)], ":2: true_ind 3 of 3 candidates"),
        (read_voita, [dict(VOITA[0], true_ind=True)], ":2: 'true_ind' is true, a whole number"),
        (read_voita, [dict(VOITA[0], dst=["a", 1])], ":2: 1 in 'dst': a text"),
        (read_voita, [dict(VOITA[0], dst=VOITA[0]["dst"][1:2], true_ind=0)], ":2: one translation and no other"),
        (read_voita, [VOITA[1], SHORT], ":11: candidates must have 4 sentences"),
        (read_voita, [CONTEXTS], ":2: candidates must .* differ in the last one only"),
        (read_contrapro, [dict(CONTRAPRO[0], errors=[])], ":2: one translation and no other"),
        (read_contrapro, [dict(CONTRAPRO[0], errors=[{}])], ":2: no 'contrastive' in 'errors'"),
        (read_contrapro, [CONTRAPRO[0], without(CONTRAPRO[1], "segment id")], ":25: no 'segment id'"),
        (read_contrapro, [dict(CONTRAPRO[0], **{"ref segment": " "})], ":2: .* in 'ref segment': a text that"),
        (read_bawden, {"one": {}}, ":2: block 'one': the blocks of these sets are numbered"),
        (read_bawden, {"1": {}}, ":2: no 'trg' in '1'"),
        (read_bawden, {"1": {"trg": [{"type": "f.sg"}], "src": ["a", "b"]}}, ":2: no 'semi-correct' in 'trg'"),
        (
            read_bawden,
            {"1": {"examples": [{"src": ["a", "b"], "trg": {"correct": ["A", "B"], "incorrect": ["X", "C"]}}]}},
            ":2: block 1: .* differ in the last one only",
        ),
    ],
)  # fmt: skip
def test_broken_entries_are_named_with_their_line(tmp_path, read, value, message):
    path = write(tmp_path / "set.json", value, indent=1)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[\n{"src": "a"\nx}]', r":3: not JSON \("),
        (b'[\n"\xff"]', r":2: invalid UTF-8"),
        (b"", "is empty"),
    ],
)
def test_broken_files_are_named_with_their_line(tmp_path, content, message):
    path = tmp_path / "set.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_voita(path)
    with pytest.raises(DataError, match="does not exist"):
        read_bawden(tmp_path / "none.json")


def test_the_command_judges_scores_of_another_system(tmp_path, capsys):
    path, scores = write(tmp_path / "anaphora.json", ANAPHORA), [(-1 / 3, -2.5), (-1e-9, -7.0), (-40.0, -4.0)]
    write_scores(tmp_path / "scores", scores)
    command = ["contrast", "--set", str(path), "--form", "bawden"]
    assert main([*command, "--scores", str(tmp_path / "scores"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"true": accuracy(read_bawden(path), scores)}
    for options, said in (([], "give --run, or --scores"), (["--scores", "s", "--controls"], "need a model")):
        assert main([*command, *options]) == 2
        assert said in capsys.readouterr().err
