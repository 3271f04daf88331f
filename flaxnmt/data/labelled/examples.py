"""What labelled data consists of; labels are indices into the names of a task."""

from dataclasses import dataclass

LABELS = {
    "sst2": ("negative", "positive"),
    "cola": ("unacceptable", "acceptable"),
    "mnli": ("entailment", "neutral", "contradiction"),
}
"""Labels of the tasks of GLUE (Wang et al. 2019), in its order."""


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair of texts, and its class.

    Attributes:
      label: None where it is not known.
      line: of the file, 1-based, for messages; 0 where there is none.
    """

    text: str
    second: str | None = None
    label: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """The words of a sentence, each with a label; `line` is that of the first word."""

    words: tuple[str, ...]
    labels: tuple[int, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` stands in the context from character `start` on."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The character after the last one."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a text, and the answers that several people gave; none where the text has no answer."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
