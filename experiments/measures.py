"""What a sweep measures of a finished run: BLEU with and without its context, tests against another run, time."""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np

from flaxnmt.data.documents import Document
from flaxnmt.evaluation.controls import KINDS, Kind, compare_controls
from flaxnmt.evaluation.documents import paired_document_bootstrap
from flaxnmt.evaluation.scores import evaluate, paired_bootstrap
from flaxnmt.gates.budget import full_budget
from flaxnmt.models.config import BudgetConfig
from flaxnmt.models.flops import forward_flops, side_flops
from flaxnmt.run import Run
from flaxnmt.run_directory import write_json
from flaxnmt.symbols import UNK

METRICS = ("s_bleu", "d_bleu")
TRANSLATIONS = "translations.json"
"""Where the translations of a run are left, for those that are compared with it, and..."""

BASELINE = "baseline.json"
"""...where those of the run that it is compared with lie."""


def scores(
    run: Run, documents: Sequence[Document], kinds: Sequence[Kind] = KINDS, samples: int = 1000
) -> dict:
    """s-BLEU and d-BLEU under every control, and whether true context is better than the others.

    Returns:
      {control: {"s_bleu", "d_bleu", "s_p", "d_p": of a paired bootstrap against true context}, "signature": of
      s-BLEU}.
    """
    translate = run.translate_documents
    found = compare_controls(translate, documents, kinds=kinds, samples=samples, translate_wanted=translate)
    write_json(run.directory / TRANSLATIONS, found["outputs"][kinds[0]])
    tests = {metric: found["significance"][metric]["systems"] for metric in METRICS}
    rows = {
        kind: {
            **{metric: found["scores"][kind][metric]["score"] for metric in METRICS},
            **{f"{metric[0]}_p": tests[metric][kind]["p_value"] for metric in METRICS},
        }
        for kind in kinds
    }
    return rows | {"signature": found["scores"][kinds[0]]["s_bleu"]["signature"]}


def against(run: Run, documents: Sequence[Document], samples: int = 1000) -> dict:
    """How much better than its baseline a run is, with p of a paired bootstrap over documents.

    Both have translated these documents in `scores`.

    Returns:
      {"s_bleu", "d_bleu": differences, "s_p", "d_p"}.
    """
    tests = paired_document_bootstrap(_both(run), documents, samples=samples)
    found = {metric: _difference(tests[metric]) for metric in METRICS}
    return {metric: value for metric, (value, _) in found.items()} | {
        f"{metric[0]}_p": p for metric, (_, p) in found.items()
    }


def _both(run: Run) -> dict:
    """Translations of the baseline and of the run."""
    return {
        name: json.loads((run.directory / file).read_text(encoding="utf-8"))
        for name, file in (("baseline", BASELINE), ("run", TRANSLATIONS))
    }


def _difference(test: dict) -> tuple[float, float]:
    """By how much the run is above the baseline, and p."""
    baseline, own = test["systems"]["baseline"], test["systems"]["run"]
    return own["score"] - baseline["score"], own["p_value"]


def of_lines(run: Run, source: Sequence[str], target: Sequence[str], samples: int = 1000) -> dict:
    """BLEU and chrF of the translation of lines, their difference from the baseline if there is one, and costs.

    Returns:
      {"bleu", "chrf", "signature", "decoding_seconds", "update_seconds": median of the intervals of the log,
      "peak_memory": bytes, "gflops": of a pair of 128 tokens each, forward}, and {"against": {"bleu", "chrf":
      differences, "bleu_p", "chrf_p": of a paired bootstrap over lines}}.
    """
    outputs = run.translate(list(source))
    write_json(run.directory / TRANSLATIONS, outputs)
    began = time.perf_counter()
    run.translate(list(source))
    seconds = time.perf_counter() - began
    found = evaluate(outputs, list(target), metrics=("bleu", "chrf"))
    intervals = [row["step_seconds"] for row in run.metrics if row["kind"] == "train"]
    # A finished run that was only opened again says so once more, and needed less.
    peak = max(row["peak_memory"] for row in run.metrics if row.get("event") == "finished")
    vocabulary = run.vocabularies.target.vocab_size
    row = {
        **{name: found[name]["score"] for name in ("bleu", "chrf")},
        "signature": found["bleu"]["signature"],
        "decoding_seconds": seconds,
        "update_seconds": statistics.median(intervals[1:] or intervals),
        "peak_memory": peak,
        "gflops": forward_flops(run.config.model, vocabulary, (1, 128), (1, 128)) / 1e9,
    }
    if (run.directory / BASELINE).exists():
        row["against"] = _differences(_both(run), target, samples)
    return row


