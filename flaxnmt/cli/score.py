"""`flaxnmt score`."""

from dataclasses import dataclass
from pathlib import Path

from flaxnmt.cli.files import check_output, not_empty, same_length, writer
from flaxnmt.errors import ConfigError


@dataclass(frozen=True)
class Score:
    """Log-probability of each target line given its source line (natural logarithm, end symbol included)."""

    run: str
    """Run directory, or the address of one, such as gs://bucket/directory."""
    source: str
    """Source text, a file or an address."""
    target: str
    """Target text, as many lines."""
    output: Path | None = None
    """Where scores go; standard output by default."""
    tokens: bool = False
    """Add each token with its own log-probability."""
    paragraphs: bool = False
    """To a model of documents a single blank line ends a paragraph, a double one the document."""
    length_penalty: float | None = None
    """Divide by the length penalty, as beam search does."""
    budget: str | None = None
    """Share of the full computation, or one each of encoder and decoder: 0.5, or 1.0,0.25. The largest by default."""
    batch_size: int | None = None
    """Lines scored together."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt import open_run
        from flaxnmt.data.readers import holds_documents, read_source
        from flaxnmt.decoding.hypotheses import length_penalties
        from flaxnmt.gates.budget import parse_budget
        from flaxnmt.translation.search import check_length_penalty

        check_output(self.output, self.source, self.target)
        for name in (self.source, self.target):
            if holds_documents(name):
                raise ConfigError(
                    f"{name}: documents as JSON lines are no text of lines: give their sentences a line each"
                )
        source, target = list(read_source(self.source)), list(read_source(self.target))
        same_length(self.source, source, self.target, target)
        not_empty(self.source, source)
        if self.length_penalty is not None:
            check_length_penalty(self.length_penalty)
        budget = None if self.budget is None else parse_budget(self.budget)
        translator = open_run(self.run).translator
        if self.paragraphs and not translator.by_document:
            raise ConfigError(f"{self.run}: a model of sentences sees no paragraphs: leave --paragraphs out")
        scores = translator.score(source, target, self.batch_size, self.paragraphs, budget)
        with writer(self.output) as out:
            for found in scores:
                divisor = length_penalties(len(found.tokens), self.length_penalty or 0.0)
                line = f"{found.log_prob / divisor:.4f}"
                if self.tokens:
                    parts = zip(found.tokens, found.token_log_probs, strict=True)
                    line += "\t" + " ".join(f"{token}:{value:.4f}" for token, value in parts)
                out.write(line + "\n")
        return 0
