"""The objective of heads that classify: texts, tokens, the two ends of an answer (Devlin et al. 2019, section 4)."""

import jax.numpy as jnp

from flaxnmt.config import BudgetLossConfig
from flaxnmt.layers.context import Aux
from flaxnmt.models.config import Head
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.symbols import PAD
from flaxnmt.training.loss import label_smoothed_cross_entropy
from flaxnmt.training.objective import BudgetLoss, objective_of
from flaxnmt.training.step import Objective, Sums
from flaxnmt.typing import Array, Float, Int

OUT_OF_QUESTION = -1e9


def span_logits(logits: Float[Array, "B L ends"], tokens: Int[Array, "B L"]) -> Float[Array, "B ends L"]:
    """Logits of each end of a span over the tokens; padding is no place for one."""
    return jnp.where(tokens[:, None] != PAD, jnp.swapaxes(logits, -1, -2), OUT_OF_QUESTION)


def labelled_sums(logits: Float[Array, "..."], said: Int[Array, "..."], head: Head) -> Sums:
    """Sums over rows of the cross-entropy of what they are labelled with; what has no label (-1) does not count.

    An answer counts as one, with the mean of the loss of its ends.

    Args:
      logits: of the head: [B, C] of classes, [B, L, C] of labels, [B, ends, L] of spans, as `span_logits` has them.
      said: the labels: [B], [B, L] or [B, ends].
      head: `classes`, `labels` or `spans`.
    """
    ends = said.shape[-1] if head == "spans" else 1
    loss, nll, count = label_smoothed_cross_entropy(logits, jnp.maximum(said, 0), said >= 0, 0.0)
    return {"loss": loss / ends, "nll": nll / ends, "tokens": count / ends}


def labelled_logits(
    model: EncoderOnly,
    tokens: Int[Array, "B L"],
    segments: Int[Array, "B L"],
    **options,
) -> tuple[Float[Array, "..."], Aux]:
    """Logits as `labelled_sums` takes them, and what the layers report; options are those of `EncoderOnly.encode`."""
    logits, aux = model.read_off(tokens, segments, **options)
    return span_logits(logits, tokens) if model.config.head == "spans" else logits, aux


def labelled_objective(model: EncoderOnly, budget: BudgetLossConfig = BudgetLossConfig()) -> Objective:
    """Cross-entropy of what a row is labelled with, as in `labelled_sums`.

    Args:
      model: with the head `classes`, `labels` or `spans`, whose name is that of the labels in a batch.
      budget: of a model with gates.
    """
    gated, head = BudgetLoss(model, budget), model.config.head

    def loss_sums(model, batch, key, update) -> Sums:
        tokens = batch["tokens"]
        drawn, options = gated.options(key, len(tokens), update)
        options["gating"] = gated.gating(drawn, update, 0)
        logits, aux = labelled_logits(model, tokens, batch["segments"], budget=drawn, **options)
        return gated.added(labelled_sums(logits, batch[head], head), drawn, update, aux)

    return objective_of(model, loss_sums)
