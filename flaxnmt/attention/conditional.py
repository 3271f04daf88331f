"""Conditional attention: over the words of the t most relevant sentences (Trankova et al. 2024, section 3)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.attention.dispatch import conditional_attention
from flaxnmt.attention.distances import DistanceScores
from flaxnmt.attention.dot_product import attend, attention_scores
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.selection import Selection, own_sentences, select_sentences
from flaxnmt.attention.weights import Weights, softmax_weights
from flaxnmt.layers.active import if_any
from flaxnmt.layers.context import Context, KeyValues
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.sublayer import words_each
from flaxnmt.typing import Array, Bool, Count, Float, Int

DISPATCH_PAYS = 4
"""Sentences of a document over selected ones from which on dispatching is the faster form (measured on CPU)."""

MANY_WORDS = 2048
"""Words of a document, padding included, above which scores between all of them take too much memory: 128 MiB at 8 heads."""


def conditional_weights(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H N M K"],
    word_mask: Bool[Array, "B N M"],
    selection: Selection,
    keep: Bool[Array, "B H L t M"] | None = None,
    distances: DistanceScores | None = None,
    weights: Weights = softmax_weights,
) -> Float[Array, "B H L words"]:
    """softmax(q k^T / sqrt(K) + KeepTopT(relevance) M) per head over all words of a document (eq. 7), literally.

    A word that has no word to look at gets zeros. The form for reading and for tests: scores and a bias of all
    words to all words are in memory.

    Args:
      query: of the words that look, any number.
      key: of the words of each sentence.
      word_mask: False at padding.
      selection: the sentences that each word looks at.
      keep: False where a weight on word m of the i-th choice is dropped; the others are not scaled.
      distances: what is added to the scores.
      weights: from scores to weights.
    """
    batch, heads, sentences, words, size = key.shape
    chosen = selection.index[..., None] == jnp.arange(sentences)
    chosen = chosen & selection.valid[..., None]
    kept_score = jnp.where(chosen, selection.relevance[..., None], 0).sum(-2)
    seen = chosen.any(-2)[..., None] & word_mask[:, None, None]
    # Each sentence's score repeated over its words: the matrix M of eq. 6, without a product of -inf and 0.
    bias = jnp.repeat(kept_score, words, axis=-1)
    if distances is not None:
        bias = bias + distances.of_pairs()
    scores = attention_scores(query, key.reshape(batch, heads, -1, size), seen.reshape(bias.shape), bias)
    result = jnp.where(seen.reshape(bias.shape), weights(scores), 0)
    if keep is not None:
        kept = (chosen[..., None] & keep[..., None, :]).any(-3)
        result = jnp.where(kept.reshape(result.shape), result, 0)
    return result


def conditional_attention_dense(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H N M K"],
    value: Float[Array, "B H N M K"],
    word_mask: Bool[Array, "B N M"],
    selection: Selection,
    keep: Bool[Array, "B H L t M"] | None = None,
    distances: DistanceScores | None = None,
) -> Float[Array, "B H L K"]:
    """The values weighted by `conditional_weights`, whose arguments these are.

    `conditional_attention` computes the same from selected sentences alone.
    """
    weights = conditional_weights(query, key, word_mask, selection, keep, distances)
    return attend(weights, _in_line(value))


def _in_line(x: Float[Array, "B H N M K"]) -> Float[Array, "B H words K"]:
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


@struct.dataclass
class DocumentKeys(KeyValues):
    """Keys and values [B, H, N, M, K] of the words of a document, and the selector's keys of its sentences."""

    mask: Bool[Array, "B N M"]
    sentence_key: Float[Array, "B H N K"]


