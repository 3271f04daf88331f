import json
import subprocess
import sys

import numpy as np
import pytest

from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.scores import bleu, chrf, evaluate, paired_bootstrap, tokenized_bleu

NOUNS = ("Der Hund", "Die Katze", "Das Haus", "Zwei Kinder", "Ein älterer Herr", "Frau Dr. Weiß", "Niemand")
VERBS = ("läuft", "schläft", "steht", "sieht uns", "spielt Ball", "ruft „Halt!“", "kostet 3,50 €")
PLACES = (
    "im Park.",
    "am Fluss (links).",
    "bei der Bank?",
    "auf dem 2. Platz!",
    "ohne Dach ...",
    "z. B. in Köln.",
)


def corpus(seed: int, lines: int = 120) -> list[str]:
    random = np.random.default_rng(seed)
    parts = (NOUNS, VERBS, PLACES)
    return [" ".join(part[random.integers(len(part))] for part in parts) for _ in range(lines)]


def degrade(lines: list[str], seed: int, rate: float) -> list[str]:
    """Drops, doubles and lower-cases words; the first line becomes empty."""
    random = np.random.default_rng(seed)

    def word(text: str) -> list[str]:
        changes = [[], [text, text], [text.lower()]]
        return changes[random.integers(3)] if random.random() < rate else [text]

    return ["", *(" ".join(w for text in line.split() for w in word(text)) for line in lines[1:])]


JSON = ("-f", "json", "-w", "10")

REFERENCE = corpus(1)
OUTPUT = degrade(REFERENCE, 2, 0.3)


def command(tmp_path, references: list[list[str]], *options: str) -> list[dict]:
    paths = [tmp_path / f"reference.{i}" for i in range(len(references))]
    for path, lines in zip(paths, references, strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    output = tmp_path / "output"
    output.write_text("\n".join(OUTPUT) + "\n", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, paths), "-i", str(output), *JSON, *options],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(run.stdout)
    return rows if isinstance(rows, list) else [rows]


def test_scores_and_signatures_equal_the_sacrebleu_command(tmp_path):
    ours = evaluate(OUTPUT, REFERENCE)
    assert ours["lines"] == len(OUTPUT)
    theirs = command(tmp_path, [REFERENCE], "-m", "bleu", "chrf", "ter")
    assert [row["name"] for row in theirs] == ["BLEU", "chrF2", "TER"]
    for name, row in zip(("bleu", "chrf", "ter"), theirs, strict=True):
        assert ours[name]["score"] == pytest.approx(row["score"], abs=1e-9)
        assert ours[name]["signature"] == row["signature"]
    assert 10 < ours["bleu"]["score"] < 90
    assert bleu(OUTPUT, REFERENCE) == ours["bleu"]["score"]
    assert chrf(OUTPUT, REFERENCE) == ours["chrf"]["score"]
    assert json.loads(json.dumps(ours)) == ours


def test_options_and_several_references_equal_the_sacrebleu_command(tmp_path):
    references = [REFERENCE, corpus(3)]
    (row,) = command(tmp_path, references, "-m", "bleu", "-lc", "--tokenize", "intl")
    ours = evaluate(OUTPUT, references, metrics=("bleu",), tokenize="intl", lowercase=True)
    assert set(ours) == {"lines", "bleu"}
    assert ours["bleu"]["score"] == pytest.approx(row["score"], abs=1e-9)
    assert ours["bleu"]["signature"] == row["signature"]
    assert "nrefs:2" in row["signature"] and "tok:intl" in row["signature"]


def test_case_counts_unless_lowercased():
    upper = [line.replace("ß", "ẞ").upper() for line in REFERENCE]
    assert bleu(upper, REFERENCE) < 50
    assert bleu(upper, REFERENCE, lowercase=True) == pytest.approx(100)


