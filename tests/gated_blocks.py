"""Gated blocks of a few rows, their parameters and references, for the tests of gates."""

import gates_reference as slow
import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.context import ContextAttention, ContextHeads
from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.source2token import MeanPooling, MultiDimensionalSource2Token, Source2Token
from flaxnmt.encoders.fnet import FourierMixing
from flaxnmt.encoders.static_expansion import StaticExpansion
from flaxnmt.gates.block import GatedBlock
from flaxnmt.gates.control import control_flops
from flaxnmt.layers.context import Context
from flaxnmt.layers.feed_forward import FeedForward
from flaxnmt.sharding import unbox

B, Q, D, H, F, HIDDEN = 2, 5, 6, 2, 8, 3
# Work of a gated attention on a row that another one does not have: its control network, or two; a norm of its output.
CONTROL, NORM = control_flops(D, HIDDEN, 1), 7 * D
X, UPSTREAM = np.random.default_rng(0).normal(size=(2, B, Q, D))
MASK = np.asarray([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)
SOFT = Context(query_mask=jnp.asarray(MASK), key_mask=jnp.asarray(MASK), deterministic=False)
HARD = SOFT.replace(deterministic=True)


def make(*sublayers, **options):
    return GatedBlock(D, sublayers, HIDDEN, **options)


def attention_block(normed_keys=False, biases=False, **options):
    return make(MultiHeadAttention(D, H, normed_keys=normed_keys, biases=biases), **options)


def feed_forward_block(parts=2, **options):
    return make(*(FeedForward(D, F // parts, parts=parts) for _ in range(parts)), **options)


def random_params(module, seed=6, x=X):
    """Float64 parameters with which some gates are open and some are closed."""
    rng = np.random.default_rng(seed)
    context = HARD if x is X else Context()
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(x), context)["params"]
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(size=leaf.shape) + path[-1].key.endswith("scale"), unbox(shapes)
    )


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def run(module, params, x, context, memory=None):
    def both(block, x):
        shared = None if memory is None else block.keys(memory, context)
        return block(x, context, shared)

    return module.apply({"params": params}, x, method=both)


def soft(module, params, gating):
    """(outputs, what was used) in training, with the same noise every time."""
    context, rngs = SOFT.replace(gating=gating), {"dropout": jax.random.key(3)}
    y, use = module.apply({"params": params}, float32(X), context, rngs=rngs)
    return y, use.used


def slow_attention_block(params, x, hard):
    return slow.attention_block(params, x, MASK, hard)


def slow_scaled(params, x, hard):
    return slow.feed_forward_block(slow.scale_gates(params, 3.0), x, hard)


KINDS = {
    "attention": (attention_block(), slow_attention_block),
    "attention, normed keys": (attention_block(normed_keys=True), slow_attention_block),
    "attention, biases": (attention_block(biases=True), slow_attention_block),
    "feed-forward": (feed_forward_block(), slow.feed_forward_block),
    "attention, outputs as they are": (attention_block(normed_outputs=False), slow_attention_block),
    "feed-forward, outputs as they are": (
        feed_forward_block(normed_outputs=False),
        slow.feed_forward_block,
    ),
    "feed-forward, logits by a factor": (feed_forward_block(control_scale=3.0), slow_scaled),
}


N, M, T = 3, 4, 1
OF_DOCUMENTS = {
    "sentence": lambda: MultiHeadAttention(D, H),
    "context": lambda: ContextAttention(D, H, sentence_encoder=Source2Token(D)),
    "heads": lambda: ContextHeads(D, H, context=ContextAttention(D, H, sentence_encoder=MeanPooling(D))),
    "conditional": lambda: ConditionalAttention(D, H, t=T, sentence_encoder=MultiDimensionalSource2Token(D)),
    "hierarchical": lambda: HierarchicalAttention(
        D, H, t=T, sentence_encoder=Source2Token(D), merge=Source2Token(D), always_keep_own=True
    ),
    "fourier": lambda: FourierMixing(),
    "expansion": lambda: StaticExpansion(D, 4),
}
