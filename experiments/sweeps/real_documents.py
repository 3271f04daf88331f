"""Does context help on real documents: Bible and TED English-German, two seeds.

For each corpus and seed one sentence model is trained, and every model starts from it and is trained for as many
further updates on the same batches of documents: attention within the sentence, which is the baseline, the same with
one more layer on either side, which has as many parameters as the largest of the others (99% of them), context
attention, conditional and hierarchical attention. Measured on the test set: s-BLEU and d-BLEU with true, no, another
document's and shuffled context, and a paired bootstrap over documents against the baseline.

The corpora lie in bible_en_de and ted_en_de of the directory that --data or FLAXNMT_DATA names, as train, dev and
test.jsonl.gz.
"""

from pathlib import Path

from experiments.data import PLACE, with_data
from experiments.measures import against, scores, speed
from experiments.tables import CONTROLS, TIME, Difference, Table
from experiments.trial import Sweep, Trial
from flaxnmt import open_run
from flaxnmt.data.readers import read

SEEDS = (1, 2)
CORPORA = ("bible_en_de", "ted_en_de")

DOCUMENTS = (
    *("--data.batch-tokens", "8192", "--data.rows-multiple", "1", "--max-steps", "400"),
    *(
        "--optimizer.schedule",
        "cosine",
        "--optimizer.learning-rate",
        "2e-3",
        "--optimizer.warmup-steps",
        "50",
    ),
    *("--training.evaluate-every", "200"),
    # Words are counted as by the sentence model: within their sentence.
    *("--model.document.levels", "word", "--model.document.count", "unit"),
)
"""Chosen on the development set of the Bible, by models without context: places in the document, which the sentence
model does not know, and a constant rate both left them worse than it (perplexity 29.0, at a rate that falls 27.5, before
24.9, so 20.7)."""

BASELINE = "sentence"
KINDS = {
    BASELINE: ("sentence",),
    "deeper": ("sentence", "--model.encoder.layers", "4", "--model.decoder.layers", "3"),
    "context": ("sentence", "sentence", "context", "--model.document.decoder-context"),
    "conditional": ("sentence", "sentence", "conditional"),
    "hierarchical": ("sentence", "sentence", "hierarchical"),
}


def _files(corpus: str, split: str) -> str:
    return f"{PLACE}/{corpus}/{split}.jsonl.gz"


def _trials(corpus: str, seed: int) -> list[Trial]:
    files = tuple(word for split in ("train", "dev") for word in (f"--{split}", _files(corpus, split)))
    base = f"{corpus}-base"

    def settings(attention: str) -> tuple[tuple[str, str], ...]:
        return ("corpus", corpus), ("attention", attention)

    return [
        Trial(base, corpus, files, seed, settings("sentence, before the others")),
        *(
            Trial(
                f"{corpus}-{name}",
                corpus,
                (*files, "--model.document.layers", *layers, *DOCUMENTS),
                seed,
                settings(name),
                after=base,
                against=None if name == BASELINE else f"{corpus}-{BASELINE}",
            )
            for name, layers in KINDS.items()
        ),
    ]


def measure(run: Path, trial: Trial) -> dict:
    opened = open_run(run)
    documents = list(read(*with_data([_files(trial.config, "test")])))
    found = {"scores": scores(opened, documents), "speed": speed(opened, documents)}
    if trial.against is not None:
        found["against"] = against(opened, documents)
    return found


BY = ("corpus", "attention")
AGAINST = {
    "parameters": "parameters",
    "s-BLEU": "scores.true.s_bleu",
    "d-BLEU": "scores.true.d_bleu",
    "s-BLEU over the baseline": Difference("against.s_bleu"),
    "p of s-BLEU": "against.s_p",
    "d-BLEU over the baseline": Difference("against.d_bleu"),
    "p of d-BLEU": "against.d_p",
}
sweep = Sweep(
    tuple(trial for seed in SEEDS for corpus in CORPORA for trial in _trials(corpus, seed)),
    measure,
    (
        Table("Against the sentence model", BY, AGAINST),
        Table("Context controls", BY, CONTROLS),
        Table("Time", BY, TIME),
    ),
)
