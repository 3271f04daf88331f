"""Multi-head attention (Vaswani et al. 2017, section 3.2.2)."""

from functools import reduce
from operator import add
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.attention.distances import DistanceScores
from flaxnmt.attention.dot_product import attend, attention_scores
from flaxnmt.attention.relative import AttentionPositions
from flaxnmt.attention.weights import Weights, softmax_weights
from flaxnmt.layers.active import on_active
from flaxnmt.layers.context import Context, KeyValues, Places
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.linear import biased, linear
from flaxnmt.layers.segments import Parts, Segments, slots_of
from flaxnmt.layers.sublayer import SubLayer, words_each
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float


def normalised(
    x: Float[Array, "*B D"], norm: tuple[Float[Array, "H K"], Float[Array, "H K"]]
) -> Float[Array, "*B D"]:
    """Layer normalisation by a (scale, bias) that is stored by head, computed in float32."""
    scale, bias = (of_heads.ravel() for of_heads in norm)
    return (jax.nn.standardize(x.astype(jnp.float32), epsilon=1e-6) * scale + bias).astype(x.dtype)


def _of_slots(of_pairs: Array | None, some: slice) -> Array | None:
    """A mask or a bias [..., L] of some slots alone."""
    return None if of_pairs is None else of_pairs[..., some]


