"""`flaxnmt translate`."""

import sys
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

from flaxnmt.cli.files import check_output, writer
from flaxnmt.errors import ConfigError

BATCHES_A_BLOCK = 16
"""Lines are sorted by length within as many batches as this."""


@dataclass(frozen=True)
class Translate:
    """Translates line by line: one line out for every line in, a blank line for a blank one.

    To a model of documents a blank line is where a document ends.

    Of documents as JSON lines a line is written for every sentence, and a blank one between them."""

    run: str
    """Run directory, or the address of one, such as gs://bucket/directory."""
    input: str | None = None
    """Source text, one sentence a line, a file or an address; standard input by default. A name that ends with .jsonl or
    .jsonl.gz is documents as JSON lines, whose sources are translated."""
    output: Path | None = None
    """Where translations go; standard output by default."""
    paragraphs: bool = False
    """A single blank line ends a paragraph, a double one the document; documents as JSON lines have their own."""
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
    prefix: str | None = None
    """A file with what each translation must begin with, a line for each line that is written."""
    budget: str | None = None
    """Share of the full computation, or one each of encoder and decoder: 0.5, or 1.0,0.25. The largest by default."""
    used: Path | None = None
    """With budgets: keep here the shares of the full computation that each translation used, "encoder decoder" on its line,
    or one number of a decoder alone, of the first where there are several, as its text is read; 0 for a blank line."""
    sample: bool = False
    """Draw translations at random in place of searching for the best."""
    temperature: float = 1.0
    """With --sample: below 1 sharpens and above 1 flattens what is drawn from."""
    top_k: int | None = None
    """With --sample: draw from this many likeliest tokens."""
    top_p: float | None = None
    """With --sample: draw from the likeliest tokens that hold this probability together."""
    seed: int = 0
    """With --sample: of the draws."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt import open_run
        from flaxnmt.data.readers import read_source
        from flaxnmt.gates.budget import parse_budget
        from flaxnmt.translation import spaced
        from flaxnmt.translation.search import BLANK, Sampling

        self._check()
        prefixes = list(read_source(self.prefix)) if self.prefix else None
        run = open_run(self.run)
        if self.used and not run.config.model.budgets:
            raise ConfigError(f"{self.run}: a model without budgets always uses all: leave --used out")
        if self.paragraphs and not run.translator.by_document:
            raise ConfigError(f"{self.run}: a model of sentences sees no paragraphs: leave --paragraphs out")
        size = max(BATCHES_A_BLOCK * (self.batch_size or run.config.decoding.batch_size), 1)
        blocks = self._blocks(size, run.translator.by_document)
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed) if self.sample else None
        options = dict(
            beam_size=self.beam_size, length_penalty=self.length_penalty, batch_size=self.batch_size,
            n_best=1 if self.n_best is None else self.n_best,
            min_length=self.min_length, max_length=self.max_length, sampling=sampling,
            budget=None if self.budget is None else parse_budget(self.budget),
        )  # fmt: skip
        if prefixes is not None:
            blocks = [[unit for block in blocks for unit in block]]
            options["prefixes"] = prefixes
        sources, outputs = [], []
        if self.used:
            blocks = (sources.extend(block) or block for block in blocks)
        if self._holds_documents:
            results, score = (
                spaced.stream(run.translator, blocks, **options),
                partial(spaced.score, run.translator),
            )
        else:
            results = run.translator.stream(blocks, paragraphs=self.paragraphs, **options)
            score = partial(run.translator.score, paragraphs=self.paragraphs)
        # An output of before survives options that are refused.
        first = list(islice(results, 1))
        with writer(self.output) as out:
            for number, hypotheses in enumerate(chain(first, results), start=1):
                outputs += hypotheses[:1] if self.used else []
                if self.n_best is None:
                    out.write(f"{hypotheses[0].text}\n")
                else:
                    for found in hypotheses:
                        out.write(
                            f"{number} ||| {found.text} ||| {found.score:.4f} ||| {found.log_prob:.4f}\n"
                        )
                out.flush()
        if self.used:
            texts = [best.text for best in outputs]
            scores = score(sources, texts, self.batch_size, budget=options["budget"])
            nothing = (0.0,) * len(run.config.model.parts)
            with writer(self.used) as out:
                for best, found in zip(outputs, scores, strict=True):
                    use = nothing if best is BLANK else found.use
                    out.write(" ".join(f"{share:.4f}" for share in use) + "\n")
        return 0

    @property
    def _holds_documents(self) -> bool:
        from flaxnmt.data.readers import holds_documents

        return self.input is not None and holds_documents(self.input)

    def _blocks(self, size: int, by_document: bool):
        """The input in blocks of this many lines: of lines, those of a document in one block, or of documents."""
        from flaxnmt.data.blocks import document_blocks, read_blocks, whole_documents
        from flaxnmt.data.files import refuse
        from flaxnmt.data.readers import read

        if self._holds_documents:
            # A line is written for every sentence: none may be left out.
            return document_blocks(read(self.input, blank=refuse), size)
        if self.input is None and sys.stdin is None:
            raise ConfigError("there is no standard input: give --input")
        blocks = read_blocks(self.input or sys.stdin, size)
        return whole_documents(blocks, self.paragraphs) if by_document else blocks

    def _check(self) -> None:
        """Refuses options that would do nothing, or harm.

        Raises:
          ConfigError, DataError: with the option, or the file.
        """
        from flaxnmt.data.readers import without_part

        drawing = {
            "--temperature": self.temperature != 1.0,
            "--top-k": self.top_k is not None,
            "--top-p": self.top_p is not None,
            "--seed": self.seed != 0,
        }
        searching = {
            "--beam-size": self.beam_size is not None,
            "--length-penalty": self.length_penalty is not None,
        }
        name = next((name for name, given in (searching if self.sample else drawing).items() if given), None)
        if name is not None:
            what = "searches, and --sample draws: leave one of them out" if self.sample else "needs --sample"
            raise ConfigError(f"{name} {what}")
        if self.paragraphs and self._holds_documents:
            raise ConfigError(
                f"--paragraphs says what blank lines end, and {self.input} has paragraphs of its own: leave it out"
            )
        # Without --input the shell may have opened the very file.
        source = without_part(self.input) if self._holds_documents else self.input
        read = (0 if source is None else source, self.prefix)
        check_output(self.output, *read)
        check_output(self.used, *read, self.output)
