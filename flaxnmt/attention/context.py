"""Context attention: from every word to the encodings of the sentences around it (Trankova et al. 2024, section 2)."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.selection import own_sentences
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.sublayer import words_each
from flaxnmt.typing import Array, Bool, Count, Float, PyTree


def other_sentences(rows: int, sentences: int) -> Bool[Array, "Q N"]:
    """True where a row stands in another sentence; rows are those of `own_sentences`."""
    return own_sentences(rows, sentences)[:, None] != jnp.arange(sentences)


@struct.dataclass
class SentenceKeys(KeyValues):
    """Keys and values [B, H, N, K] of the sentences of a document; `mask` is False for those without words."""

    mask: Bool[Array, "B N"]


class ContextAttention(MultiHeadAttention, kw_only=True):
    """Multi-head attention whose keys and values are one encoding a sentence (Trankova et al. 2024, fig. 1).

    A block of its own, in the encoder over the layer's own rows, in the decoder over the encoder's output. Its
    rows may have any shape in which they stand in the order of their documents: [B, N, M, D] in the encoder,
    [B * N, T, D] or, for K hypotheses a sentence, [B * N, K, D] in the decoder. A row that has no sentence to
    look at, in an empty document or alone without `own`, gets zeros.

    Attributes:
      d_model, heads, dropout, dtype: as in `MultiHeadAttention`, whose parameters these are.
      sentence_encoder: a module from words [B, N, M, D] and their mask to [B, N, D], such as `Source2Token`.
      own: whether a word may look at the encoding of its own sentence. If not, `rows` takes the rows of whole
        documents, as many for each sentence.
    """

    # Keys are those of sentences, not of the rows of the memory.
    gates_keys: ClassVar[bool] = False

    sentence_encoder: nn.Module
    own: bool = True

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> SentenceKeys:
        words = jnp.ones(memory.shape[:-1], bool) if context.key_mask is None else context.key_mask
        encodings = self.sentence_encoder(memory, words)
        own = super().keys(encodings, context)
        return SentenceKeys(own.key, own.value, words.any(-1))

    def rows(self, x: Float[Array, "*rows D"], shared: SentenceKeys, context: Context):
        """(an output of the shape of x, weights [B, H, Q, N] of the Q rows of each document or None)."""
        flat = x.reshape(shared.mask.shape[0], -1, x.shape[-1])
        seen = shared.mask[:, None]
        if not self.own:
            seen = seen & other_sentences(flat.shape[1], shared.mask.shape[1])
        over = context.of_documents(len(flat)).replace(visible=seen, key_mask=None, key_positions=None)
        y, weights = super().rows(flat, shared, over)
        y = jnp.where(seen.any(-1, keepdims=True), y, 0)
        return y.reshape(x.shape), None if weights is None else jnp.where(seen[:, None], weights, 0)

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        """As of every sub-layer, for one document whose `keys` words stand in `sentences` sentences."""
        encoding = self.sentence_encoder.flops(sentences, words_each(keys, sentences))
        shared, rows = super().flops(d_model, queries, sentences)
        return encoding + shared, rows


@struct.dataclass
class WordsAndSentences:
    """Something of the words of a sentence, and the same of the sentences of its document."""

    words: PyTree
    sentences: PyTree

    def of_words(self, change: Callable) -> "WordsAndSentences":
        """With that of the words changed, leaf by leaf."""
        return self.replace(words=jax.tree.map(change, self.words))


class ContextHeads(MultiHeadAttention, kw_only=True):
    """Multi-head attention over the words of a sentence with additional heads over the sentences around it.

    The second form of context in Trankova et al. 2024, section 2. One output projection of all heads, side by
    side, is the sum of the projections of the two kinds, so the heads over words keep the parameters, and the
    names, of an attention without context.

    Attributes:
      d_model, heads, dropout, dtype: of the heads over words, as in `MultiHeadAttention`.
      context: the additional heads.
    """

    context: ContextAttention

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> WordsAndSentences:
        whole = context.replace(active=None, key_gate=None)
        return WordsAndSentences(super().keys(memory, context), self.context.keys(memory, whole))

    def rows(self, x: Float[Array, "B N Q D"], shared: WordsAndSentences, context: Context):
        y, words = super().rows(x, shared.words, context)
        z, sentences = self.context.rows(x, shared.sentences, context)
        return y + z, WordsAndSentences(words, sentences) if context.capture else None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        """As of every sub-layer, for one document whose `keys` words stand in `sentences` sentences."""
        shared, rows = super().flops(d_model, queries, keys, sentences)
        context_shared, context_rows = self.context.flops(d_model, queries, keys, sentences)
        return shared + context_shared, rows + context_rows
