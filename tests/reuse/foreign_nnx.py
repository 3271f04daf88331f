"""An NNX project of its own that reverses sequences with the layers of flaxnmt; prints its losses as JSON."""

import json

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx import bridge

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.layers.block import Block
from flaxnmt.layers.context import Context, positions_of
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.layers.positions import sinusoids
from flaxnmt.models.encoder import EncoderLayer

D, SYMBOLS, LENGTH = 32, 8, 6


class Reverser(nnx.Module):
    """Logits [B, L, SYMBOLS] of the sequence read backwards."""

    def __init__(self, rngs):
        layer = EncoderLayer(
            attention=Block(MultiHeadAttention(D, heads=4), dropout=0.05),
            feed_forward=Block(FeedForward(D, 2 * D)),
        )
        x, context = jnp.ones((1, LENGTH, D)), Context()
        self.embed = nnx.Embed(SYMBOLS, D, rngs=rngs)
        # Parameters carry logical axes; without a mesh they stay whole.
        with nnx.use_eager_sharding(False):
            self.layer = bridge.lazy_init(bridge.ToNNX(layer, rngs=rngs), x, context)
            self.attention = bridge.lazy_init(
                bridge.ToNNX(MultiHeadAttention(D, heads=2), rngs=rngs), x, x, context
            )
        self.out = nnx.Linear(D, SYMBOLS, rngs=rngs)

    def __call__(self, tokens, deterministic=True):
        context = Context(deterministic=deterministic)
        x, _ = self.layer(self.embed(tokens) + sinusoids(positions_of(tokens.shape), D), context)
        return self.out(x + self.attention(x, x, context))


def train(steps=150):
    """The loss at every step."""
    model = Reverser(nnx.Rngs(params=0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, key):
        tokens = jax.random.randint(key, (32, LENGTH), 0, SYMBOLS)

        def loss(model):
            logits = model(tokens, deterministic=False)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, ::-1]).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    key = jax.random.key(0)
    return [
        float(value) for value in [step(model, optimizer, jax.random.fold_in(key, i)) for i in range(steps)]
    ]


if __name__ == "__main__":
    print(json.dumps(train()))
