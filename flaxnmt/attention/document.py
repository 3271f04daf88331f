"""Attention over all words of a document at once, as if it were one sequence."""

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.typing import Array, Count, Float


class DocumentAttention(MultiHeadAttention):
    """Multi-head attention from every word to every word of its document, with the parameters of a sentence's.

    `rows` takes rows of any shape that stand in the order of their documents, such as [B, N, M, D].
    """

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> KeyValues:
        batch, _, _, d_model = memory.shape
        return super().keys(memory.reshape(batch, -1, d_model), context.of_documents(batch))

    def rows(self, x: Float[Array, "*rows D"], shared: KeyValues, context: Context):
        batch = shared.key.shape[0]
        flat = x.reshape(batch, -1, x.shape[-1])
        y, weights = super().rows(flat, shared, context.of_documents(batch))
        return y.reshape(x.shape), weights

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: int = 1) -> tuple[Count, Count]:
        return super().flops(d_model, queries, keys)
