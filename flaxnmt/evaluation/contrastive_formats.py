"""Public contrastive test sets, and files of scores for them.

contrapro   ContraPro (Müller et al. 2018, github.com/ZurichNLP/ContraPro), English-German pronouns: a JSON list;
            sentences before the judged one are taken from the OpenSubtitles documents that its scripts extract.
bawden      DiscEvalMT (Bawden et al. 2018, github.com/rbawden/discourse-mt-test-sets), English-French anaphora
            and lexical choice: a JSON object of blocks.
voita       Consistency sets (Voita et al. 2019, github.com/lena-voita/good-translation-wrong-in-context),
            English-Russian deixis, ellipsis and lexical cohesion: a JSON list of tokenised text.
scores      One number a line, one line a candidate, in the order of the set: what the scripts of all three read.

`contrastive_text` reads the last two as lines.

`tests/evaluation/test_contrastive_formats.py` makes a small file of each.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.files import locate, read_lines
from flaxnmt.errors import DataError
from flaxnmt.evaluation.contrastive import Contrast, split_scores
from flaxnmt.evaluation.json_entries import Entry, read_entries

SEPARATOR = "_eos"
"""Stands between the sentences of a fragment in Voita's sets."""


def read_contrapro(
    path: str | Path,
    documents: str | Path | None = None,
    *,
    context: int = 3,
    source: str = "en",
    target: str = "de",
    first_line: int = 1,
    check: bool = True,
) -> list[Contrast]:
    """ContraPro: phenomenon "it:er" (pronouns of source and reference), distance of the antecedent.

    An entry has "src segment", "ref segment", "src pronoun", "ref pronoun", "ante distance" (0 is the sentence
    itself, negative is unknown), "errors": [{"contrastive": text}], "document id" ("1921_12806_3712161.de") and
    "segment id" (a line). The published table puts distances above 3 together: `accuracy(..., farthest=3)`.

    Args:
      path: contrapro.json.
      documents: the folder that ContraPro's `setup_opensubs.sh` makes: <year>/<document id>, and the same name
        with the source language's ending, a sentence a line. Without it every sentence is a document of its own.
      context: sentences before the judged one that are read from there.
      source: ending of the source files.
      target: ending of the target files, with which document ids end.
      first_line: the "segment id" of a document's first line.
      check: refuse a document whose line is not the judged source sentence; letters and digits are compared.

    Raises:
      DataError: with file and line, for a missing or wrong field, a missing document, a line that is not there.
    """
    result = []
    for entry in read_entries(path, list):
        judged = Sentence(entry.text("src segment"), entry.text("ref segment"), entry.line)
        name, segment = entry.text("document id"), entry.number("segment id")
        before: list[Sentence] = []
        if documents is not None:
            at = segment - first_line
            stem = name.removesuffix(f".{target}")
            lines = _film(_find(Path(documents), stem, source), _find(Path(documents), stem, target))
            if not 0 <= at < len(lines):
                raise entry.error(f"segment {segment} of {name}, which has {len(lines)} lines")
            if check and _letters(lines[at].source) != _letters(judged.source):
                raise entry.error(
                    f"line {at + 1} of {name} is {lines[at].source!r}, not the judged sentence: these are documents "
                    "of another release, or their first line has another number; in Python, read_contrapro takes it as "
                    "first_line, and with check=False reads them all the same"
                )
            before = [pair for pair in lines[max(at - context, 0) : at] if pair.source and pair.target]
        distance = entry.number("ante distance")
        candidates = (judged.target, *(error.text("contrastive") for error in entry.entries("errors")))
        pronouns = f"{entry.text('src pronoun')}:{entry.text('ref pronoun')}".lower()
        known = distance if distance >= 0 else None
        result.append(
            _contrast(entry, (*before, judged), candidates, 0, pronouns, known, f"{name}/{segment}")
        )
    return result


def read_bawden(path: str | Path) -> list[Contrast]:
    """Either set of Bawden et al.; the sentence before the judged one decides (distance 1).

    Anaphora: {"1": {"src": [before, judged], "trg": [{"correct" or "semi-correct": [before, judged], "incorrect":
    [before, judged], "type": "m.sg"}, ...]}, ...}; phenomenon "anaphora m.sg", or "anaphora m.sg semi-correct"
    where the context is translated oddly and the pronoun has to agree with it all the same.
    Lexical choice: {"1": {"type": "disambig", "examples": [{"src": [before, judged], "trg": {"correct": [before,
    judged], "incorrect": [before, judged]}}, ...]}, ...}; phenomenon "lexical choice disambig".
    Blocks come in the order of their numbers, as in the published files of lines; a block is a group.
    Raises DataError with file and line for a missing or wrong field.
    """
    blocks = list(read_entries(path, dict))
    for block in blocks:
        if not block.key.isdigit():
            raise block.error(f"block {block.key!r}: the blocks of these sets are numbered")
    result = []
    for block in sorted(blocks, key=lambda block: int(block.key)):
        if "examples" in block:
            kind = f"lexical choice {block.text('type')}" if "type" in block else "lexical choice"
            for example in block.entries("examples"):
                result.append(_bawden(example.texts("src"), example.entry("trg"), "correct", kind, block))
            continue
        for target in block.entries("trg"):
            kind = f"anaphora {target.text('type')}"
            if "correct" in target:
                result.append(_bawden(block.texts("src"), target, "correct", kind, block))
            else:
                name = "semi-correct"
                result.append(_bawden(block.texts("src"), target, name, f"{kind} {name}", block))
    return result


