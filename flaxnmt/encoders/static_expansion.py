"""Static Expansion: a sequence is spread over learned vectors and gathered again (Hu et al. 2023; Hu et al. 2022).

N is the number of expansion vectors here, not of sentences.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxnmt.layers.active import on_active
from flaxnmt.layers.context import Context
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.linear import linear
from flaxnmt.layers.sublayer import SubLayer, check_same_rows
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float

EPSILON = 1e-9
COEFFICIENTS = (6, 6, 12, 8, 12, 8, 6, 6, 12, 8, 12, 8)
"""Expansion vectors of each layer (Hu et al. 2023, section 4); repeated in deeper stacks."""

Enrichment = Literal["shared_projection", "shared_vectors", "none"]

PARAMETERS = {
    "shared_projection": (("query_vectors", "bias_vectors"), ("enrichment",)),
    "shared_vectors": (("vectors",), ("query_enrichment", "bias_enrichment")),
    "none": (("query_vectors", "bias_vectors"), ()),
}
"""Names of the vectors and matrices of each enrichment; every table goes through every matrix."""


def normalised(z: Float[Array, "*B R C"], epsilon: float = EPSILON) -> Float[Array, "*B R C"]:
    """Psi(Z, epsilon): each row divided by its sum and epsilon; a row of zeros stays one. Z is not negative."""
    return z / (z.sum(-1, keepdims=True) + epsilon)


def enriched(
    vectors: Float[Array, "N D"],
    x: Float[Array, "*B L D"],
    *projections: Float[Array, "D D"],
    mask: Bool[Array, "*B L"] | None = None,
    by_length: bool = False,
) -> list[Float[Array, "*B N D"]]:
    """E X^T (X W) / sqrt(D) for each W: expansion vectors that know the sequence.

    With `by_length` the sum over the sequence is divided by the number of its rows that are not padding.
    """
    mask = jnp.ones(x.shape[:-1], bool) if mask is None else mask
    x = jnp.where(mask[..., None], x, 0)
    seen = jnp.einsum("nd,...ld->...nl", vectors, x) @ x / x.shape[-1] ** 0.5
    if by_length:
        seen = seen / jnp.maximum(mask.sum(-1), 1)[..., None, None].astype(seen.dtype)
    return [seen @ matrix for matrix in projections]


def expand(
    scores: Float[Array, "*B N L"],
    values: tuple[Float[Array, "*B L D"], Float[Array, "*B L D"]],
    bias: Float[Array, "*#B N D"],
    mask: Bool[Array, "*B L"] | None = None,
    epsilon: float = EPSILON,
) -> tuple[Float[Array, "*B N D"], Float[Array, "*B N D"]]:
    """F_i = Psi(ReLU(+-L)) V_i + E_B, the forward expansion (eq. 2 and 3); padding is no key."""
    if mask is not None:
        scores = jnp.where(mask[..., None, :], scores, 0)
    return tuple(
        normalised(jax.nn.relu(sign * scores), epsilon) @ value + bias for sign, value in zip((1, -1), values)
    )


def gather(
    scores: Float[Array, "*B N L"],
    expanded: tuple[Float[Array, "*B N D"], Float[Array, "*B N D"]],
    epsilon: float = EPSILON,
) -> tuple[Float[Array, "*B L D"], Float[Array, "*B L D"]]:
    """B_i = Psi(ReLU(+-L^T)) F_i, the backward expansion (eq. 4 and 5)."""
    back = jnp.swapaxes(scores, -1, -2)
    return tuple(normalised(jax.nn.relu(sign * back), epsilon) @ one for sign, one in zip((1, -1), expanded))


def static_expansion(
    key: Float[Array, "*B L D"],
    values: tuple[Float[Array, "*B L D"], Float[Array, "*B L D"]],
    selector: Float[Array, "*B L D"],
    queries: Float[Array, "*#B N D"],
    bias: Float[Array, "*#B N D"],
    mask: Bool[Array, "*B L"] | None = None,
    epsilon: float = EPSILON,
) -> Float[Array, "*B L D"]:
    """sigma(S) B_1 + (1 - sigma(S)) B_2 over L = E_Q K^T / sqrt(D) (Hu et al. 2023, eq. 1 to 5).

    L and what it weighs are float32, the result has the dtype of S.

    Args:
      key: K.
      values: V_1 and V_2.
      selector: S.
      queries: E_Q, the same for all sequences or enriched.
      bias: E_B.
      mask: False at padding, which no other row sees.
      epsilon: added to the sums of rows.
    """
    if mask is not None:
        # Weights of zero would not hide what is no number.
        key, first, second = (jnp.where(mask[..., None], rows, 0) for rows in (key, *values))
        values = first, second
    scores = expansion_scores(queries, key)
    gathered = gather(scores, expand(scores, values, bias, mask, epsilon), epsilon)
    return mixed(selector, *gathered).astype(selector.dtype)


def expansion_scores(queries: Float[Array, "*#B N D"], key: Float[Array, "*B L D"]) -> Float[Array, "*B N L"]:
    """L = E_Q K^T / sqrt(D) (eq. 1), float32."""
    scores = jnp.einsum("...nd,...ld->...nl", queries, key, preferred_element_type=jnp.float32)
    return scores / key.shape[-1] ** 0.5


def mixed(
    selector: Float[Array, "*B L D"], first: Float[Array, "*B L D"], second: Float[Array, "*B L D"]
) -> Float[Array, "*B L D"]:
    """sigma(S) B_1 + (1 - sigma(S)) B_2."""
    share = jax.nn.sigmoid(selector)
    return share * first + (1 - share) * second


@struct.dataclass
class Expanded:
    """The shared part: scores L and the forward expansion."""

    scores: Float[Array, "*B N L"]
    expanded: tuple[Float[Array, "*B N D"], Float[Array, "*B N D"]]


class StaticExpansion(SubLayer):
    """`static_expansion` with its parameters: K, V_1, V_2, S are linear maps of the rows, E_Q and E_B are enriched.

    Enrichment, whose equation is damaged in the published text, is one of two readings: `shared_projection` has
    vectors of its own for queries and biases and one W for both, `shared_vectors` one set of vectors and a W each;
    `none` leaves the vectors as they are (Hu et al. 2022). Dropout lies on L, F_i and B_i. A layer of the paper is this in
    a pre-norm `Block`, without a feed-forward; `flaxnmt.models.build.encoder` makes stacks, with `COEFFICIENTS`.

    Attributes:
      d_model: D.
      vectors: N, the expansion coefficient.
      enrichment: of the vectors by the sequence.
      by_length: divide the enrichment by the length of the sequence, with which it grows.
      dropout: rate on scores and on what they sum.
      dtype: of the computation; parameters and scores are float32.
    """

    d_model: int
    vectors: int
    enrichment: Enrichment = "shared_projection"
    by_length: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        d_model = self.d_model
        if self.vectors < 1:
            raise ValueError(f"{self.vectors} expansion vectors: give at least 1")
        if self.enrichment not in PARAMETERS:
            raise ValueError(
                f"no enrichment is called {self.enrichment!r}; there are {', '.join(PARAMETERS)}"
            )
        square = partitioned(projection(d_model, d_model), "embed", "mlp")
        zeros = partitioned(nn.initializers.zeros, "mlp")
        self.maps = {
            name: (
                self.param(f"w_{name}", square, (d_model, d_model)),
                self.param(f"b_{name}", zeros, (d_model,)),
            )
            for name in ("key", "first", "second", "selector")
        }
        tables, projections = PARAMETERS[self.enrichment]
        table = partitioned(projection(self.vectors, d_model), None, "embed")
        self.tables = [self.param(name, table, (self.vectors, d_model)) for name in tables]
        self.projections = [self.param(name, square, (d_model, d_model)) for name in projections]
        self.scores_dropout, self.sums_dropout = Dropout(self.dropout), Dropout(self.dropout)

    def _linear(self, x: Float[Array, "*B L D"], name: str) -> Float[Array, "*B L D"]:
        weights, bias = (parameter.astype(self.dtype) for parameter in self.maps[name])
        return linear(x, weights) + bias

    def _vectors(self, x: Float[Array, "*B L D"], mask: Bool[Array, "*B L"] | None):
        """E_Q and E_B, [N, D] or of each sequence [*B, N, D]."""
        tables, projections = (
            [parameter.astype(self.dtype) for parameter in parameters]
            for parameters in (self.tables, self.projections)
        )
        if not projections:
            return tables
        return [
            vectors
            for table in tables
            for vectors in enriched(table, x, *projections, mask=mask, by_length=self.by_length)
        ]

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> Expanded:
        x, mask = memory.astype(self.dtype), context.key_mask
        # Weights of zero would not hide what is no number.
        x = x if mask is None else jnp.where(mask[..., None], x, 0)
        queries, bias = self._vectors(x, mask)
        scores = expansion_scores(queries, self._linear(x, "key"))
        scores = self.scores_dropout(scores, context.deterministic)
        values = self._linear(x, "first"), self._linear(x, "second")
        expanded = expand(scores, values, bias, mask)
        return Expanded(scores, self._dropped(expanded, context))

    def rows(self, x: Float[Array, "*B Q D"], shared: Expanded, context: Context):
        check_same_rows(self, x, shared.scores.shape[-1])
        first, second = self._dropped(gather(shared.scores, shared.expanded), context)
        selector = on_active(
            lambda rows: self._linear(rows, "selector"), x.astype(self.dtype), context.active
        )
        y = mixed(selector, first, second).astype(self.dtype)
        return constrain(y, "batch", ..., "length", "activation"), None

    def _dropped(self, pair, context: Context):
        return tuple(self.sums_dropout(one.astype(self.dtype), context.deterministic) for one in pair)

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        # L, two expansions forward, two backward; enrichment goes over the sequence twice for each table of vectors.
        spread = 2 * self.vectors * d_model
        tables, projections = map(len, PARAMETERS[self.enrichment])
        enrichment = 2 * tables * spread * keys + 2 * sentences * spread * d_model if projections else 0
        shared = 6 * keys * d_model**2 + 3 * spread * keys + enrichment
        return shared, 2 * queries * d_model**2 + 2 * spread * queries
