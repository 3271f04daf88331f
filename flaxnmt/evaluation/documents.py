"""Scores of translated documents, by sentences and by whole documents.

s-BLEU is corpus BLEU over aligned sentences; d-BLEU is corpus BLEU in which each document, its sentences joined
by a space, is one segment (Liu et al. 2020, Bao et al. 2021), so that n-grams cross sentence ends and a sentence
may change places with its neighbour. s-chrF and d-chrF likewise. Significance is tested by drawing documents,
since sentences of one document are no independent draws.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import estimate_ci

from flaxnmt.data.documents import Document
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.evaluation.scores import evaluate

Outputs = Sequence[Sequence[str]]
"""Translations of documents: for each document, one for each of its sentences, empty ones included."""

METRICS = ("bleu", "chrf")


def references(documents: Sequence[Document]) -> list[list[str]]:
    """The targets of each document's sentences. Raises DataError where one is missing."""
    for number, document in enumerate(documents, start=1):
        for sentence in document:
            if sentence.target is None:
                raise DataError(
                    f"document {number} {document.id!r}, line {sentence.line}: a sentence without a target; "
                    "scores need references"
                )
    return [[sentence.target for sentence in document] for document in documents]


def join(outputs: Outputs) -> list[str]:
    """Each document as one segment, its sentences joined by a space."""
    return [" ".join(sentences) for sentences in outputs]


def document_scores(
    outputs: Outputs, documents: Sequence[Document], *, tokenize: str = "13a", lowercase: bool = False
) -> dict:
    """s-BLEU, d-BLEU, s-chrF and d-chrF with signatures, ready for JSON.

    {"documents": n, "sentences": n, "s_bleu": {"score", "signature", "details"}, "d_bleu": ..., "s_chrf": ...,
    "d_chrf": ...}; scores are per cent. tokenize, lowercase: BLEU's, as in `evaluate`.
    Raises DataError where outputs and documents differ in shape or a reference is missing.
    """
    targets = references(documents)
    _check(outputs, targets)
    options = {"metrics": METRICS, "tokenize": tokenize, "lowercase": lowercase}
    by_sentence = evaluate(_flat(outputs), _flat(targets), **options)
    by_document = evaluate(join(outputs), join(targets), **options)
    scores = {"documents": len(documents), "sentences": by_sentence["lines"]}
    for metric in METRICS:
        scores |= {f"s_{metric}": by_sentence[metric], f"d_{metric}": by_document[metric]}
    return scores


def paired_document_bootstrap(
    outputs: Mapping[str, Outputs],
    documents: Sequence[Document],
    *,
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict:
    """Paired bootstrap (Koehn 2004) of two or more systems that draws documents; the first is the baseline.

    Every sample draws as many documents as there are, with replacement, the same ones for all systems; their
    sufficient statistics are added up. Drawn numbers, interval and p-value are those of sacreBLEU's paired test:
    for d-BLEU and d-chrF the result is that of `scores.paired_bootstrap` on joined documents.

    Returns {"baseline": name, "documents": n, "s_bleu": {"signature", "systems": {name: {"score", "mean",
    "interval", "p_value"}}}, "d_bleu": ..., "s_chrf": ..., "d_chrf": ...}: `interval` is half the width of the 95%
    confidence interval around `mean`; `p_value` (None for the baseline) as of `scores.paired_bootstrap`. With few
    documents no difference is significant.
    Errors as in `document_scores`; ConfigError for fewer than two systems and an unknown tokenizer.
    """
    if len(outputs) < 2:
        raise ConfigError(
            f"a paired test compares two or more outputs, got {len(outputs)}: give a baseline and others"
        )
    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(
            f"unknown BLEU tokenizer {tokenize!r}: choose from {', '.join(sorted(BLEU.TOKENIZERS))}"
        )
    targets = references(documents)
    for name, texts in outputs.items():
        _check(texts, targets, f"output {name!r}")
    count = len(targets)
    drawn = np.random.default_rng(seed).choice(count, size=(samples, count), replace=True)
    report: dict = {"baseline": next(iter(outputs)), "documents": count}
    owner = np.repeat(np.arange(count), [len(document) for document in targets])
    for name, units in (("bleu", "s"), ("bleu", "d"), ("chrf", "s"), ("chrf", "d")):
        segments, owners = (_flat, owner) if units == "s" else (join, np.arange(count))
        # Given here, the references are counted once for all systems.
        given = [segments(targets)]
        if name == "bleu":
            metric: Metric = BLEU(tokenize=tokenize, lowercase=lowercase, references=given)
        else:
            metric = CHRF(references=given)
        tables = {
            system: _statistics(metric, segments(texts), owners, count) for system, texts in outputs.items()
        }
        signature = metric.get_signature()
        signature.update("bs", samples)
        signature.update("seed", seed)
        report[f"{units}_{name}"] = {
            "signature": str(signature),
            "systems": _compare(metric, tables, drawn),
        }
    return report


def _compare(metric: Metric, tables: Mapping[str, np.ndarray], drawn: np.ndarray) -> dict[str, dict]:
    """Rows of the report, from the statistics [documents, statistics] of each system and the drawn documents."""

    def score(statistics: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(statistics).score)

    systems: dict[str, dict] = {}
    base: tuple[float, np.ndarray] | None = None
    for system, table in tables.items():
        whole = score(table.sum(0))
        sampled = np.array([score(table[rows].sum(0)) for rows in drawn])
        mean, interval = estimate_ci(sampled)
        p_value = None
        if base is None:
            base = whole, sampled
        else:
            p_value = _p_value(abs(whole - base[0]), np.abs(sampled - base[1]))
        systems[system] = {
            "score": whole,
            "mean": float(mean),
            "interval": float(interval),
            "p_value": p_value,
        }
    return systems


def _p_value(difference: float, sampled: np.ndarray) -> float:
    """The share of sampled differences that lie further from their mean than the real one from zero."""
    if not difference and not sampled.any():
        return 1.0
    return float((1 + np.sum(sampled - sampled.mean() > difference)) / (1 + len(sampled)))


def _statistics(metric: Metric, segments: Sequence[str], owners: np.ndarray, documents: int) -> np.ndarray:
    """Sufficient statistics [documents, statistics]: those of its segments added up for each document."""
    table = np.asarray(metric._extract_corpus_statistics(segments, None), np.float64)
    sums = np.zeros((documents, table.shape[1]))
    np.add.at(sums, owners, table)
    return sums


def _flat(outputs: Outputs) -> list[str]:
    return [text for sentences in outputs for text in sentences]


def _check(outputs: Outputs, targets: Outputs, what: str = "the output") -> None:
    if len(outputs) != len(targets):
        raise DataError(f"{what} has {len(outputs)} documents, the references have {len(targets)}")
    for number, (texts, expected) in enumerate(zip(outputs, targets, strict=True), start=1):
        if len(texts) != len(expected):
            raise DataError(
                f"{what} has {len(texts)} sentences in document {number}, the reference has {len(expected)}: "
                "give one for every sentence, empty ones included"
            )
    if not any(map(len, targets)):
        raise DataError(f"nothing to score: {what} has no sentence")
