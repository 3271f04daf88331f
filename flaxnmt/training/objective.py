"""The objective of a sequence-to-sequence model."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flaxnmt.config import BudgetLossConfig
from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import budget_loss, draw_budgets
from flaxnmt.gates.control import noise_scale
from flaxnmt.layers.context import Aux
from flaxnmt.models.seq2seq import PAD, Seq2Seq
from flaxnmt.training.loss import LossSums, fused_linear_cross_entropy, label_smoothed_cross_entropy
from flaxnmt.training.step import Objective
from flaxnmt.typing import Array, Float, Int

SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class BudgetLoss:
    """The budgets of a batch, the noise of its gates and what they cost, for a model with gates.

    Attributes:
      model: the module.
      config: weight, normaliser and so on; `noise_steps` is the number of updates over which noise grows.
    """

    model: Seq2Seq
    config: BudgetLossConfig

    def draw(self, key, rows: int) -> Int[Array, " B"]:
        """A budget for each example, as places in the budgets of the model."""
        return draw_budgets(key, rows, self.model.config.budget_levels, self.config.joint)

    def noise(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Scale of the noise on gates after this many updates."""
        return noise_scale(step, self.config.noise_start, self.config.noise_end, self.config.noise_steps)

    def sums(self, budget: Int[Array, " B"], encoder: Aux, decoder: Aux) -> dict[str, Float[Array, ""]]:
        """The budget loss (eq. 9), and by how much of their whole the sides differ from their budgets."""
        fractions = jnp.asarray(self.model.config.budgets, jnp.float32)
        options = (self.config.normaliser, self.config.two_sided, self.config.per_sequence)
        loss, rows = 0.0, {}
        for side, name, aux in zip(range(len(SIDES)), SIDES, (encoder, decoder), strict=True):
            if aux.used is None:
                continue
            loss += budget_loss(aux.used, aux.full, fractions[:, side], budget, *options)
            plan = (fractions[budget, side] * aux.full).sum()
            rows[f"{name}_over_budget"] = (aux.used.sum() - plan) / jnp.maximum(aux.full.sum(), 1)
        return {"budget_loss": loss} | rows


def translation_objective(
    model: Seq2Seq,
    smoothing: float,
    chunk: int | None = None,
    budget: BudgetLossConfig = BudgetLossConfig(),
) -> Objective:
    """Label-smoothed cross-entropy of the target; padding and empty rows do not count.

    For a model with gates the budget loss is added while training, when every sequence draws a budget. It holds
    for a batch, and weighs as much as the target tokens of the batch do.

    Args:
      model: the module.
      smoothing: share of the target distribution that is uniform.
      chunk: most target positions whose logits are in memory at a time, for one device; None keeps the logits
        whole, which is what shards well.
      budget: of a model with gates.

    Raises:
      ConfigError: for a model with gates whose noise has no end.
    """
    if model.config.budgets and budget.noise_steps is None:
        raise ConfigError(
            "noise on gates grows without an end: give --training.budget.noise-steps or --max-steps"
        )
    gated = BudgetLoss(model, budget) if model.config.budgets else None

    def loss_sums(model, batch, key, update):
        deterministic, target = key is None, batch["target"]
        options, drawn = {}, None
        if gated is not None and not deterministic:
            drawn = gated.draw(jax.random.fold_in(key, 1), len(target))
            options = {"gate_noise": gated.noise(update)}
        given = {"paragraphs": batch.get("paragraph"), "places": batch.get("places"), "budget": drawn}
        encoded, encoder = model.encode(batch["source"], deterministic, **given, **options)
        hidden, decoder = model.decode(encoded, target, deterministic, **options)
        loss, nll, tokens = _cross_entropy(model, hidden, target, smoothing, chunk)
        if drawn is None:
            return {"loss": loss, "nll": nll, "tokens": tokens}
        # Sums over batches are divided by their target tokens: a batch counts as many times as it has of them.
        rows = {name: value * tokens for name, value in gated.sums(drawn, encoder, decoder).items()}
        loss += budget.weight * rows["budget_loss"]
        return {"loss": loss, "nll": nll, "tokens": tokens} | rows

    def objective(params, batch, key, update=0):
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, batch, key, update, rngs=rngs, method=loss_sums)

    return objective


def _cross_entropy(model, hidden, target, smoothing: float, chunk: int | None) -> LossSums:
    mask = target != PAD
    if chunk is None:
        return label_smoothed_cross_entropy(model.logits(hidden), target, mask, smoothing)
    rows = target.size
    most = next(size for size in range(min(chunk, rows), 0, -1) if rows % size == 0)
    flat = hidden.reshape(rows, -1)
    return fused_linear_cross_entropy(
        flat, model.output_weights(), target.ravel(), mask.ravel(), smoothing, most
    )