def read_voita(path: str | Path, phenomenon: str | None = None) -> list[Contrast]:
    """A consistency set of Voita et al.: fragments of four sentences, of which the last one is judged.

    An entry has "src" and "dst" (all candidates), whose sentences are separated by "_eos", "true_ind" (the right
    one) and "ctx_dist" (how many sentences back the nearest deciding one is). Text stays tokenised, as it is.
    phenomenon: by default the name of the file without "_dev" or "_test": deixis, lex_cohesion, ellipsis_vp, ...
    Raises DataError with file and line for a missing or wrong field.
    """
    stem = Path(path).stem
    phenomenon = phenomenon or re.sub(r"_(dev|test)$", "", stem)
    result = []
    for number, entry in enumerate(read_entries(path, list), start=1):
        sources = entry.text("src").split(f" {SEPARATOR} ")
        fragments = [text.split(f" {SEPARATOR} ") for text in entry.texts("dst")]
        answer, distance = entry.number("true_ind"), entry.number("ctx_dist")
        if not 0 <= answer < len(fragments):
            raise entry.error(f"true_ind {answer} of {len(fragments)} candidates")
        *before, _ = right = fragments[answer]
        if any(texts[:-1] != before or len(texts) != len(sources) for texts in fragments):
            raise entry.error(
                f"candidates must have {len(sources)} sentences, as the source, and differ in the last one only"
            )
        pairs = [Sentence(*pair, entry.line) for pair in zip(sources, right, strict=True)]
        candidates = tuple(texts[-1] for texts in fragments)
        name = f"{stem}/{number}"
        result.append(_contrast(entry, pairs, candidates, answer, phenomenon, distance, name))
    return result


def read_scores(
    path: str | Path, examples: Sequence[Contrast], *, higher_is_better: bool = False
) -> list[tuple[float, ...]]:
    """A file of scores, one a line for every candidate in turn, as `accuracy` takes them (higher is better).

    The published scripts take negative log-probabilities, where lower is better, unless told otherwise.
    Raises DataError with file and line for a line that is no number, and for too few or too many lines.
    """
    values = []
    for line, text in enumerate(read_lines(locate(path)), start=1):
        try:
            values.append(float(text))
        except ValueError:
            raise DataError(
                f"{path}:{line}: {text[:40]!r} is no score: one number a line was expected"
            ) from None
    expected = sum(len(example.candidates) for example in examples)
    if len(values) != expected:
        raise DataError(
            f"{path}:{len(values)}: {len(values)} scores for the {expected} candidates of {len(examples)} examples: "
            "give one line for every candidate, right and wrong, in the order of the test set"
        )
    return split_scores(examples, values if higher_is_better else [-value for value in values])


def write_scores(path: str | Path, scores: Sequence[Sequence[float]]) -> None:
    """Log-probabilities as the published scripts read them: negative, one a line."""
    lines = [f"{-float(value)!r}\n" for row in scores for value in row]
    Path(path).write_text("".join(lines), encoding="utf-8")


def _bawden(sources: list[str], targets: Entry, name: str, kind: str, block: Entry) -> Contrast:
    right, wrong = targets.texts(name), targets.texts("incorrect")
    if not len(sources) == len(right) == len(wrong) or right[:-1] != wrong[:-1]:
        raise block.error(
            f"block {block.key}: source and translations must have as many sentences, and the {name} and the "
            "incorrect translation differ in the last one only"
        )
    pairs = [Sentence(*pair, block.line) for pair in zip(sources, right, strict=True)]
    name = f"{Path(block.path).stem}/{block.key}"
    return _contrast(block, pairs, (right[-1], wrong[-1]), 0, kind, 1, name, group=name)


def _contrast(
    entry: Entry,
    pairs: Sequence[Sentence],
    candidates: tuple[str, ...],
    answer: int,
    phenomenon: str,
    distance: int | None,
    name: str,
    group: str = "",
) -> Contrast:
    """The contrast whose judged sentence is the last one."""
    if len(candidates) < 2:
        raise entry.error("one translation and no other: nothing to choose from")
    document = Document((tuple(pairs),), id=name)
    return Contrast(document, len(pairs) - 1, candidates, answer, phenomenon, distance, group)


def _find(documents: Path, stem: str, ending: str) -> Path:
    """A file of the folder of documents, by year (the beginning of its name) or not."""
    flat = documents / f"{stem}.{ending}"
    return locate(flat if flat.exists() else documents / stem.partition("_")[0] / flat.name)


@lru_cache(maxsize=256)
def _film(source: Path, target: Path) -> tuple[Sentence, ...]:
    """The aligned lines of two files; entries of one film follow each other."""
    sources, targets = ([line.strip() for line in read_lines(path)] for path in (source, target))
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources)} lines, {target} has {len(targets)}: they must be as many"
        )
    return tuple(Sentence(*pair, line) for line, pair in enumerate(zip(sources, targets, strict=True), 1))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