def test_tokenized_bleu_splits_punctuation_and_ignores_case_where_it_says_so():
    reference = ["Der Hund läuft, sagt er.", "Frau Dr. Weiß kostet 3,50 €!"]
    joined = ["der hund läuft , sagt er .", "FRAU DR. WEISS kostet 3,50 € !".replace("SS", "ß")]
    scores = tokenized_bleu(joined, reference, "de")
    assert list(scores) == ["tokenized_cased_bleu", "tokenized_lowercased_bleu"]
    cased, lowercased = scores.values()
    assert lowercased["score"] == pytest.approx(100) and cased["score"] < 60
    assert "case:mixed" in cased["signature"] and "case:lc" in lowercased["signature"]
    for score in scores.values():
        assert "tok:none" in score["signature"]
        assert score["tokenizer"].startswith("sacremoses-") and score["tokenizer"].endswith("lang:de")
    # The abbreviation list is the language's: "Dr." stays whole in German, "Nr." is German only.
    apart = tokenized_bleu(["Nr. 5 ist da."] * 2, ["Nr . 5 ist da ."] * 2, "de")
    assert max(score["score"] for score in apart.values()) < 80
    assert scores.items() <= evaluate(joined, reference, language="de").items()


@pytest.mark.parametrize("case, options", [("cased", []), ("lowercased", ["-lc"])])
def test_tokenized_bleu_equals_sacrebleu_on_tokenized_files(tmp_path, case, options):
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer("de")
    paths = [tmp_path / "output", tmp_path / "reference"]
    for path, lines in zip(paths, (OUTPUT, REFERENCE), strict=True):
        path.write_text(
            "".join(tokenizer.tokenize(x, return_str=True) + "\n" for x in lines), encoding="utf-8"
        )
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "sacrebleu",
            str(paths[1]),
            "-i",
            str(paths[0]),
            *JSON,
            *options,
            "--tokenize",
            "none",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = tokenized_bleu(OUTPUT, REFERENCE, "de")[f"tokenized_{case}_bleu"]
    theirs = json.loads(run.stdout)
    assert ours["score"] == pytest.approx(theirs["score"], abs=1e-9)
    assert ours["signature"] == theirs["signature"]


def test_paired_bootstrap_tells_systems_apart_and_repeats(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    outputs = {"good": degrade(REFERENCE, 4, 0.1), "level": degrade(REFERENCE, 6, 0.1), "bad": OUTPUT}
    report = paired_bootstrap(outputs, REFERENCE, samples=200, seed=3)
    assert report == paired_bootstrap(outputs, REFERENCE, samples=200, seed=3)
    assert report != paired_bootstrap(outputs, REFERENCE, samples=200, seed=4)
    assert report["baseline"] == "good"
    systems = report["bleu"]["systems"]
    assert systems["good"]["p_value"] is None
    assert systems["bad"]["p_value"] < 0.02
    assert systems["level"]["p_value"] > 0.1
    assert systems["bad"]["score"] == pytest.approx(bleu(OUTPUT, REFERENCE))
    assert abs(systems["bad"]["mean"] - systems["bad"]["score"]) < systems["bad"]["interval"]
    assert "bs:200|seed:3" in report["bleu"]["signature"]
    assert json.loads(json.dumps(report)) == report


def test_an_output_does_not_differ_from_itself():
    report = paired_bootstrap({"a": OUTPUT, "b": list(OUTPUT)}, REFERENCE, samples=50, metrics=("bleu",))
    assert report["bleu"]["systems"]["b"]["p_value"] == 1.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: evaluate(OUTPUT[:-1], REFERENCE), DataError, "119 lines, reference 1 has 120"),
        (lambda: evaluate(OUTPUT, [REFERENCE, REFERENCE[1:]]), DataError, "reference 2 has 119"),
        (lambda: evaluate([], []), DataError, "nothing to score"),
        (lambda: evaluate(OUTPUT, REFERENCE, metrics=("meteor",)), ConfigError, "unknown metric 'meteor'"),
        (lambda: evaluate(OUTPUT, REFERENCE, tokenize="14a"), ConfigError, "unknown BLEU tokenizer '14a'"),
        (lambda: tokenized_bleu(OUTPUT[1:], REFERENCE, "de"), DataError, "119 lines"),
        (lambda: paired_bootstrap({"a": OUTPUT}, REFERENCE), ConfigError, "two or more outputs"),
        (
            lambda: paired_bootstrap({"a": OUTPUT, "b": OUTPUT[1:]}, REFERENCE),
            DataError,
            "output 'b' has 119",
        ),
        (lambda: paired_bootstrap({"a": OUTPUT, "b": OUTPUT}, REFERENCE, seed=0), ConfigError, "seed"),
    ],
)
def test_errors_say_what_and_what_to_do(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
