"""`flaxnmt translate` of documents as JSON lines, with random parameters: a line a sentence, in their documents."""

import gzip
import json
from types import SimpleNamespace

import pytest
from small_models import float32, random_params, small_decoder, small_model

import flaxnmt
from flaxnmt.cli import main
from flaxnmt.config import Config, DecodingConfig, TokenizerConfig
from flaxnmt.data.blocks import document_blocks
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.vocabularies import build_tokenizers
from flaxnmt.errors import DataError
from flaxnmt.models.config import BudgetConfig, DocumentConfig
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.translation.documents import DocumentTranslator
from flaxnmt.translation.lines import Text
from flaxnmt.translation.spaced import spaced
from flaxnmt.translation.translator import Translator

PARAGRAPHS = [[["one two", "three"], ["four five six"]], [["six"]], [["two two"]]]
LINES = ["one two", "three", "four five six", "", "six", "", "two two"]
PARAGRAPHS_AS_LINES = [*LINES[:2], "", LINES[2], "", "", LINES[4], "", "", LINES[6]]
ROWS = [json.dumps({"paragraphs": [{"src": part} for part in document]}) for document in PARAGRAPHS]


def documents() -> list[Document]:
    return [Document(tuple(tuple(map(Sentence, part)) for part in parts)) for parts in PARAGRAPHS]


def made(kind, monkeypatch, build=small_model, **changes):
    words = Sentence("one two three four five six", "one two three four five six")
    vocabularies = build_tokenizers(TokenizerConfig(kind="word", vocab_size=40), [Document(((words,),))])
    size = vocabularies.source.vocab_size
    model = build(size, size, **changes)
    parts = model, float32(random_params(model, seed=3)), vocabularies, DecodingConfig(beam_size=2)
    options = {"max_sentences": 4, "overlap": 0} if kind is DocumentTranslator else {}
    run = SimpleNamespace(translator=kind(*parts, **options), config=Config(model=model.config))
    monkeypatch.setattr(flaxnmt, "open_run", lambda directory: run)
    return run.translator


def translated(tmp_path, name, *options, rows=ROWS, code=0) -> list[str]:
    path, output = tmp_path / name, tmp_path / "out"
    text = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    command = [
        "translate",
        "--run",
        "run",
        "--input",
        str(path),
        "--output",
        str(output),
        "--max-length",
        "6",
    ]
    assert main([*command, "--batch-size", "8", *options]) == code
    return output.read_text(encoding="utf-8").splitlines()


def test_documents_are_translated_with_their_paragraphs(tmp_path, monkeypatch):
    translator = made(DocumentTranslator, monkeypatch, document=DocumentConfig(("document",)))
    found = translator.translate_documents(documents(), max_length=6, batch_size=8)
    assert translated(tmp_path, "in.jsonl") == [*found[0], "", *found[1], "", *found[2]]


def test_sentences_beyond_learned_positions_are_cut_with_a_warning(monkeypatch, caplog):
    document = DocumentConfig(("document",), count="unit")
    translator = made(
        DocumentTranslator, monkeypatch, document=document, positions="learned", max_positions=6
    )
    text = Document(((Sentence("one two three four five six"), Sentence("one")),))
    assert len(translator.translate_documents([text], max_length=3)[0]) == 2
    assert "1 of 2 sentences exceed 6 tokens and are cut there" in caplog.text


@pytest.mark.slow
def test_each_option_knows_which_lines_are_sentences(tmp_path, monkeypatch):
    translator = made(
        DocumentTranslator,
        monkeypatch,
        document=DocumentConfig(("document",)),
        budget=BudgetConfig((1.0, 0.5)),
    )
    # Each document is a block, so that the blank line between two blocks is seen.
    monkeypatch.setattr("flaxnmt.cli.translate.BATCHES_A_BLOCK", 0)
    (first,), (second,), (third,) = (
        translator.translate_documents([document], max_length=6, batch_size=8) for document in documents()
    )
    expected = [*first, "", *second, "", *third]
    found = translated(tmp_path, "in.jsonl", "--used", str(tmp_path / "used"))
    assert found == expected and len(found) == len(LINES) and all(first + second + third)
    shares = (tmp_path / "used").read_text().splitlines()
    assert [share == "0.0000 0.0000" for share in shares] == [not line for line in LINES]
    best = translated(tmp_path, "in.jsonl.gz", "--n-best", "1")
    assert [row.split(" ||| ")[:2] for row in best] == [[str(i), text] for i, text in enumerate(expected, 1)]
    starts = ["", "five", "six", "", "", "", "one"]
    (tmp_path / "starts").write_text("".join(f"{start}\n" for start in starts))
    forced = translated(tmp_path, "in.jsonl", "--prefix", str(tmp_path / "starts"))
    assert len(forced) == len(LINES)
    assert all(text.startswith(start) for text, start in zip(forced, starts, strict=True))
    assert translated(tmp_path, "in.txt", "--prefix", str(tmp_path / "starts"), rows=LINES)[1] == forced[1]


def test_sentences_are_those_of_text_with_the_same_paragraphs():
    text, lines = spaced(documents(), first_line=5), Text.of_lines(PARAGRAPHS_AS_LINES, paragraphs=True)
    assert text.sentences == lines.sentences and text.starts.tolist() == lines.starts.tolist()
    assert text.numbers.tolist() == [5 + place for place, line in enumerate(LINES) if line]


def test_a_model_of_sentences_translates_each(tmp_path, monkeypatch, capsys):
    made(Translator, monkeypatch)
    assert translated(tmp_path, "in.jsonl") == translated(tmp_path, "in.txt", rows=LINES)
    assert translated(tmp_path, "in.jsonl", rows=[*ROWS, "{"], code=2) == translated(tmp_path, "in.jsonl")
    assert "in.jsonl:4: not JSON" in capsys.readouterr().err
    translated(tmp_path, "in.jsonl", "--paragraphs", code=2)
    assert "has paragraphs of its own: leave it out" in capsys.readouterr().err
    translated(tmp_path, "in.txt", "--paragraphs", rows=LINES, code=2)
    assert "run: a model of sentences sees no paragraphs: leave --paragraphs out" in capsys.readouterr().err
    translated(tmp_path, "in.jsonl", "--prefix", str(tmp_path / "in.txt"), rows=ROWS[:2], code=2)
    assert "7 prefixes for 5 lines" in capsys.readouterr().err


def test_blocks_hold_whole_documents_and_those_before_a_bad_one():
    def broken():
        yield from documents()
        raise DataError("bad")

    found = []
    with pytest.raises(DataError, match="bad"):
        for block in document_blocks(broken(), 4):
            found.append([len(document) for document in block])
    assert found == [[3, 1], [1]]


@pytest.mark.slow
def test_a_decoder_alone_says_one_share_of_each_line(tmp_path, monkeypatch):
    config = small_decoder(budget=BudgetConfig(decoder=(1.0, 0.5), blocks=1)).config
    made(Translator, monkeypatch, build=lambda _, size: DecoderOnly(config, size))
    translated(tmp_path, "in.txt", "--budget", "0.5", "--used", str(tmp_path / "used"), rows=LINES)
    shares = (tmp_path / "used").read_text().splitlines()
    assert [share == "0.0000" for share in shares] == [not line for line in LINES]
    assert all(0 <= float(share) < 1.5 for share in shares)
