"""Documents of the embedded corpus, deterministic in split, seed and number.

"it" stands for the topic of its document, an ambiguous noun has the sense that a sentence about a
matching theme gives it anywhere in the document, "you" is familiar or formal by the relation that its
own paragraph states; all three are said in constructions that stand for nothing else.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flaxnmt.data.discourse import phenomena as said
from flaxnmt.data.discourse.grammar import NounPhrase, english, german
from flaxnmt.data.discourse.layout import PHENOMENA, Layout, Phenomenon, draw_layout
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Annotation:
    """An ambiguous word and the sentence that decides it; indices count within the document from 0."""

    phenomenon: Phenomenon
    sentence: int
    paragraph: int
    source_word: str
    target_words: tuple[str, ...]
    """What depends on the decision, as written in the target."""
    deciding_sentence: int
    deciding_paragraph: int
    template: str
    """Grammatical role of the word and German verb of its clause."""
    held_out: bool
    """The antecedent and the template occur together in the test split only."""

    @property
    def distance(self) -> int:
        """Sentences between the word and what decides it, in either direction."""
        return abs(self.sentence - self.deciding_sentence)


@dataclass(frozen=True, slots=True)
class DiscourseDocument:
    document: Document
    annotations: tuple[Annotation, ...]
    """In the order of their sentences, at most one for each."""
    noun_phrases: tuple[tuple[NounPhrase, ...], ...]
    """The German noun phrases of each sentence."""


def generate(
    split: said.Split,
    documents: int,
    seed: int = 0,
    *,
    min_sentences: int = 4,
    max_sentences: int = 16,
    max_paragraphs: int = 4,
    phenomena: tuple[Phenomenon, ...] = PHENOMENA,
) -> list[DiscourseDocument]:
    """The first `documents` documents of a split; a larger number continues a smaller one.

    Splits draw from different seeds, and `held_out` pairs of antecedent and template are in "test" only.
    Raises ConfigError for sizes or names that make no document.
    """
    check(split, min_sentences, max_sentences, max_paragraphs, phenomena)
    made = []
    for number in range(documents):
        rng = random.Random(f"{split}/{seed}/{number}")
        length = min_sentences + int(rng.random() * (max_sentences - min_sentences + 1))
        layout = draw_layout(rng, length, max_paragraphs, phenomena)
        made.append(write_document(rng, layout, split, f"discourse.{split}.{seed}.{number:06d}"))
    return made


def check(
    split: str,
    min_sentences: int,
    max_sentences: int,
    max_paragraphs: int,
    phenomena: tuple[str, ...],
) -> None:
    """Raises ConfigError for an unknown split or phenomenon and for sizes that make no document."""
    if split not in ("train", "dev", "test"):
        raise ConfigError(f"discourse: unknown split {split!r}; use train, dev or test")
    if not 2 <= min_sentences <= max_sentences or max_paragraphs < 1:
        raise ConfigError(
            f"discourse: {min_sentences} to {max_sentences} sentences in up to {max_paragraphs} paragraphs; "
            "give 2 <= min_sentences <= max_sentences and max_paragraphs >= 1"
        )
    unknown = set(phenomena) - set(PHENOMENA)
    if unknown:
        raise ConfigError(f"discourse: unknown phenomenon {min(unknown)!r}; use {', '.join(PHENOMENA)}")


def write_document(
    rng: random.Random, layout: Layout, split: said.Split, name: str, side: int | None = None
) -> DiscourseDocument:
    """Words for a layout; `side` fixes what the first group decides and changes nothing else."""
    contents: list = []
    for place, group in enumerate(layout.groups):
        contents.append(said.KINDS[group.phenomenon](rng, split, side if place == 0 else None, contents))
    topic = next((words.trio for words in contents if isinstance(words, said.PronounTopic)), None)
    groups = list(zip(layout.groups, contents, strict=True))
    deciders = {group.decider: words for group, words in groups}
    dependents = {place: (group, words) for group, words in groups for place in group.dependents}

    paragraphs: list[list[Sentence]] = []
    annotations, noun_phrases = [], []
    starts = set(layout.starts)
    paragraph_of = [sum(start <= i for start in layout.starts) - 1 for i in range(layout.length)]
    for i in range(layout.length):
        depends = dependents.get(i)
        if depends:
            group, words = depends
            clause, template, held_out = words.depend(rng, topic)
            annotations.append(
                Annotation(
                    group.phenomenon,
                    i,
                    paragraph_of[i],
                    words.source_word,
                    words.target_words(clause),
                    group.decider,
                    paragraph_of[group.decider],
                    template,
                    held_out,
                )
            )
        else:
            clause = deciders[i].decide(rng) if i in deciders else said.filler(rng, topic)
        if i in starts:
            paragraphs.append([])
        target, phrases = german(clause)
        paragraphs[-1].append(Sentence(english(clause), target))
        noun_phrases.append(phrases)
    document = Document(tuple(map(tuple, paragraphs)), name, "discourse")
    return DiscourseDocument(document, tuple(annotations), tuple(noun_phrases))


def write_jsonl(documents: Iterable[Document], path: str | Path) -> None:
    """Documents as JSON lines: {"doc_id", "section", "paragraphs": [{"src": [...], "tgt": [...]}]}."""
    with open(path, "w", encoding="utf-8") as file:
        for document in documents:
            paragraphs = [
                {"src": [s.source for s in paragraph], "tgt": [s.target for s in paragraph]}
                for paragraph in document.paragraphs
            ]
            record = {"doc_id": document.id, "section": document.section, "paragraphs": paragraphs}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
