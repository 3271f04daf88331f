"""A Linen project of its own that reverses sequences with the layers of flaxnmt; prints its losses as JSON.

python foreign_linen.py [--unboxed]
"""

import json
import sys

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.encoders.lstm import LSTM
from flaxnmt.encoders.static_expansion import StaticExpansion
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context, positions_of
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.positions import sinusoids
from flaxnmt.models.encoder import EncoderLayer

D, SYMBOLS, LENGTH = 32, 8, 6


class Reverser(nn.Module):
    """Logits [B, L, SYMBOLS] of the sequence read backwards."""

    @nn.compact
    def __call__(self, tokens, mask, deterministic=True):
        context = Context(query_mask=mask, key_mask=mask, deterministic=deterministic)
        x = nn.Embed(SYMBOLS, D)(tokens) + sinusoids(positions_of(tokens.shape), D)
        layer = EncoderLayer(
            attention=Block(MultiHeadAttention(D, heads=4), dropout=0.05),
            feed_forward=Block(FeedForward(D, 2 * D), norm="post"),
        )
        x, _ = layer(x, context)
        x = x + MultiHeadAttention(D, heads=2)(x, x, context)
        x = x + FeedForward(D, 2 * D)(x, context=context)
        # Encoders beside each other, as in a model of several.
        x = x + StaticExpansion(D, vectors=6)(x, context=context) + LSTM(D)(x, context=context)
        return nn.Dense(SYMBOLS)(x)


def reversed_batch(key, rows=32):
    """Tokens, the same backwards, and a mask that hides no position."""
    tokens = jax.random.randint(key, (rows, LENGTH), 0, SYMBOLS)
    return tokens, tokens[:, ::-1], jnp.ones(tokens.shape, bool)


def train(boxed=True, steps=150):
    """The loss at every step; parameters as `init` returns them (with logical axes), or unboxed."""
    model, optimizer, key = Reverser(), optax.adam(3e-3), jax.random.key(0)
    tokens, _, mask = reversed_batch(key)
    params = jax.jit(model.init)(key, tokens, mask)["params"]
    params = params if boxed else nn.unbox(params)

    @jax.jit
    def step(params, opt_state, key):
        tokens, labels, mask = reversed_batch(key)

        def loss(params):
            logits = model.apply({"params": params}, tokens, mask, deterministic=False, rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    opt_state, losses = optimizer.init(params), []
    for i in range(steps):
        params, opt_state, value = step(params, opt_state, jax.random.fold_in(key, i))
        losses.append(value)
    return [float(value) for value in losses]


if __name__ == "__main__":
    print(json.dumps(train(boxed="--unboxed" not in sys.argv)))