def _differences(both: dict, target: Sequence[str], samples: int) -> dict:
    """{"bleu", "chrf": of the run over its baseline, "bleu_p", "chrf_p": of a paired bootstrap over lines}."""
    tests = paired_bootstrap(both, list(target), samples=samples)
    found = {}
    for metric in ("bleu", "chrf"):
        found[metric], found[f"{metric}_p"] = _difference(tests[metric])
    return found


def of_tokens(run: Run, source: Sequence[str], target: Sequence[str]) -> dict:
    """What the vocabulary of a run makes of these lines.

    Returns:
      {"vocabulary": pieces of the target's, "source_tokens", "target_tokens": mean of a line, end symbol left out,
      "unknown": share of all tokens of both sides}.
    """
    sides = run.vocabularies.source.encode(source), run.vocabularies.target.encode(target)
    tokens = [token for side in sides for line in side for token in line]
    return {
        "vocabulary": run.vocabularies.target.vocab_size,
        **{
            f"{name}_tokens": statistics.mean(map(len, side))
            for name, side in zip(("source", "target"), sides)
        },
        "unknown": tokens.count(UNK) / len(tokens),
    }


def by_length(run: Run, source: Sequence[str], target: Sequence[str]) -> dict:
    """Scores of the lines as long as those of training, and of longer ones, as `of_lines` has translated them.

    Returns:
      {"within", "beyond": the most tokens that training allowed on either side, end symbol included: {"lines", "bleu",
      "chrf", "length_ratio": words of the outputs by words of the references}}, without scores where there are none.
    """
    outputs = json.loads((run.directory / TRANSLATIONS).read_text(encoding="utf-8"))
    sides = run.vocabularies.source.encode(source), run.vocabularies.target.encode(target)
    beyond = [max(map(len, tokens)) >= run.config.data.max_length for tokens in zip(*sides)]
    row = {}
    for name, wanted in (("within", False), ("beyond", True)):
        pairs = [pair for pair, is_beyond in zip(zip(outputs, target), beyond) if is_beyond == wanted]
        row[name] = {"lines": len(pairs)}
        if pairs:
            hypotheses, references = zip(*pairs)
            found = evaluate(hypotheses, references, metrics=("bleu", "chrf"))
            row[name] |= {metric: found[metric]["score"] for metric in ("bleu", "chrf")}
            words = [sum(len(line.split()) for line in lines) for lines in (hypotheses, references)]
            row[name]["length_ratio"] = words[0] / words[1]
    return row


def speed(run: Run, documents: Sequence[Document]) -> dict:
    """Time of training and of translating these documents, which `scores` has translated: everything is compiled.

    Returns:
      {"update_seconds": median of the intervals of the log, "target_tokens_per_second" of training, "padding": share of
      the positions of both sides, "decoding_seconds", "sentences_per_second" of translation}.
    """
    rows = [row for row in run.metrics if row["kind"] == "train"]
    # The first interval compiles.
    rows = rows[1:] or rows
    began = time.perf_counter()
    run.translate_documents(documents)
    seconds = time.perf_counter() - began
    names = {"update_seconds": "step_seconds", "target_tokens_per_second": "target_tokens_per_second"}
    medians = {name: statistics.median(row[field] for row in rows) for name, field in names.items()}
    return medians | {
        "padding": statistics.mean(row["padding"] for row in rows),
        "decoding_seconds": seconds,
        "sentences_per_second": sum(map(len, documents)) / seconds,
    }


