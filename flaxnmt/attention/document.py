"""Attention over all words of a document at once, as if it were one sequence."""

from collections.abc import Callable

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.weights import softmax_weights
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.typing import Array, Count, Float


class DocumentAttention(MultiHeadAttention, kw_only=True):
    """Multi-head attention from every word to every word of its document, with the parameters of a sentence's.

    `rows` takes rows of any shape that stand in the order of their documents, such as [B, N, M, D].

    Attributes:
      kernel: computes attention from queries, keys, values and the mask of keys, such as
        `flaxnmt.attention.splash.splash_attention`; None for scores that are kept. It knows of no dropout on weights, no
        weights but those of a softmax, nothing that positions add (rotary ones add nothing), and no weights to look at:
        for what is captured scores are kept.

    Raises:
      ValueError: for a kernel with what it does not know of.
    """

    kernel: Callable[..., Array] | None = None

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> KeyValues:
        batch, _, _, d_model = memory.shape
        return super().keys(memory.reshape(batch, -1, d_model), context.of_documents(batch))

    def rows(self, x: Float[Array, "*rows D"], shared: KeyValues, context: Context):
        batch = shared.key.shape[0]
        flat = x.reshape(batch, -1, x.shape[-1])
        context = context.of_documents(batch)
        if self.kernel is None or context.capture:
            y, weights = super().rows(flat, shared, context)
            return y.reshape(x.shape), weights
        if self.dropout and not context.deterministic:
            raise ValueError("a kernel has no dropout on attention weights: set dropout to 0")
        (query,) = self._heads(flat, self.w_query, biases=self.b_query, active=context.active)
        query, added = self._placed(query, context.places(flat.shape[1], shared.key.shape[-2]))
        adds_values = self.positions is not None and self.positions.adds_values
        if added is not None or adds_values or self.weights is not softmax_weights:
            raise ValueError(
                "a kernel has no hard weights, and no positions that add to scores or values: leave it out, or take "
                "soft weights and rotary positions"
            )
        y = self._output(self.kernel(query, shared.key, shared.value, context.key_mask), context.active)
        return y.reshape(x.shape), None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        return super().flops(d_model, queries, keys)
