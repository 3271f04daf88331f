"""What a run remembers of its evaluations, and says of them."""

import math
from dataclasses import dataclass, field

SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "matthews": "Matthews",
    "f1": "F1",
    "exact_match": "exact match",
}


@dataclass
class History:
    """What a run remembers beside its state; saved with every checkpoint."""

    phases: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    best_loss: float = math.inf
    evaluated: int | None = None

    def note(self, score: float, loss: float, step: int, larger_is_better: bool) -> bool:
        """Takes in a development score; whether it is the best so far, by the loss among equal scores."""
        none = self.best is None or math.isnan(self.best)
        better = none or (score > self.best if larger_is_better else score < self.best)
        # A score of 0.00, or 100, says little: the loss chooses the parameters then, but ends no patience.
        chosen = better or (score == self.best and loss < self.best_loss)
        self.evaluated = step
        self.evaluations_since_best = 0 if better else self.evaluations_since_best + 1
        if chosen:
            self.best, self.best_loss, self.best_step = score, loss, step
        return chosen

    def describe(self, metric: str) -> str:
        """The best score and its step; nothing before the first evaluation."""
        name = SCORES.get(metric, metric)
        return "" if self.best is None else f"{name} {self.best:.4g} at step {self.best_step}"


def brief(row: dict, signatures: bool = False) -> str:
    """The scores of a row in a few words, the first with its signature if that is wanted."""
    words = [f"perplexity {row['perplexity']:.3f}"] if "perplexity" in row else []
    found = [key for key in SCORES if key in row]
    words += [f"{SCORES[key]} {row[key]['score']:.2f}" for key in found]
    signature = row[found[0]].get("signature") if found and signatures else None
    return " · ".join(words) + (f" ({signature})" if signature else "")
