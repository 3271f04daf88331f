"""The embedded corpus: English-German documents in which a sentence alone cannot be translated."""

from flaxnmt.data.discourse.contrastive import ContrastiveExample, contrastive
from flaxnmt.data.discourse.generate import Annotation, DiscourseDocument, generate, write_jsonl
from flaxnmt.data.discourse.layout import MAX_DISTANCE, PHENOMENA, Phenomenon
from flaxnmt.data.discourse.phenomena import Split

__all__ = [
    "MAX_DISTANCE",
    "PHENOMENA",
    "Annotation",
    "ContrastiveExample",
    "DiscourseDocument",
    "Phenomenon",
    "Split",
    "contrastive",
    "generate",
    "write_jsonl",
]
