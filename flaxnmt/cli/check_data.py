"""`flaxnmt check-data`."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from flaxnmt.commands import MISTAKE
from flaxnmt.errors import ConfigError


@dataclass(frozen=True)
class CheckData:
    """Reads a corpus as training would, and reports counts, lengths and bad lines with file and line."""

    corpus: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Source and target files (and HAN line numbers), a document file, tfds:NAME or discourse."""
    paragraphs: bool = False
    """A single blank line ends a paragraph, a double one the document."""
    max_words: int = 200
    """Longer lines are listed."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt.data.check import check

        if not self.corpus:
            raise ConfigError("no corpus: give two parallel files, a document file, tfds:NAME or discourse")
        report = check(*self.corpus, paragraphs=self.paragraphs, max_words=self.max_words)
        print(json.dumps(report.as_dict(), indent=2, ensure_ascii=False) if self.json else report)
        return 0 if report.ok else MISTAKE
