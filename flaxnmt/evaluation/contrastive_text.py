"""Public contrastive test sets as lines, a candidate each: for text that was prepared otherwise than their JSON.

bawden   github.com/rbawden/discourse-mt-test-sets, test-sets: NAME.prev.en, NAME.current.en and the same in the target
         language; the right translation and the wrong one in turn.
voita    github.com/lena-voita/good-translation-wrong-in-context, consistency_testsets/scoring_data: NAME.src and
         NAME.dst. Which candidate is right is in NAME.json alone, beside them or in the folder above.
"""

from dataclasses import replace
from pathlib import Path

from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.files import locate, read_lines
from flaxnmt.errors import DataError
from flaxnmt.evaluation.contrastive import Contrast
from flaxnmt.evaluation.contrastive_formats import SEPARATOR, read_voita

CURRENT, PREVIOUS = ".current.", ".prev."


def read_bawden_lines(path: str | Path) -> list[Contrast]:
    """Either set of Bawden et al. from `NAME.current.en` and the three files beside it; of distance 1.

    The phenomenon is the name. Examples with the same source sentence, which follow each other, are a group.

    Raises:
      DataError: for a missing file, and with file and line where the two candidates of an example differ in more than
        their last sentence.
    """
    path = Path(path)
    name, current, language = path.name.partition(CURRENT)
    if not current:
        raise DataError(f"{path}: expected NAME{CURRENT}LANGUAGE of the source, or a JSON file")
    languages = {file.name.removeprefix(name + CURRENT) for file in path.parent.glob(f"{name}{CURRENT}*")}
    if len(languages - {language}) != 1:
        raise DataError(
            f"{path}: expected the current sentences of one other language beside it, {name}{CURRENT}*"
        )
    (other,) = languages - {language}
    files = [
        path.with_name(f"{name}{part}{side}") for side in (language, other) for part in (PREVIOUS, CURRENT)
    ]
    columns = [list(read_lines(locate(file))) for file in files]
    if len({len(lines) for lines in columns}) > 1 or len(columns[0]) % 2:
        counts = ", ".join(f"{file.name} {len(lines)}" for file, lines in zip(files, columns))
        raise DataError(f"{path}: the four files have two lines for each example, and as many: {counts}")
    rows = list(zip(*columns))
    result, group = [], 0
    for line, (right, wrong) in enumerate(zip(rows[::2], rows[1::2])):
        if right[:3] != wrong[:3]:
            raise DataError(
                f"{path}:{2 * line + 1}: this line and the next are of one example, with the same context"
            )
        before, source, before_target, target = right
        group += not result or result[-1].document.sentences[-1].source != source
        pairs = Sentence(before, before_target, 2 * line + 1), Sentence(source, target, 2 * line + 1)
        document = Document((pairs,), id=f"{name}/{line + 1}")
        result.append(Contrast(document, 1, (target, wrong[3]), 0, name, 1, f"{name}/{group}"))
    return result


def read_voita_lines(path: str | Path) -> list[Contrast]:
    """A consistency set of Voita et al. from `NAME.src`, `NAME.dst` and `NAME.json`, the examples of `read_voita`.

    Raises:
      DataError: for a missing file, and with file and line where the lines are not the candidates of the set.
    """
    path = Path(path)
    if path.suffix != ".src":
        raise DataError(f"{path}: expected NAME.src, with NAME.dst beside it, or a JSON file")
    beside = path.with_suffix(".json")
    known = read_voita(beside if beside.exists() else path.parent.parent / beside.name)
    sources, targets = (list(read_lines(locate(path.with_suffix(kind)))) for kind in (".src", ".dst"))
    expected = sum(len(example.candidates) for example in known)
    if not len(sources) == len(targets) == expected:
        raise DataError(
            f"{path}: {len(sources)} sources and {len(targets)} targets for {expected} candidates of the set"
        )
    result, first = [], 0
    for example in known:
        last = first + len(example.candidates)
        texts = [target.split(f" {SEPARATOR} ") for target in targets[first:last]]
        source = sources[first].split(f" {SEPARATOR} ")
        alike = all(text[:-1] == texts[0][:-1] and len(text) == len(source) for text in texts)
        if len(set(sources[first:last])) > 1 or not alike or len(source) != len(example.document):
            raise DataError(
                f"{path}:{first + 1}: {last - first} lines were expected that differ in the last sentence of the target "
                "alone"
            )
        pairs = (Sentence(*pair, first + 1) for pair in zip(source, texts[example.answer], strict=True))
        document = Document((tuple(pairs),), id=example.document.id)
        candidates = tuple(text[-1] for text in texts)
        result.append(replace(example, document=document, candidates=candidates))
        first = last
    return result
