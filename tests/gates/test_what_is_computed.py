"""What sub-layers leave out of the rows that are not active: products and scores say when they run."""

import math
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from cases import slow_but

from flaxnmt.attention import conditional, multihead
from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.source2token import Source2Token
from flaxnmt.encoders import convs2s, static_expansion
from flaxnmt.encoders.convs2s import GatedConvolution
from flaxnmt.encoders.static_expansion import StaticExpansion
from flaxnmt.layers import feed_forward
from flaxnmt.layers.active import FEWEST
from flaxnmt.layers.context import Context
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.sublayer import SubLayer

D, H = 8, 2
SHAPE = 4, 32
ROWS = math.prod(SHAPE)
X = jax.random.normal(jax.random.key(0), (*SHAPE, D))
NONE, FEW = jnp.zeros(SHAPE, bool), jnp.zeros(SHAPE, bool).at[1, 3].set(True).at[2, 30].set(True)

BY_ROW = {
    "attention": (MultiHeadAttention(D, H), multihead),
    "feed-forward": (FeedForward(D, 2 * D), feed_forward),
    "convolution": (GatedConvolution(D), convs2s),
    "static expansion": (StaticExpansion(D, 4), static_expansion),
}


def watch(monkeypatch, module: ModuleType, name: str) -> list[int]:
    """Rows of the first argument at each time that the function of this name has run."""
    function, seen = getattr(module, name), []

    def watched(x, *args):
        rows = math.prod(x.shape[:-1])
        jax.debug.callback(lambda: seen.append(rows))
        return function(x, *args)

    monkeypatch.setattr(module, name, watched)
    return seen


def run(sublayer: SubLayer, seen: list[int], active, x=X) -> set[int]:
    """What was seen of the rows of a sub-layer over themselves, as much is active as said."""
    params = jax.jit(sublayer.init)(jax.random.key(1), x, x, Context())
    shared = jax.jit(lambda: sublayer.apply(params, x, Context(), method="keys"))()
    jax.effects_barrier()
    seen.clear()
    context = Context(active=active)
    jax.block_until_ready(jax.jit(lambda: sublayer.apply(params, x, shared, context, method="rows"))())
    jax.effects_barrier()
    return set(seen)


@pytest.mark.parametrize("kind", slow_but(["feed-forward", "static expansion"], BY_ROW))
def test_products_are_of_active_rows(monkeypatch, kind):
    sublayer, module = BY_ROW[kind]
    seen = watch(monkeypatch, module, "linear")
    assert run(sublayer, seen, NONE) == set()
    assert run(sublayer, seen, FEW) == {max(ROWS // 16, FEWEST)}
    assert run(sublayer, seen, ~FEW) == {ROWS}


def test_keys_and_values_are_of_active_rows(monkeypatch):
    attention = MultiHeadAttention(D, H)
    seen = watch(monkeypatch, multihead, "linear")
    params = jax.jit(attention.init)(jax.random.key(1), X, X, Context())
    for active, expected in ((NONE, set()), (FEW, {max(ROWS // 16, FEWEST)})):
        jax.effects_barrier()
        seen.clear()
        context = Context(active=active)
        keys = jax.jit(lambda context=context: attention.apply(params, X, context, method="keys"))()
        jax.block_until_ready(keys)
        jax.effects_barrier()
        assert set(seen) == expected


@pytest.mark.parametrize(
    "sublayer, module, name",
    [
        (MultiHeadAttention(D, H), multihead, "attention_scores"),
        (
            ConditionalAttention(D, H, t=1, sentence_encoder=Source2Token(D)),
            conditional,
            "conditional_weights",
        ),
    ],
)
def test_nobody_is_looked_at_where_no_row_is_active(monkeypatch, sublayer, module, name):
    x = X[:, None] if module is conditional else X
    seen = watch(monkeypatch, module, name)
    for active, looked in ((NONE, False), (FEW, True)):
        assert bool(run(sublayer, seen, active.reshape(x.shape[:-1]), x)) == looked
