import json
import subprocess
import sys

import numpy as np
import pytest

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.documents import document_scores, join, paired_document_bootstrap, references
from flaxnmt.evaluation.scores import evaluate, paired_bootstrap

WORDS = (
    "der die das Hund Katze läuft schläft heute morgen dort hier im Park am Fluss weiß nicht, warum.".split()
)


def corpus(seed: int = 1, documents: int = 12) -> list[Document]:
    rng = np.random.default_rng(seed)

    def sentence() -> Sentence:
        return Sentence("x", " ".join(rng.choice(WORDS, rng.integers(3, 9))) + ".")

    return [
        Document(tuple(tuple(sentence() for _ in range(rng.integers(1, 4))) for _ in range(2)))
        for _ in range(documents)
    ]


def degrade(documents: list[Document], rate: float, seed: int = 2) -> list[list[str]]:
    """Drops words; one sentence becomes empty."""
    rng = np.random.default_rng(seed)
    outputs = [
        [" ".join(w for w in s.target.split() if rng.random() > rate) for s in document]
        for document in documents
    ]
    outputs[0][0] = ""
    return outputs


CORPUS = corpus()
OUTPUT = degrade(CORPUS, 0.2)


@pytest.mark.parametrize("units", ["s", "d"])
def test_scores_equal_the_sacrebleu_command_on_files(tmp_path, units):
    files = {}
    for name, lists in (("output", OUTPUT), ("reference", references(CORPUS))):
        lines = join(lists) if units == "d" else [line for document in lists for line in document]
        files[name] = tmp_path / name
        files[name].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(files["reference"]), "-i", str(files["output"])]
    options = ["-m", "bleu", "chrf", "-f", "json", "-w", "10"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    ours = document_scores(OUTPUT, CORPUS)
    for name, row in zip(("bleu", "chrf"), json.loads(run.stdout), strict=True):
        assert ours[f"{units}_{name}"]["score"] == pytest.approx(row["score"], abs=1e-9)
        assert ours[f"{units}_{name}"]["signature"] == row["signature"]
        assert 10 < row["score"] < 90
    assert ours["documents"] == len(CORPUS)
    assert ours["sentences"] == sum(map(len, CORPUS))
    assert json.loads(json.dumps(ours)) == ours


def test_d_bleu_forgives_words_that_cross_a_sentence_end_and_s_bleu_does_not():
    documents = [Document(((Sentence("a", "eins zwei drei vier"), Sentence("b", "fünf sechs sieben acht")),))]
    moved = [["eins zwei drei vier fünf", "sechs sieben acht"]]
    scores = document_scores(moved, documents)
    assert scores["d_bleu"]["score"] == pytest.approx(100)
    assert scores["s_bleu"]["score"] < 80


def test_one_sentence_documents_have_equal_scores():
    documents = [Document(((s,),)) for document in CORPUS for s in document]
    outputs = [[line] for document in OUTPUT for line in document]
    scores = document_scores(outputs, documents)
    for metric in ("bleu", "chrf"):
        assert scores[f"s_{metric}"] == scores[f"d_{metric}"]
    whole = document_scores(OUTPUT, CORPUS)
    assert whole["s_bleu"] == scores["s_bleu"] != whole["d_bleu"]


def test_options_reach_bleu():
    upper = [[line.replace("ß", "ẞ").upper() for line in lines] for lines in references(CORPUS)]
    assert document_scores(upper, CORPUS)["d_bleu"]["score"] < 20
    scores = document_scores(upper, CORPUS, lowercase=True, tokenize="none")
    assert "case:lc" in scores["s_bleu"]["signature"] and "tok:none" in scores["d_bleu"]["signature"]
    assert scores["d_bleu"]["score"] == pytest.approx(100)


def test_the_bootstrap_of_joined_documents_is_that_of_sacrebleu():
    systems = {
        "good": degrade(CORPUS, 0.1, 5),
        "bad": degrade(CORPUS, 0.4, 6),
        "level": degrade(CORPUS, 0.1, 7),
    }
    report = paired_document_bootstrap(systems, CORPUS, samples=100, seed=4)
    lines = {name: join(texts) for name, texts in systems.items()}
    theirs = paired_bootstrap(lines, join(references(CORPUS)), samples=100, seed=4)
    assert report["baseline"] == "good" and report["documents"] == len(CORPUS)
    for metric in ("bleu", "chrf"):
        ours = report[f"d_{metric}"]
        assert ours["signature"] == theirs[metric]["signature"]
        assert (
            ours["systems"]["good"].pop("p_value") is theirs[metric]["systems"]["good"].pop("p_value") is None
        )
        for system, row in theirs[metric]["systems"].items():
            # sacreBLEU adds up in single precision.
            assert ours["systems"][system] == pytest.approx(row, rel=1e-5)


def test_the_bootstrap_of_sentences_draws_whole_documents():
    """Documents drawn by hand: the score of a sample is that of its sentences together."""
    systems = {"a": degrade(CORPUS, 0.2, 8), "b": degrade(CORPUS, 0.2, 9)}
    report = paired_document_bootstrap(systems, CORPUS, samples=20, seed=3)
    drawn = np.random.default_rng(3).choice(len(CORPUS), size=(20, len(CORPUS)), replace=True)
    targets = references(CORPUS)

    def flat(lists, rows) -> list[str]:
        return [line for row in rows for line in lists[row]]

    for metric in ("bleu", "chrf"):
        sampled = {
            name: np.array(
                [
                    evaluate(flat(texts, rows), flat(targets, rows), metrics=(metric,))[metric]["score"]
                    for rows in drawn
                ]
            )
            for name, texts in systems.items()
        }
        whole = {name: row["score"] for name, row in report[f"s_{metric}"]["systems"].items()}
        scores = document_scores(systems["b"], CORPUS)[f"s_{metric}"]["score"]
        assert whole["b"] == pytest.approx(scores)
        difference = np.abs(sampled["b"] - sampled["a"])
        beyond = difference - difference.mean() > abs(whole["b"] - whole["a"])
        row = report[f"s_{metric}"]["systems"]["b"]
        assert row["mean"] == pytest.approx(sampled["b"].mean())
        assert row["p_value"] == pytest.approx((1 + beyond.sum()) / 21)


def test_the_bootstrap_tells_systems_apart_and_repeats():
    systems = {"good": degrade(CORPUS, 0.1, 5), "bad": degrade(CORPUS, 0.5, 6)}
    report = paired_document_bootstrap(systems, CORPUS, samples=200, seed=1)
    for name in ("s_bleu", "d_bleu", "s_chrf", "d_chrf"):
        assert report[name]["systems"]["good"]["p_value"] is None
        assert report[name]["systems"]["bad"]["p_value"] < 0.02
    assert json.loads(json.dumps(report)) == report
    assert report == paired_document_bootstrap(systems, CORPUS, samples=200, seed=1)
    assert report != paired_document_bootstrap(systems, CORPUS, samples=200, seed=2)
    same = paired_document_bootstrap({"a": OUTPUT, "b": [list(x) for x in OUTPUT]}, CORPUS, samples=20)
    assert same["s_bleu"]["systems"]["b"]["p_value"] == same["d_chrf"]["systems"]["b"]["p_value"] == 1.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: document_scores(OUTPUT[1:], CORPUS), DataError, "has 11 documents, the references have 12"),
        (
            lambda: document_scores([OUTPUT[0][1:], *OUTPUT[1:]], CORPUS),
            DataError,
            r"sentences in document 1, the reference has",
        ),
        (lambda: document_scores([], []), DataError, "nothing to score"),
        (
            lambda: document_scores([["x"]], [Document(((Sentence("a", None, 7),),), id="film")]),
            DataError,
            "document 1 'film', line 7: a sentence without a target",
        ),
        (lambda: paired_document_bootstrap({"a": OUTPUT}, CORPUS), ConfigError, "two or more"),
        (
            lambda: paired_document_bootstrap({"a": OUTPUT, "b": OUTPUT}, CORPUS, tokenize="14a"),
            ConfigError,
            "unknown BLEU tokenizer '14a'",
        ),
        (
            lambda: paired_document_bootstrap({"a": OUTPUT, "b": OUTPUT[1:]}, CORPUS),
            DataError,
            "output 'b' has 11 documents",
        ),
    ],
)
def test_errors_say_what_and_what_to_do(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
