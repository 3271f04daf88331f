"""Attention over long sequences by the splash kernel of JAX, which keeps no scores: for TPU.

`jax.experimental.pallas.ops.tpu.splash_attention` computes blocks of scores and their softmax in fast memory (Dao et al.
2022), forward and backward. Scores of a document of n words are n^2 numbers a head otherwise, kept for the backward pass.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from flaxnmt.each_device import over_shards
from flaxnmt.typing import Array, Bool, Float

BLOCK = 128
"""Rows and columns of a block of scores; lengths are padded to a multiple."""


def _sizes(queries: int, keys: int) -> kernel.BlockSizes:
    """Blocks as large as lengths allow, up to 512: fewer of them cost less."""

    def largest(length: int) -> int:
        return math.gcd(length, 4 * BLOCK)

    q, kv = largest(queries), largest(keys)
    return kernel.BlockSizes(
        block_q=q,
        block_kv=kv,
        block_kv_compute=kv,
        block_q_dkv=q,
        block_kv_dkv=kv,
        block_kv_dkv_compute=kv,
        block_q_dq=q,
        block_kv_dq=kv,
    )


def _padded(x: jax.Array, axis: int) -> jax.Array:
    """Zeros behind it, up to a multiple of the block."""
    pads = [(0, 0)] * x.ndim
    pads[axis] = (0, -x.shape[axis] % BLOCK)
    return jnp.pad(x, pads)


def splash_attention(
    query: Float[Array, "B H Q K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    key_mask: Bool[Array, "B L"] | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "B H Q K"]:
    """`dot_product_attention` in which every query sees all keys that are not padding.

    On a mesh each device computes its own examples and heads. A query of an example without any key gets a mean of
    values, and a finite gradient.

    Args:
      query: [B, H, Q, K]; K is 64 or a multiple of 128 on a TPU.
      key, value: [B, H, L, K].
      key_mask: False at padding.
      interpret: run the kernel step by step in JAX, which any device can, slowly.
    """
    batch, heads, queries, size = query.shape
    seen = jnp.ones((batch, key.shape[2]), bool) if key_mask is None else key_mask
    # Padding is a segment of its own, which padding alone looks at.
    rows = jnp.broadcast_to(seen.any(-1, keepdims=True), (batch, queries))
    segments = [_padded(mask.astype(jnp.int32), 1) for mask in (rows, seen)]
    arrays = [_padded(x, 2) for x in (query * size**-0.5, key, value)]

    def attend(query, key, value, of_queries, of_keys):
        lengths = query.shape[2], key.shape[2]
        mask = masks.MultiHeadMask([masks.FullMask(lengths)] * query.shape[1])
        attention = kernel.make_splash_mha(
            mask, block_sizes=_sizes(*lengths), head_shards=1, q_seq_shards=1, interpret=interpret
        )
        return jax.vmap(attention)(query, key, value, kernel.SegmentIds(of_queries, of_keys))

    by_head, by_row = ("batch", "heads", None, None), ("batch", None)
    y = over_shards(attend, (by_head, by_head, by_head, by_row, by_row), by_head)(*arrays, *segments)
    return y[:, :, :queries].astype(value.dtype)
