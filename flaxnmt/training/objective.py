"""The objective of a sequence-to-sequence model."""

from flaxnmt.models.seq2seq import PAD, Seq2Seq
from flaxnmt.training.loss import fused_linear_cross_entropy, label_smoothed_cross_entropy
from flaxnmt.training.step import Objective


def translation_objective(model: Seq2Seq, smoothing: float, chunk: int | None = None) -> Objective:
    """Label-smoothed cross-entropy of the target; padding and empty rows do not count.

    Args:
      model: the module.
      smoothing: share of the target distribution that is uniform.
      chunk: most target positions whose logits are in memory at a time, for one device; None keeps the logits
        whole, which is what shards well.
    """

    def loss_sums(model, batch, deterministic):
        target = batch["target"]
        mask = target != PAD
        encoded, _ = model.encode(batch["source"], deterministic, paragraphs=batch.get("paragraph"))
        hidden, _ = model.decode(encoded, target, deterministic)
        if chunk is None:
            return label_smoothed_cross_entropy(model.logits(hidden), target, mask, smoothing)
        rows = target.size
        most = next(size for size in range(min(chunk, rows), 0, -1) if rows % size == 0)
        flat = hidden.reshape(rows, -1)
        return fused_linear_cross_entropy(
            flat, model.output_weights(), target.ravel(), mask.ravel(), smoothing, most
        )

    def objective(params, batch, key):
        rngs = None if key is None else {"dropout": key}
        sums = model.apply({"params": params}, batch, key is None, rngs=rngs, method=loss_sums)
        return dict(zip(("loss", "nll", "tokens"), sums, strict=True))

    return objective
