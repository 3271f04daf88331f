"""The `flaxnmt` command: translate, score, evaluate and check-data."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

import tyro

from flaxnmt.commands import MISTAKE, guarded, parsed, quiet
from flaxnmt.errors import ConfigError, DataError

BATCHES_A_BLOCK = 16
"""Lines are sorted by length within as many batches as this."""


@dataclass(frozen=True)
class Translate:
    """Translates line by line: one line out for every line in, a blank line for a blank one."""

    run: Path
    """Run directory."""
    input: Path | None = None
    """Source text, one sentence a line; standard input by default."""
    output: Path | None = None
    """Where translations go; standard output by default."""
    beam_size: int | None = None
    """Hypotheses kept a line; 1 is greedy. The run's own default otherwise."""
    length_penalty: float | None = None
    """Exponent of Wu et al. 2016; the run's own default otherwise."""
    n_best: int | None = None
    """Write this many outputs a line as "line number ||| text ||| score ||| log-probability"."""
    batch_size: int | None = None
    """Lines decoded together; changes the speed, not the text."""
    min_length: int | None = None
    """Fewest tokens of a translation."""
    max_length: int | None = None
    """Most tokens of a translation; by default it follows the source length."""
    prefix: Path | None = None
    """A file with what each translation must begin with, one line a line."""
    sample: bool = False
    """Draw translations at random in place of searching for the best."""
    temperature: float = 1.0
    """Below 1 sharpens and above 1 flattens what is drawn from."""
    top_k: int | None = None
    """Draw from this many likeliest tokens."""
    top_p: float | None = None
    """Draw from the likeliest tokens that hold this probability together."""
    seed: int = 0
    """Of the draws."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt import open_run
        from flaxnmt.data.blocks import read_blocks
        from flaxnmt.data.readers import read_source
        from flaxnmt.translation import Sampling

        prefixes = list(read_source(self.prefix)) if self.prefix else None
        run = open_run(self.run)
        block = BATCHES_A_BLOCK * (self.batch_size or run.config.decoding.batch_size)
        blocks = read_blocks(self.input or sys.stdin, max(block, 1))
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed) if self.sample else None
        options = dict(
            beam_size=self.beam_size, length_penalty=self.length_penalty, batch_size=self.batch_size,
            n_best=1 if self.n_best is None else self.n_best,
            min_length=self.min_length, max_length=self.max_length, sampling=sampling,
        )  # fmt: skip
        if prefixes is not None:
            blocks = [[line for block in blocks for line in block]]
            options["prefixes"] = prefixes
        results = run.translator.stream(blocks, **options)
        with _writer(self.output) as out:
            for number, hypotheses in enumerate(results, start=1):
                if self.n_best is None:
                    out.write(f"{hypotheses[0].text}\n")
                else:
                    for found in hypotheses:
                        out.write(
                            f"{number} ||| {found.text} ||| {found.score:.4f} ||| {found.log_prob:.4f}\n"
                        )
                out.flush()
        return 0


@dataclass(frozen=True)
class Score:
    """Log-probability of each target line given its source line (natural logarithm, end symbol included)."""

    run: Path
    """Run directory."""
    source: Path
    """Source text."""
    target: Path
    """Target text, as many lines."""
    output: Path | None = None
    """Where scores go; standard output by default."""
    tokens: bool = False
    """Add each token with its own log-probability."""
    length_penalty: float | None = None
    """Divide by the length penalty, as beam search does."""
    batch_size: int | None = None
    """Lines scored together."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt import open_run
        from flaxnmt.data.readers import read_source
        from flaxnmt.decoding.hypotheses import length_penalties

        source, target = list(read_source(self.source)), list(read_source(self.target))
        _same_length(self.source, source, self.target, target)
        scores = open_run(self.run).translator.score(source, target, self.batch_size)
        with _writer(self.output) as out:
            for found in scores:
                divisor = length_penalties(len(found.tokens), self.length_penalty or 0.0)
                line = f"{found.log_prob / divisor:.4f}"
                if self.tokens:
                    parts = zip(found.tokens, found.token_log_probs, strict=True)
                    line += "\t" + " ".join(f"{token}:{value:.4f}" for token, value in parts)
                out.write(line + "\n")
        return 0


@dataclass(frozen=True)
class Evaluate:
    """Translates a source and scores it against a reference: JSON with BLEU, chrF, TER and signatures."""

    run: Path
    """Run directory."""
    source: Path
    """Source text."""
    reference: Path
    """Reference text, as many lines."""
    output: Path | None = None
    """Keep the translations here."""
    baseline: Path | None = None
    """Translations of another system: adds a paired bootstrap test against them."""
    language: str | None = None
    """Target language code: adds tokenised lower-cased BLEU (Moses), as older papers report it."""
    beam_size: int | None = None
    """Hypotheses kept a line."""
    length_penalty: float | None = None
    """Exponent of Wu et al. 2016."""
    batch_size: int | None = None
    """Lines decoded together."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt import open_run
        from flaxnmt.data.readers import read_source
        from flaxnmt.evaluation.scores import evaluate, paired_bootstrap

        source, reference = list(read_source(self.source)), list(read_source(self.reference))
        _same_length(self.source, source, self.reference, reference)
        options = dict(
            beam_size=self.beam_size, length_penalty=self.length_penalty, batch_size=self.batch_size
        )
        outputs = open_run(self.run).translate(source, **options)
        if self.output is not None:
            with _writer(self.output) as out:
                out.writelines(f"{line}\n" for line in outputs)
        scores = {"run": str(self.run)} | evaluate(outputs, reference, language=self.language)
        if self.baseline is not None:
            scores["bootstrap"] = paired_bootstrap(
                {"baseline": list(read_source(self.baseline)), "run": outputs}, reference
            )
        print(json.dumps(scores, indent=2, ensure_ascii=False))
        return 0


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


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `flaxnmt` command; its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return guarded(lambda: run(argv), debug="--debug" in argv)


def run(argv: list[str]) -> int:
    """Runs one command line.

    Raises:
      UserError: for whatever the user can correct.
    """
    from flaxnmt.runtime import keep_freed_memory

    def read():
        return tyro.extras.subcommand_cli_from_dict(
            {"translate": Translate, "score": Score, "evaluate": Evaluate, "check-data": CheckData},
            prog="flaxnmt",
            description="Neural machine translation in JAX and Flax.",
            args=argv,
            config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff),
        )

    command = parsed(read, argv)
    quiet()
    keep_freed_memory()
    return command()


@contextmanager
def _writer(path: Path | None) -> Iterator[TextIO]:
    """A UTF-8 file, or standard output whatever the locale."""
    if path is None:
        out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
        try:
            yield out
        finally:
            out.detach()
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); give another --output") from None
    with file:
        yield file


def _same_length(first: Path, one: list, second: Path, other: list) -> None:
    if len(one) != len(other):
        raise DataError(
            f"{first} has {len(one)} lines and {second} {len(other)}: they must match line by line"
        )


if __name__ == "__main__":
    sys.exit(main())
