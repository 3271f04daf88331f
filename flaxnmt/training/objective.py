"""The objectives of translation and language models."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flaxnmt.config import BudgetLossConfig
from flaxnmt.each_device import summed_alone
from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import budget_loss, draw_budgets, full_budget
from flaxnmt.gates.control import noise_scale
from flaxnmt.layers.context import Aux, Gating
from flaxnmt.layers.embedding import whole_rows
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.seq2seq import Seq2Seq
from flaxnmt.symbols import PAD
from flaxnmt.training.loss import LossSums, fused_linear_cross_entropy, label_smoothed_cross_entropy
from flaxnmt.training.masking import RATE, choose, corrupt
from flaxnmt.training.step import Objective, Sums
from flaxnmt.typing import Array, Bool, Float, Int, PyTree

Model = Seq2Seq | DecoderOnly | EncoderOnly


@dataclass(frozen=True)
class BudgetLoss:
    """The budgets of a batch, the noise of its gates and what they cost; nothing for a model without gates.

    Attributes:
      model: the module.
      config: weight, normaliser and so on; `noise_steps` is the number of updates over which noise grows.

    Raises:
      ConfigError: for a model with gates whose noise has no end.
    """

    model: Model
    config: BudgetLossConfig

    def __post_init__(self):
        grows = self.config.noise_start != self.config.noise_end
        if self.model.config.budgets and self.config.noise_steps is None and grows:
            raise ConfigError(
                "noise on gates grows without an end: give --training.budget.noise-steps or --max-steps"
            )

    def draw(self, key, rows: int, step: Int[Array, ""]) -> Int[Array, " B"]:
        """A budget for each example, as places in the budgets of the model, after this many updates."""
        share, joint = self.config.full_share, self.config.joint
        drawn = draw_budgets(key, rows, self.model.config.budget_levels, full_share=share, joint=joint)
        return jnp.where(step < self.config.begin, full_budget(self.model.config.budgets), drawn)

    def noise(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Scale of the noise on gates after this many updates."""
        begin, start, end = self.config.begin, self.config.noise_start, self.config.noise_end
        scale = noise_scale(step - begin, start, end, max((self.config.noise_steps or 1) - begin, 1))
        return jnp.where(step < begin, 0.0, scale)

    def shares(self, step: Int[Array, ""]) -> Float[Array, "P parts"]:
        """What each budget leaves to each part of the model after this many updates."""
        levels = jnp.asarray(self.model.config.budgets, jnp.float32)
        if self.config.fall_steps is None:
            return levels
        begin, end = self.config.begin, self.config.fall_steps
        return 1 - (1 - levels) * jnp.clip((step - begin) / (end - begin), 0, 1)

    def open(self, step: Int[Array, ""]) -> Bool[Array, ""] | None:
        """Whether all gates are open after this many updates; None where they never are."""
        return step < self.config.begin if self.config.begin else None

    def decided(self, update: Int[Array, ""]) -> Bool[Array, ""] | None:
        """Whether gates are decisions after this many updates; None where they never are while training."""
        return None if self.config.decide_from is None else update >= self.config.decide_from

    def gating(self, budget: Int[Array, " B"] | None, update: Int[Array, ""], part: int) -> Gating | None:
        """How the gates of a part of the model are, for examples of these budgets; None where none were drawn."""
        if budget is None:
            return None
        counted = None
        if self.config.count == "decided":
            counted = jnp.asarray([budget[part] < 1 for budget in self.model.config.budgets])[budget]
        return Gating(self.noise(update), self.open(update), self.decided(update), counted)

    def options(self, key, rows: int, update: Int[Array, ""]) -> tuple[Int[Array, " B"] | None, dict]:
        """(the budget of each example, arguments of every forward pass); without a key nothing is drawn."""
        common = {"deterministic": key is None}
        if key is None or not self.model.config.budgets:
            return None, common
        return self.draw(jax.random.fold_in(key, 1), rows, update), common

    def sums(self, budget: Int[Array, " B"], update: Int[Array, ""], *reports: Aux) -> Sums:
        """The budget loss (eq. 9), and by how much of their whole the parts of the model differ from their budgets."""
        shares = self.shares(update)
        options = {name: getattr(self.config, name) for name in ("normaliser", "two_sided", "per_sequence")}
        loss, rows = 0.0, {}
        for place, (name, aux) in enumerate(zip(self.model.config.parts, reports, strict=True)):
            if aux.used is None:
                continue
            loss += budget_loss(aux.used, aux.full, shares[:, place], budget, **options)
            plan = (shares[budget, place] * aux.full).sum()
            rows[f"{name}_over_budget"] = (aux.used.sum() - plan) / jnp.maximum(aux.full.sum(), 1)
        return {"budget_loss": loss} | rows

    def added(
        self, sums: Sums, budget: Int[Array, " B"] | None, update: Int[Array, ""], *reports: Aux
    ) -> Sums:
        """The sums of a batch with the budget loss among them, which weighs as much as its tokens do."""
        if budget is None:
            return sums
        # Sums over batches are divided by their target tokens: a batch counts as many times as it has of them.
        rows = {name: value * sums["tokens"] for name, value in self.sums(budget, update, *reports).items()}
        return sums | rows | {"loss": sums["loss"] + self.config.weight * rows["budget_loss"]}

    def evaluated(self, sums: Sums, batch: PyTree, aux: Aux) -> Sums:
        """The sums of an evaluation whose batch says the budget of each row, with the FLOPs `used`, of the `full` ones."""
        return sums | {"used": aux.used.sum(), "full": aux.full.sum()} if "budget" in batch else sums


