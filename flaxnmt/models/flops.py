"""Work of a model, counted analytically: multiply-adds as two operations, forward pass."""

from flaxnmt.models.config import Seq2SeqConfig


def forward_flops(config: Seq2SeqConfig, target_vocab: int, rows: int, source: int, target: int) -> int:
    """FLOPs of the matrix products of a batch [rows, source] to [rows, target], logits included.

    Element-wise work (norms, softmax, dropout) is left out; a training step is three times as much, since the
    backward pass has two products for each of the forward pass.
    """
    d_model = config.d_model
    sizes = {
        "encoder": (config.encoder, [(config.encoder.attention, source, source)], source),
        "decoder": (
            config.decoder,
            [(config.decoder.attention, target, target), (config.decoder.attention, target, source)],
            target,
        ),
    }
    total = 2 * target * d_model * target_vocab
    for part, attentions, queries in sizes.values():
        layer = sum(sum(config.make_attention(kind).flops(d_model, q, k)) for kind, q, k in attentions)
        layer += sum(config.make_feed_forward(part.feed_forward).flops(d_model, queries, queries))
        total += part.layers * layer
    return rows * total
