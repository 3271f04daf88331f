"""`flaxnmt evaluate`."""

import json
from dataclasses import dataclass
from pathlib import Path

from flaxnmt.cli.files import Layout, check_output, not_empty, same_length, writer
from flaxnmt.data.documents import Document
from flaxnmt.errors import ConfigError, DataError


@dataclass(frozen=True)
class Evaluate:
    """Translates a source and scores it against a reference: JSON with BLEU, chrF, TER and signatures.

    BLEU of a run that writes lower case (--data.tokenizer.lowercase) is of lower case, too."""

    run: str
    """Run directory, or the address of one, such as gs://bucket/directory."""
    source: str
    """Source text, a file or an address; with --documents also documents as JSON lines, tfds:NAME or discourse, without
    --reference."""
    reference: str | None = None
    """Reference text, as many lines."""
    output: Path | None = None
    """Keep the translations here: a line for each line of the source, or for each sentence of JSON lines, with a blank
    one between documents."""
    baseline: str | None = None
    """Translations of another system, as --output has them: adds a paired bootstrap test against them; with --documents
    one that draws documents."""
    language: str | None = None
    """Target language code: adds BLEU over Moses tokens, as older papers report it, with case and in lower case."""
    documents: bool = False
    """Blank lines separate documents: s-BLEU and d-BLEU (documents as one segment each), and chrF likewise."""
    paragraphs: bool = False
    """With --documents: a single blank line ends a paragraph, a double one the document."""
    controls: bool = False
    """With --documents: translate with true, no, another document's and shuffled context, and test whether true
    context is better."""
    samples: int = 1000
    """Samples of the bootstrap of --baseline and --controls."""
    beam_size: int | None = None
    """Hypotheses kept a line."""
    length_penalty: float | None = None
    """Exponent of Wu et al. 2016."""
    batch_size: int | None = None
    """Lines decoded together."""
    budget: str | None = None
    """Share of the full computation, or one each of encoder and decoder: 0.5, or 1.0,0.25. The largest by default."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt.data.readers import without_part

        if self.controls and not self.documents:
            raise ConfigError("--controls change the context of documents: give --documents too")
        if self.paragraphs and not self.documents:
            raise ConfigError("--paragraphs says where documents end: give --documents too")
        is_text = self.reference is not None or without_part(self.source).removesuffix(".gz").endswith(".tsv")
        if self.paragraphs and not is_text:
            raise ConfigError(
                f"--paragraphs says what blank lines end, and {self.source} has paragraphs of its own: leave it out"
            )
        if self.samples < 1:
            raise ConfigError(f"--samples {self.samples}: it must be at least 1")
        if self.documents and self.language is not None:
            raise ConfigError("--language is of lines: leave --documents out")
        if self.controls and self.baseline is not None:
            raise ConfigError("--controls compare the run with itself: leave --baseline out")
        read = (without_part(name) for name in (self.source, self.reference) if name is not None)
        check_output(self.output, *read, self.baseline)
        scores = self._of_documents() if self.documents else self._of_lines()
        print(json.dumps({"run": self.run} | scores, indent=2, ensure_ascii=False))
        return 0

    def _of_lines(self) -> dict:
        from flaxnmt import open_run
        from flaxnmt.data.readers import holds_documents, read_source
        from flaxnmt.evaluation.scores import evaluate, paired_bootstrap

        if holds_documents(self.source):
            raise ConfigError(f"{self.source}: documents as JSON lines: give --documents")
        if self.reference is None:
            raise ConfigError("no --reference: give the file to score against")
        source, reference = list(read_source(self.source)), list(read_source(self.reference))
        same_length(self.source, source, self.reference, reference)
        not_empty(self.source, source)
        # What cannot be scored is refused here, and not after it was translated.
        evaluate(reference, reference, metrics=(), language=self.language)
        if self.baseline is not None:
            baseline = list(read_source(self.baseline))
            same_length(self.reference, reference, self.baseline, baseline)
        run = open_run(self.run)
        outputs, lowercase = run.translate(source, **self._options()), run.vocabularies.target.lowercase
        self._keep(outputs)
        scores = evaluate(outputs, reference, lowercase=lowercase, language=self.language)
        if self.baseline is not None:
            systems = {"baseline": baseline, "run": outputs}
            scores["bootstrap"] = paired_bootstrap(
                systems, reference, samples=self.samples, lowercase=lowercase
            )
        return scores

    def _of_documents(self) -> dict:
        from flaxnmt import open_run
        from flaxnmt.data.files import refuse
        from flaxnmt.data.readers import read, read_source
        from flaxnmt.evaluation.controls import compare_controls
        from flaxnmt.evaluation.documents import document_scores, paired_document_bootstrap, references

        paths = [self.source] if self.reference is None else [self.source, self.reference]
        # A translation is written for every sentence: none may be left out.
        documents = list(read(*paths, paragraphs=self.paragraphs, documents=True, blank=refuse))
        # What cannot be scored is refused here, and not after it was translated.
        references(documents)
        layout = self._layout(documents)
        if self.baseline is not None:
            baseline = layout.documents(list(read_source(self.baseline)))
            if baseline is None:
                raise DataError(
                    f"{self.baseline}: give a line for each of the {sum(map(len, documents))} sentences of "
                    f"{len(documents)} documents, {layout.length} lines with the blank ones between them, as --output "
                    "writes them"
                )
        run = open_run(self.run)
        options = {"lowercase": run.vocabularies.target.lowercase}

        def translate(documents: list[Document], wanted: list | None = None) -> list[list[str]]:
            return run.translate_documents(documents, wanted=wanted, **self._options())

        if not self.controls:
            outputs = translate(documents)
            self._keep(layout.lines(outputs))
            scores = document_scores(outputs, documents, **options)
            if self.baseline is not None:
                systems = {"baseline": baseline, "run": outputs}
                scores["bootstrap"] = paired_document_bootstrap(
                    systems, documents, samples=self.samples, **options
                )
            return scores
        found = compare_controls(
            translate, documents, samples=self.samples, translate_wanted=translate, **options
        )
        self._keep(layout.lines(found["outputs"]["true"]))
        return {name: found[name] for name in ("scores", "significance")}

    def _layout(self, documents: list[Document]) -> Layout:
        """Where translations stand: in the lines of a source that is text, with a blank line between others."""
        from flaxnmt.data.readers import read_source, without_part

        if self.reference is None or without_part(self.source) != self.source:
            return Layout.with_blanks([len(document) for document in documents])
        places = (tuple(sentence.line - 1 for sentence in document) for document in documents)
        return Layout(tuple(places), sum(1 for _ in read_source(self.source)))

    def _options(self) -> dict:
        from flaxnmt.gates.budget import parse_budget

        budget = None if self.budget is None else parse_budget(self.budget)
        names = ("beam_size", "length_penalty", "batch_size")
        return {name: getattr(self, name) for name in names} | {"budget": budget}

    def _keep(self, lines: list[str]) -> None:
        """Writes translations, a line each."""
        if self.output is not None:
            with writer(self.output) as out:
                out.writelines(f"{line}\n" for line in lines)
