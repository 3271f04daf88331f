"""Attention over all words of a document at once, as if it were one sequence."""

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.typing import Array, Float


class DocumentAttention(MultiHeadAttention):
    """Multi-head attention from every word to every word of its document, with the parameters of a sentence's.

    `rows` takes rows of any shape that stand in the order of their documents, such as [B, N, M, D].
    """

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> KeyValues:
        batch, _, _, d_model = memory.shape
        return super().keys(memory.reshape(batch, -1, d_model), context)

    def rows(self, x: Float[Array, "*rows D"], shared: KeyValues, context: Context):
        batch = shared.key.shape[0]
        flat = Context(
            key_mask=None if context.key_mask is None else context.key_mask.reshape(batch, -1),
            deterministic=context.deterministic,
            capture=context.capture,
        )
        y, weights = super().rows(x.reshape(batch, -1, x.shape[-1]), shared, flat)
        return y.reshape(x.shape), weights

    def flops(self, d_model: int, queries: int, keys: int, sentences: int = 1) -> tuple[int, int]:
        return super().flops(d_model, queries, keys)