def of_budgets(
    run: Run,
    source: Sequence[str],
    target: Sequence[str],
    budgets: Sequence[tuple[float, float]] | None = None,
    samples: int = 1000,
) -> dict:
    """Quality, computation and time of a model for each of its budgets, or once for a model without.

    Args:
      run: with or without budgets.
      source, target: lines.
      budgets: those of the model that are measured, its full one among them; all if None.
      samples: of the bootstrap.

    Returns:
      {"rows": for each budget "encoder_budget", "decoder_budget", "bleu", "chrf", "signature", "encoder_use" and
      "decoder_use": shares of the full computation on the lines and their translations, "flops": these shares of the
      full computation on the lines and `target`, mean of a line, logits and embeddings left out, so that who writes
      less does not count as cheaper, "logits_flops": what logits add to it, "decoding_seconds": once everything is
      compiled, "gates": as `Run.gates`, "of_full": `_differences` from the largest budget, and "against": as
      `_of_like_work`, or as `of_lines` has it where the baseline was measured there, if there is one}.
    """
    rows, translations = [], []
    budgets = budgets or run.config.model.budgets or (None,)
    references = [len(tokens) + 1 for tokens in run.vocabularies.target.encode(target)]
    wanted = layer_flops(run, source, references).mean(0)
    logits = 2 * run.config.model.d_model * run.vocabularies.target.vocab_size * statistics.mean(references)
    # All budgets share what this compiles.
    run.translate(list(source), budget=budgets[0])
    for budget in budgets:
        began = time.perf_counter()
        outputs = run.translate(list(source), budget=budget)
        seconds = time.perf_counter() - began
        scores = evaluate(outputs, list(target), metrics=("bleu", "chrf"))
        found = run.score(list(source), outputs, budget=budget)
        full = layer_flops(run, source, [len(score.tokens) for score in found])
        use = (np.asarray([score.use or (1.0, 1.0) for score in found]) * full).sum(0) / full.sum(0)
        work = (use * wanted).tolist()
        translations.append(
            {"budget": None if budget is None else list(budget), "flops": work, "outputs": outputs}
        )
        row = {
            "encoder_budget": None if budget is None else budget[0],
            "decoder_budget": None if budget is None else budget[1],
            **{name: scores[name]["score"] for name in ("bleu", "chrf")},
            "signature": scores["bleu"]["signature"],
            **dict(zip(("encoder_use", "decoder_use"), use.tolist())),
            "flops": sum(work),
            "logits_flops": logits,
            "decoding_seconds": seconds,
        }
        if budget is not None:
            row["gates"] = run.gates(list(source), outputs, budget)
        rows.append(row)
    write_json(run.directory / TRANSLATIONS, translations)
    if None not in budgets:
        full = translations[full_budget(budgets)]["outputs"]
        for row, own in zip(rows, translations, strict=True):
            row["of_full"] = _differences({"baseline": full, "run": own["outputs"]}, target, samples)
    if (run.directory / BASELINE).exists():
        others = json.loads((run.directory / BASELINE).read_text(encoding="utf-8"))
        for row, own in zip(rows, translations, strict=True):
            if isinstance(others[0], str):
                # Those of `of_lines`: a baseline that knows of no budgets.
                row["against"] = _differences({"baseline": others, "run": own["outputs"]}, target, samples)
            else:
                row["against"] = _of_like_work(own, others, target, samples)
    return {"rows": rows}


SAME_WORK = 1.02
"""A baseline that does up to so many times as much work as a run may be compared with it."""


def _of_like_work(own: dict, others: list[dict], target: Sequence[str], samples: int) -> dict:
    """Against a baseline at the same budget; where it has another set of budgets, or none, at one of as much work.

    That is the one whose sides do most nearly the work of the run's, of those that do not do more in all, or of all where
    every one does more. What is nearest of those that do more says how much hangs on that.

    Returns:
      `_differences`, {"flops", "encoder_budget", "decoder_budget": of the baseline}, and "dearer", the same of one that
      does more work, where there is none at the same budget.
    """

    def nearest(others: list[dict]) -> dict:
        other = min(others, key=lambda other: sum(map(abs, np.subtract(other["flops"], own["flops"]))))
        encoder, decoder = other["budget"] or (None, None)
        both = {"baseline": other["outputs"], "run": own["outputs"]}
        found = {"flops": sum(other["flops"]), "encoder_budget": encoder, "decoder_budget": decoder}
        return found | _differences(both, target, samples)

    same = [other for other in others if other["budget"] is not None and other["budget"] == own["budget"]]
    if same:
        return nearest(same)
    affordable = [other for other in others if sum(other["flops"]) <= SAME_WORK * sum(own["flops"])]
    dearer = [other for other in others if other not in affordable]
    if not (affordable and dearer):
        return nearest(others)
    return nearest(affordable) | {"dearer": nearest(dearer)}


def after_best(run: Run) -> dict:
    """{"dev_best", "dev_last": development BLEU at its best, and where training ended}."""
    found = [row["bleu"]["score"] for row in run.metrics if row["kind"] == "dev"]
    return {"dev_best": max(found), "dev_last": found[-1]}


def layer_flops(run: Run, source: Sequence[str], symbols: Sequence[int]) -> np.ndarray:
    """Work of encoder and decoder without control networks, all gates open.

    Args:
      run: of a model of sentences.
      source: lines.
      symbols: of the translation of each, the end symbol counted.

    Returns:
      [lines, 2].
    """
    config = dataclasses.replace(run.config.model, budget=BudgetConfig())
    words = [len(tokens) + 1 for tokens in run.vocabularies.source.encode(source)]
    return np.asarray([side_flops(config, *lengths) for lengths in zip(words, symbols, strict=True)])
