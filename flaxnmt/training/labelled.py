"""The objective of heads that classify: texts, tokens, the two ends of an answer (Devlin et al. 2019, section 4)."""

import jax.numpy as jnp

from flaxnmt.config import BudgetLossConfig
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.seq2seq import PAD
from flaxnmt.training.loss import label_smoothed_cross_entropy
from flaxnmt.training.objective import BudgetLoss, objective_of
from flaxnmt.training.step import Objective, Sums
from flaxnmt.typing import Array, Float, Int

OUT_OF_QUESTION = -1e9


def span_logits(logits: Float[Array, "B L ends"], tokens: Int[Array, "B L"]) -> Float[Array, "B ends L"]:
    """Logits of each end of a span over the tokens; padding is no place for one."""
    return jnp.where(tokens[:, None] != PAD, jnp.swapaxes(logits, -1, -2), OUT_OF_QUESTION)


def labelled_objective(model: EncoderOnly, budget: BudgetLossConfig = BudgetLossConfig()) -> Objective:
    """Cross-entropy of what a row is labelled with; what has no label (-1) does not count.

    An answer counts as one, with the mean of the loss of its ends.

    Args:
      model: with the head `classes`, `labels` or `spans`, whose name is that of the labels in a batch.
      budget: of a model with gates.
    """
    gated, head = BudgetLoss(model, budget), model.config.head

    def loss_sums(model, batch, key, update) -> Sums:
        tokens, said = batch["tokens"], batch[head]
        drawn, options = gated.options(key, len(tokens), update)
        hidden, aux = model.encode(tokens, batch["segments"], key is None, budget=drawn, **options)
        logits = model.logits(hidden, key is None)
        ends = 1
        if head == "spans":
            logits, ends = span_logits(logits, tokens), said.shape[-1]
        loss, nll, count = label_smoothed_cross_entropy(logits, jnp.maximum(said, 0), said >= 0, 0.0)
        sums = {"loss": loss / ends, "nll": nll / ends, "tokens": count / ends}
        return gated.added(sums, drawn, aux)

    return objective_of(model, loss_sums)
