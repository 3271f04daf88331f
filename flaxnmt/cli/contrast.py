"""`flaxnmt contrast`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flaxnmt.cli.files import check_output
from flaxnmt.errors import ConfigError


@dataclass(frozen=True)
class Contrast:
    """Contrastive accuracy: how often the right one of several translations of a sentence has the highest score,
    by phenomenon and by the distance of what decides."""

    set: str
    """A file of the test set, or discourse[:SPLIT[:SETS]], the closed sets of the embedded corpus."""
    run: str | None = None
    """Run directory, or the address of one, such as gs://bucket/directory."""
    scores: Path | None = None
    """In place of --run, scores of another system: a negative log-probability a line for every candidate in turn, as the
    scripts published with ContraPro take them."""
    higher_is_better: bool = False
    """With --scores: they are log-probabilities."""
    write_scores: Path | None = None
    """Keep the scores of the run there, in the same form."""
    form: Literal["discourse", "contrapro", "bawden", "voita"] = "discourse"
    """The embedded corpus, or a file of ContraPro (Müller et al. 2018), Bawden et al. 2018 or Voita et al. 2019: JSON, or
    of the last two also lines, NAME.current.en and NAME.src, with the files that belong to them beside it."""
    documents: Path | None = None
    """ContraPro: directory of the OpenSubtitles documents, without which every sentence stands alone."""
    controls: bool = False
    """Also with no context, another document's and shuffled context."""
    farthest: int | None = None
    """Put larger distances together."""
    json: bool = False
    """Print JSON."""
    batch_size: int | None = None
    """Sentences scored together."""
    budget: str | None = None
    """Share of the full computation, or one each of encoder and decoder: 0.5, or 1.0,0.25. The largest by default."""
    debug: bool = False
    """Show tracebacks."""

    def __call__(self) -> int:
        from flaxnmt.evaluation.contrastive import format_table

        self._check()
        found = self._found(self._examples())
        if self.json:
            print(json.dumps(found, indent=2, ensure_ascii=False))
            return 0
        for kind, table in found.items():
            print(f"{kind} context\n{format_table(table)}\n")
        return 0

    def _found(self, examples: list) -> dict[str, dict]:
        """Accuracies by the kind of context."""
        from flaxnmt import open_run
        from flaxnmt.evaluation.contrastive import accuracy, score_contrasts
        from flaxnmt.evaluation.contrastive_formats import read_scores, write_scores
        from flaxnmt.evaluation.controls import KINDS, compare_contrastive_controls
        from flaxnmt.gates.budget import parse_budget

        if self.scores is not None:
            scores = read_scores(self.scores, examples, higher_is_better=self.higher_is_better)
            return {"true": accuracy(examples, scores, farthest=self.farthest)}
        run = open_run(self.run)
        budget = None if self.budget is None else parse_budget(self.budget)

        def score(judged):
            return run.log_probs(judged, batch_size=self.batch_size, budget=budget)

        scores = score_contrasts(examples, score)
        if self.write_scores is not None:
            write_scores(self.write_scores, scores)
        kinds = [kind for kind in KINDS if kind != "true"] if self.controls else []
        return {
            "true": accuracy(examples, scores, farthest=self.farthest),
            **compare_contrastive_controls(score, examples, kinds=kinds, farthest=self.farthest),
        }

    def _check(self) -> None:
        """Refuses what would do nothing, or harm.

        Raises:
          ConfigError, DataError: with the options, or the file.
        """
        if (self.run is None) == (self.scores is None):
            raise ConfigError("give --run, or --scores of another system, and not both")
        of_model = self.controls or self.write_scores is not None or self.budget is not None
        if self.scores is not None and of_model:
            raise ConfigError(
                "--controls, --write-scores and --budget need a model: give --run in place of --scores"
            )
        if self.higher_is_better and self.scores is None:
            raise ConfigError("--higher-is-better is of --scores: leave it out")
        check_output(self.write_scores, self.set)
        if self.documents is not None and self.form != "contrapro":
            raise ConfigError(f"--documents belongs to --form contrapro and not to {self.form}: leave it out")
        if self.form == "contrapro" and self.controls and self.documents is None:
            raise ConfigError("--controls change a context, and ContraPro has none without --documents DIR")

    def _examples(self) -> list:
        from flaxnmt.evaluation import contrastive_formats as formats
        from flaxnmt.evaluation import contrastive_text as text
        from flaxnmt.evaluation.contrastive import from_discourse

        if self.form == "discourse":
            from flaxnmt.data.discourse import contrastive

            name, split, sets = (self.set.split(":") + ["test", "360"][self.set.count(":") :])[:3]
            if name != "discourse" or not sets.isdecimal() or self.set.count(":") > 2:
                raise ConfigError(
                    f"--set {self.set}: expected discourse[:SPLIT[:SETS]], or a file and its --form"
                )
            return [from_discourse(example) for example in contrastive(split, int(sets))]
        if self.form == "contrapro":
            return formats.read_contrapro(self.set, self.documents)
        readers = {
            ("bawden", True): formats.read_bawden,
            ("bawden", False): text.read_bawden_lines,
            ("voita", True): formats.read_voita,
            ("voita", False): text.read_voita_lines,
        }
        return readers[self.form, self.set.removesuffix(".gz").endswith(".json")](self.set)