class MultiHeadAttention(SubLayer):
    """softmax(Q K^T / sqrt(K)) V over H heads of size D / H, and the output projection.

    As a module by itself: `MultiHeadAttention(d_model=512, heads=8)(x, memory, Context(key_mask=mask))`.

    Attributes:
      d_model: D.
      heads: H; divides D.
      dropout: rate on the attention weights.
      biases: add one in each projection.
      dtype: of the computation; parameters and softmax are float32.
      positions: what distances of keys from queries change, in attention of rows over themselves, such as
        `flaxnmt.attention.rotary.RotaryPositions`; None for nothing.
      weights: from scores to weights, see `flaxnmt.attention.weights`.
      normed_keys: keys and values of each row are layer-normalised, in front of the gate that closes them: a norm on
        every gated output, which is the first of the tricks of Bapna et al. 2020 and not in their eq. 12.
    """

    gates_keys: ClassVar[bool] = True

    d_model: int
    heads: int
    dropout: float = 0.0
    biases: bool = False
    dtype: Any = jnp.float32
    positions: AttentionPositions | None = None
    weights: Weights = softmax_weights
    normed_keys: bool = False

    def setup(self):
        if self.d_model % self.heads:
            raise ValueError(f"{self.heads} heads do not divide the model dimension {self.d_model}")
        shape = (self.d_model, self.heads, self.d_model // self.heads)
        inward = partitioned(projection(self.d_model, self.d_model), "embed", "heads", "kv")
        outward = partitioned(projection(self.d_model, self.d_model), "heads", "kv", "embed")
        self.w_query = self.param("query", inward, shape)
        self.w_key = self.param("key", inward, shape)
        self.w_value = self.param("value", inward, shape)
        self.w_out = self.param("out", outward, shape[1:] + shape[:1])
        self.b_query = self.b_keys = self.b_out = ()
        if self.biases:
            zeros = partitioned(nn.initializers.zeros, "heads", "kv")
            self.b_query = (self.param("query_bias", zeros, shape[1:]),)
            self.b_keys = tuple(self.param(f"{name}_bias", zeros, shape[1:]) for name in ("key", "value"))
            zeros = partitioned(nn.initializers.zeros, "activation")
            self.b_out = (self.param("out_bias", zeros, shape[:1]),)
        self.key_norms = ()
        if self.normed_keys:
            ones, zeros = (
                partitioned(of, "heads", "kv") for of in (nn.initializers.ones, nn.initializers.zeros)
            )
            self.key_norms = tuple(
                (
                    self.param(f"{name}_norm_scale", ones, shape[1:]),
                    self.param(f"{name}_norm_bias", zeros, shape[1:]),
                )
                for name in ("key", "value")
            )
        self.weights_dropout = Dropout(self.dropout)

    def _heads(
        self,
        x: Float[Array, "*B L D"],
        *kernels: Float[Array, "D H K"],
        biases: tuple[Float[Array, "H K"], ...] = (),
        norms: tuple[tuple[Float[Array, "H K"], Float[Array, "H K"]], ...] = (),
        active: Bool[Array, "*B L"] | None = None,
    ) -> tuple[Float[Array, "*B H L K"], ...]:
        """Projections of x, normalised over all heads together where there are `norms`; zeros where not active."""
        matrices = [kernel.astype(self.dtype).reshape(self.d_model, -1) for kernel in kernels]
        added = [bias.astype(self.dtype).ravel() for bias in biases]

        def project(x):
            rows = [linear(x, matrix) for matrix in matrices]
            rows = list(map(biased, rows, added)) if added else rows
            return list(map(normalised, rows, norms)) if norms else rows

        rows = on_active(project, x.astype(self.dtype), active)
        shape = x.shape[:-1] + kernels[0].shape[1:]
        heads = [jnp.swapaxes(y.reshape(shape), -3, -2) for y in rows]
        return tuple(constrain(y, "batch", ..., "heads", "length", "kv") for y in heads)

    def _output(
        self, heads: Float[Array, "*B H Q K"], active: Bool[Array, "*B Q"] | None = None
    ) -> Float[Array, "*B Q D"]:
        """The output projection, zeros where a row is not active."""
        matrix = self.w_out.astype(self.dtype).reshape(-1, self.d_model)
        rows = jnp.swapaxes(heads, -3, -2)
        rows = rows.reshape(*rows.shape[:-2], -1)

        def project(rows):
            y = linear(rows, matrix)
            return biased(y, self.b_out[0].astype(self.dtype)) if self.b_out else y

        y = on_active(project, rows, active)
        return constrain(y, "batch", ..., "length", "activation")

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> KeyValues:
        kernels = self.w_key, self.w_value
        key, value = self._heads(
            memory, *kernels, biases=self.b_keys, norms=self.key_norms, active=context.active
        )
        if self.positions is not None:
            key = self.positions.keys(key, context.places(key.shape[-2], key.shape[-2]).key)
        keys = KeyValues(key, value)
        if context.key_gate is None:
            return keys
        gate = context.key_gate[..., None, :, None]
        return jax.tree.map(lambda y: y * gate.astype(y.dtype), keys)

    def _placed(
        self, query: Float[Array, "*B H Q K"], places: Places
    ) -> tuple[Float[Array, "*B H Q K"], DistanceScores | None]:
        """Queries as they meet keys, and what positions add to the scores."""
        if self.positions is None:
            return query, None
        return self.positions.queries(query, places.query), self.positions.scores(query, places)

    def _weighted(
        self, weights: Float[Array, "*B H Q L"], values: list[Float[Array, "*B H _ K"]], places: Places
    ) -> Float[Array, "*B H Q K"]:
        """The weighted sums of the values, which may lie in several arrays, and what positions add to them."""
        sums = (
            attend(weights[..., some], value) for some, value in zip(slots_of(values), values, strict=True)
        )
        y = reduce(add, sums)
        return y if self.positions is None else self.positions.outputs(y, weights, places)

    def rows(self, x: Float[Array, "*B Q D"], shared: KeyValues | Segments, context: Context):
        """As of every sub-layer; the shared part may be a cache in segments."""
        (query,) = self._heads(x, self.w_query, biases=self.b_query, active=context.active)
        segments = shared if isinstance(shared, Segments) else Segments((shared,))
        mask = context.attention_mask(query.shape[-2], segments.length)
        everywhere = context.places(query.shape[-2], segments.length)

        def look(parts: Parts):
            slots = slots_of([part.key for part in parts])
            places = everywhere.first(slots[-1].stop)
            placed, relative = self._placed(query, places)
            biases = [] if context.bias is None else [context.bias[..., : slots[-1].stop]]
            biases += [] if relative is None else [relative.of_pairs()]
            bias = sum(biases) if biases else None
            scores = [
                attention_scores(placed, part.key, _of_slots(mask, some), _of_slots(bias, some))
                for some, part in zip(slots, parts, strict=True)
            ]
            weights = self.weights(jnp.concatenate(scores, axis=-1))
            dropped = self.weights_dropout(weights, context.deterministic)
            y = self._weighted(dropped, [part.value for part in parts], places)
            return y, weights if context.capture else None

        y, weights = segments.over_used(look, context.active)
        return self._output(y, context.active), weights

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        seen = words_each(keys, sentences)
        rows = 4 * queries * d_model * (d_model + seen)
        return self.key_flops(d_model, keys), rows + self._position_flops(d_model, queries, seen)

    def key_flops(self, d_model: int, keys: Count) -> Count:
        return 4 * keys * d_model**2

    def _position_flops(self, d_model: int, queries: Count, keys: Count) -> Count:
        return 0 if self.positions is None else self.positions.flops(d_model, queries, keys)