def objective_of(model: Model, loss_sums) -> Objective:
    """loss_sums(module, batch, key, update) as a function of parameters; a key draws dropout, too."""

    def objective(params, batch, key, update=0):
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, batch, key, update, rngs=rngs, method=loss_sums)

    return objective


def translation_objective(
    model: Seq2Seq | DecoderOnly,
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
      chunk: most target positions whose logits a device has in memory at a time; None keeps the logits whole, which
        any mesh can divide.
      budget: of a model with gates.
    """
    gated = BudgetLoss(model, budget)

    def loss_sums(model, batch, key, update):
        target = batch["target"]
        drawn, options = gated.options(key, len(target), update)
        given = {"paragraphs": batch.get("paragraph"), "places": batch.get("places"), "budget": drawn}
        encoded, encoder = model.encode(
            batch["source"], **given, **options, gating=gated.gating(drawn, update, 0)
        )
        hidden, decoder = model.decode(encoded, target, **options, gating=gated.gating(drawn, update, -1))
        sums = _cross_entropy(model, hidden, target, target != PAD, smoothing, chunk)
        reports = (encoder, decoder) if isinstance(model, Seq2Seq) else (decoder,)
        return gated.added(sums, drawn, update, *reports)

    return objective_of(model, loss_sums)


def language_objective(
    model: DecoderOnly, chunk: int | None = None, budget: BudgetLossConfig = BudgetLossConfig()
) -> Objective:
    """Negative log-likelihood of each symbol of a text given those before it; arguments as in translation.

    Those that are said are `target` [B, L], each after the one at its place of `tokens` (`flaxnmt.data.sequences`). A
    batch that is evaluated may say the `budget` of each row, as its place among those of the model.
    """
    gated = BudgetLoss(model, budget)

    def loss_sums(model, batch, key, update):
        tokens, target = batch["tokens"], batch["target"]
        drawn, options = gated.options(key, len(tokens), update)
        budget = batch.get("budget") if key is None else drawn
        options["gating"] = gated.gating(drawn, update, 0)
        hidden, aux = model.language(tokens, packed=batch["packed"], budget=budget, **options)
        sums = _cross_entropy(model, hidden, target, target != PAD, 0.0, chunk)
        return gated.evaluated(sums, batch, aux) if key is None else gated.added(sums, drawn, update, aux)

    return objective_of(model, loss_sums)


def masked_objective(
    model: EncoderOnly, mask: int, words: tuple[int, int], budget: BudgetLossConfig = BudgetLossConfig()
) -> Objective:
    """Negative log-likelihood of the tokens that are chosen, given the others (Devlin et al. 2019).

    Every update chooses anew; without a key the choice is always the same. Logits are those of the chosen alone, and so
    are the outputs of the last layer where it can compute some alone. A batch that is evaluated may say the `budget` of
    each row, as its place among those of the model.

    Args:
      model: the module, with the head `masked`.
      mask: id of the mask.
      words: first id of what is no special symbol, and the size of the vocabulary.
      budget: of a model with gates.
    """
    gated = BudgetLoss(model, budget)

    def loss_sums(model, batch, key, update):
        tokens = batch["tokens"]
        drawn, options = gated.options(key, len(tokens), update)
        draws = jax.random.split(jax.random.key(0) if key is None else jax.random.fold_in(key, 2))
        chosen, counts = choose(draws[0], tokens >= words[0], RATE)
        shown = corrupt(draws[1], tokens, chosen, counts, mask, words)
        given = {"packed": batch["packed"], "budget": batch.get("budget") if key is None else drawn}
        hidden, aux = model.encode(
            shown, places=chosen, **given, **options, gating=gated.gating(drawn, update, 0)
        )
        target = jnp.take_along_axis(tokens, chosen, axis=-1)
        logits = model.logits(hidden, key is None)
        sums = _named(label_smoothed_cross_entropy(logits, target, counts, 0.0))
        right = jnp.sum((logits.argmax(-1) == target) & counts, dtype=jnp.float32)
        sums |= {"masked_accuracy": right}
        return gated.evaluated(sums, batch, aux) if key is None else gated.added(sums, drawn, update, aux)

    return objective_of(model, loss_sums)


def _named(sums: LossSums) -> Sums:
    return dict(zip(("loss", "nll", "tokens"), sums, strict=True))


def _cross_entropy(
    model, hidden, target, mask: Bool[Array, "*B T"], smoothing: float, chunk: int | None
) -> Sums:
    if chunk is None:
        return _named(label_smoothed_cross_entropy(model.logits(hidden), target, mask, smoothing))

    def sums(table, rows):
        hidden, target, mask = rows
        count = target.size
        most = next(size for size in range(min(chunk, count), 0, -1) if count % size == 0)
        flat = hidden.reshape(count, -1)
        return fused_linear_cross_entropy(flat, table, target.ravel(), mask.ravel(), smoothing, most)

    return _named(summed_alone(sums)(whole_rows(model.output_weights()), (hidden, target, mask)))
