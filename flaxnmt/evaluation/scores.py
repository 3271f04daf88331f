"""Corpus scores through sacreBLEU (Post 2018), each with the signature that makes it comparable.

Hypotheses and references are detokenised text as users read it, never token ids turned back into words.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from flaxnmt.errors import ConfigError, DataError

References = Sequence[str] | Sequence[Sequence[str]]

METRICS = ("bleu", "chrf", "ter")


def evaluate(
    hypotheses: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = METRICS,
    tokenize: str = "13a",
    lowercase: bool = False,
    language: str | None = None,
) -> dict:
    """Scores of a corpus, ready for JSON: {"lines": n, "bleu": {"score", "signature", "details"}, ...}.

    references: one list of lines, or several lists of lines (several references for every line).
    tokenize, lowercase: BLEU's, as the options of the `sacrebleu` command; chrF and TER keep their defaults.
    language: adds the scores of `tokenized_bleu` for this language code.
    Scores are per cent; for TER less is better. Raises DataError where line counts differ, ConfigError for an
    unknown metric or tokenizer.
    """
    references = _reference_lists(references)
    _check_lines(hypotheses, references)
    scores: dict = {"lines": len(hypotheses)}
    for name in metrics:
        scores[name] = _score(_metric(name, tokenize, lowercase), hypotheses, references)
    if language is not None:
        scores |= tokenized_bleu(hypotheses, references, language)
    return scores


def bleu(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """Corpus BLEU in per cent (Papineni et al. 2002), cased and 13a by default; errors as in `evaluate`."""
    return evaluate(hypotheses, references, metrics=("bleu",), tokenize=tokenize, lowercase=lowercase)[
        "bleu"
    ]["score"]


def chrf(hypotheses: Sequence[str], references: References) -> float:
    """Corpus chrF2 in per cent (Popović 2015); errors as in `evaluate`."""
    return evaluate(hypotheses, references, metrics=("chrf",))["chrf"]["score"]


def tokenized_bleu(hypotheses: Sequence[str], references: References, language: str) -> dict:
    """BLEU as older papers report it: Moses tokens on both sides, no tokenizer of sacreBLEU's.

    {"tokenized_cased_bleu": ..., "tokenized_lowercased_bleu": ...}: the first is that of multi-bleu.perl on tokenised
    text, which most papers mean by tokenised BLEU; the second is that of its option -lc. Not comparable with 13a BLEU
    (often several points higher), nor with each other; the signatures say tok:none, and case:mixed or case:lc, and
    "tokenizer" which Moses tokenizer made the tokens. Errors as in `evaluate`.
    """
    references = _reference_lists(references)
    _check_lines(hypotheses, references)
    try:
        import sacremoses
    except ImportError as error:
        raise ConfigError("tokenised BLEU needs sacremoses: run `pip install sacremoses`") from error
    tokenizer = sacremoses.MosesTokenizer(language)

    def tokens(lines: Sequence[str]) -> list[str]:
        return [tokenizer.tokenize(line, return_str=True) for line in lines]

    made_by = {"tokenizer": f"sacremoses-{sacremoses.__version__}|lang:{language}"}
    texts = tokens(hypotheses), [tokens(lines) for lines in references]
    # force: the text is tokenised on purpose, which sacreBLEU would warn about.
    return {
        f"tokenized_{case}_bleu": _score(BLEU(tokenize="none", lowercase=lowercase, force=True), *texts)
        | made_by
        for case, lowercase in (("cased", False), ("lowercased", True))
    }


def paired_bootstrap(
    outputs: Mapping[str, Sequence[str]],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict:
    """Paired bootstrap resampling (Koehn 2004) of two or more outputs; the first one is the baseline.

    Returns {"baseline": name, "bleu": {"signature", "systems": {name: {"score", "mean", "interval",
    "p_value"}}}, ...}: `interval` is half the width of the 95% confidence interval around `mean`, `p_value`
    (None for the baseline) that of sacreBLEU: the share of samples whose difference, whatever its sign, is above the
    mean of such by more than the real one. Of a clear difference it is the chance of one tail, a better or a worse
    output, and two tails have twice that; lines alone are drawn again, not trainings.
    The same seed gives the same numbers. Errors as in `evaluate`; ConfigError for fewer than two outputs or a
    seed below 1.
    """
    if len(outputs) < 2:
        raise ConfigError(
            f"a paired test compares two or more outputs, got {len(outputs)}: give a baseline and others"
        )
    if seed < 1:
        # sacreBLEU takes 0 for "no seed".
        raise ConfigError(f"seed of the paired test is {seed}: give 1 or more")
    references = _reference_lists(references)
    for name, lines in outputs.items():
        _check_lines(lines, references, f"output {name!r}")
    instances = {name: _metric(name, tokenize, lowercase) for name in metrics}
    with _sacrebleu_seed(seed):
        test = PairedTest(list(outputs.items()), instances, references, test_type="bs", n_samples=samples)
        signatures, results = test()
    names = [name for name in results if name != "System"]
    baseline = results["System"][0]
    report: dict = {"baseline": baseline}
    for metric, name in zip(metrics, names, strict=True):
        systems = {
            system: {
                "score": float(result.score),
                "mean": float(result.mean),
                "interval": float(result.ci),
                "p_value": None if system == baseline else float(result.p_value),
            }
            for system, result in zip(results["System"], results[name], strict=True)
        }
        for system, row in systems.items():
            # sacreBLEU counts differences strictly greater than the observed one: none, where all are zero.
            if system != baseline and list(outputs[system]) == list(outputs[baseline]):
                row["p_value"] = 1.0
        report[metric] = {"signature": str(signatures[name]), "systems": systems}
    return report


def _metric(name: str, tokenize: str, lowercase: bool) -> Metric:
    if name == "bleu":
        if tokenize not in BLEU.TOKENIZERS:
            raise ConfigError(
                f"unknown BLEU tokenizer {tokenize!r}: choose one of {', '.join(sorted(BLEU.TOKENIZERS))}"
            )
        return BLEU(tokenize=tokenize, lowercase=lowercase)
    if name == "chrf":
        return CHRF()
    if name == "ter":
        return TER()
    raise ConfigError(f"unknown metric {name!r}: choose from {', '.join(METRICS)}")


def _score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict:
    result = metric.corpus_score(list(hypotheses), references)
    return {
        "score": float(result.score),
        "signature": str(metric.get_signature()),
        "details": result.format(width=2, score_only=False),
    }


def _reference_lists(references: References) -> list[list[str]]:
    if references and isinstance(references[0], str):
        return [list(references)]
    return [list(lines) for lines in references]


def _check_lines(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], what: str = "the output"
) -> None:
    if not hypotheses or not references:
        raise DataError(
            f"nothing to score: {what} has {len(hypotheses)} lines and {len(references)} reference(s)"
        )
    for number, lines in enumerate(references, start=1):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"{what} has {len(hypotheses)} lines, reference {number} has {len(lines)}: "
                "give one output line for every reference line, empty ones included"
            )


@contextlib.contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """The paired test takes its seed from the environment only."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
