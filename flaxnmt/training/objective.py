"""The objective of a sequence-to-sequence model."""

from flaxnmt.models.seq2seq import PAD, Seq2Seq
from flaxnmt.training.loss import label_smoothed_cross_entropy
from flaxnmt.training.step import Objective


def translation_objective(model: Seq2Seq, smoothing: float) -> Objective:
    """Label-smoothed cross-entropy of the target; padding and empty rows do not count."""

    def objective(params, batch, key):
        rngs = None if key is None else {"dropout": key}
        logits = model.apply({"params": params}, batch["source"], batch["target"], key is None, rngs=rngs)
        mask = batch["target"] != PAD
        loss, nll, tokens = label_smoothed_cross_entropy(logits, batch["target"], mask, smoothing)
        return {"loss": loss, "nll": nll, "tokens": tokens}

    return objective