class ConditionalAttention(MultiHeadAttention, kw_only=True):
    """Multi-head attention in which each head of each word looks at the words of t sentences of its own choice.

    The relevance of a sentence is added to the scores of its words, which is how the selector learns; with
    t = 1 a softmax cannot see it, so that the selector gets no gradient unless `always_keep_own`. Rows may have
    any shape in which they stand in the order of their documents: [B, N, M, D] or [B * N, T, D].

    As a module by itself, over words x [B, N, M, D] of documents and their mask [B, N, M]:
    `ConditionalAttention(512, 8, t=4, sentence_encoder=Source2Token(512))(x, x, Context(key_mask=mask))`.

    Attributes:
      d_model, heads, dropout, dtype: as in `MultiHeadAttention`, whose parameters these are, so that those of a
        sentence's attention serve; `selector_query` and `selector_key` are added. Dropout has one bit for each
        (head, word, choice, word of the chosen sentence).
      t: sentences that a word looks at.
      sentence_encoder: a module from words [B, N, M, D] and their mask to [B, N, D], such as `Source2Token`.
      always_keep_own: a word looks at its own sentence, and at the t best of the others; `rows` then takes the
        rows of whole documents, as many for each sentence.
      dispatched: compute the scores of selected sentences only; if not, those of all words (the literal eq. 7). None
        takes whichever is faster: to sort words by sentence pays above `DISPATCH_PAYS` t sentences; and the first above
        `MANY_WORDS`. Hard weights, and positions that add to values, have the dense form alone.
    """

    t: int
    sentence_encoder: nn.Module
    always_keep_own: bool = False
    dispatched: bool | None = None

    def setup(self):
        super().setup()
        if self.dispatched and self._dense_only:
            raise ValueError(
                "dispatched attention has no hard weights, and no positions that add to values: leave dispatched out, "
                "or take soft weights and positions of keys alone"
            )
        shape = (self.d_model, self.heads, self.d_model // self.heads)
        inward = partitioned(projection(self.d_model, self.d_model), "embed", "heads", "kv")
        self.w_selector_query = self.param("selector_query", inward, shape)
        self.w_selector_key = self.param("selector_key", inward, shape)

    def _word_keys(self, memory: Float[Array, "B N M D"], context: Context) -> KeyValues:
        """Keys and values [B, H, N, M, K] of the words of every sentence."""
        batch, sentences, words, d_model = memory.shape
        flat = MultiHeadAttention.keys(self, memory.reshape(batch, -1, d_model), context.of_documents(batch))
        return jax.tree.map(lambda x: x.reshape(*x.shape[:2], sentences, words, x.shape[-1]), flat)

    def keys(self, memory: Float[Array, "B N M D"], context: Context) -> DocumentKeys:
        mask = jnp.ones(memory.shape[:-1], bool) if context.key_mask is None else context.key_mask
        words = self._word_keys(memory, context)
        (sentence_key,) = self._heads(self.sentence_encoder(memory, mask), self.w_selector_key)
        return DocumentKeys(words.key, words.value, mask, sentence_key)

    @property
    def _dense_only(self) -> bool:
        adds = self.positions is not None and self.positions.adds_values
        return adds or self.weights is not softmax_weights

    def _dispatches(self, sentences: Count, words: Count) -> bool | Bool[Array, " B"]:
        """Whether to do so in a document of so many sentences, and words in all of them."""
        if self._dense_only:
            return False
        if self.dispatched is not None:
            return self.dispatched
        return (sentences > DISPATCH_PAYS * self.t) | (words > MANY_WORDS)

    def _own(self, rows: int, sentences: int) -> Int[Array, "1 L"] | None:
        return own_sentences(rows, sentences)[None] if self.always_keep_own else None

    def _look(
        self, x: Float[Array, "B L D"], shared: Any, selection: Selection, context: Context
    ) -> Float[Array, "B L D"]:
        """Eq. 7 and the output projection, for any selection and shared keys with `key`, `value` and `mask`."""
        (query,) = self._heads(x, self.w_query, biases=self.b_query, active=context.active)
        sentences, words = shared.mask.shape[1:]
        places = context.places(x.shape[1], sentences * words)

        def look(query, shared, selection, keep):
            query, distances = self._placed(query, places)
            key, value, mask = shared.key, shared.value, shared.mask
            if self._dispatches(sentences, sentences * words):
                return conditional_attention(query, key, value, mask, selection, keep, distances)
            weights = conditional_weights(query, key, mask, selection, keep, distances, self.weights)
            return self._weighted(weights, [_in_line(value)], places)

        if context.deterministic or not self.dropout:
            y = if_any(context.active, look, query, shared, selection, None)
        else:
            ones = jnp.ones((*selection.index.shape, words))
            keep = self.weights_dropout(ones, deterministic=False) > 0
            y = look(query, shared, selection, keep) / (1 - self.dropout)
        return self._output(y, context.active)

    def rows(self, x: Float[Array, "*rows D"], shared: DocumentKeys, context: Context):
        """(an output of the shape of x, `Selection` of the L rows of each document or None)."""
        batch, sentences, _ = shared.mask.shape
        flat = x.reshape(batch, -1, x.shape[-1])
        context = context.of_documents(batch)
        (selector,) = self._heads(flat, self.w_selector_query, active=context.active)
        own = self._own(flat.shape[1], sentences)
        selection = select_sentences(selector, shared.sentence_key, shared.mask.any(-1), self.t, own)
        y = self._look(flat, shared, selection, context)
        return y.reshape(x.shape), selection if context.capture else None

    def _counted(self, keys: Count, sentences: Count, dispatched: Count, dense: Count) -> Count:
        """Work of the form that so many words and sentences take; of a batch, whatever form its padded shape takes."""
        chosen = self._dispatches(sentences, keys)
        if isinstance(sentences, int):
            return dispatched if chosen else dense
        return jnp.where(chosen, dispatched, dense)

    def _words_seen(self, keys: Count, sentences: Count) -> Count:
        """Words whose scores each word needs."""
        kept = self.t + self.always_keep_own
        kept = min(kept, sentences) if isinstance(sentences, int) else jnp.minimum(kept, sentences)
        return self._counted(keys, sentences, kept * words_each(keys, sentences), keys)

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        """As of every sub-layer, for one document whose `keys` words stand in `sentences` sentences.

        The dispatched form without the padding of its blocks.
        """
        encoding = self.sentence_encoder.flops(sentences, words_each(keys, sentences))
        shared = encoding + self.key_flops(d_model, keys) + 2 * sentences * d_model**2
        rows = queries * (
            6 * d_model**2 + 2 * sentences * d_model + 4 * self._words_seen(keys, sentences) * d_model
        )
        return shared, rows + self._position_flops(d_model, queries, keys)
