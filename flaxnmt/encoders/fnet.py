"""Mixing by a Fourier transform (FNet, Lee-Thorp et al. 2022), an encoder layer in Hu et al. 2023."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from flaxnmt.each_device import is_divided
from flaxnmt.layers.context import Context
from flaxnmt.layers.sublayer import SubLayer, check_same_rows, words_each
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float


def fourier_mixing(
    x: Float[Array, "*B L D"], mask: Bool[Array, "*B L"] | None = None
) -> Float[Array, "*B L D"]:
    """Re(F_seq F_hidden(X)), the two-dimensional discrete Fourier transform without normalisation, float32.

    With a mask each sequence is transformed over its own length, by a matrix that is made from it, so that nothing
    depends on how far it is padded; padding becomes zeros. Without one the rows are all of the sequence.
    """
    x = x.astype(jnp.float32)
    if mask is None:
        return jnp.fft.fftn(x, axes=(-2, -1)).real
    half = _half_spectrum(jnp.where(mask[..., None], x, 0))
    cos, sin = (matrix.astype(x.dtype) for matrix in sequence_matrices(mask))
    even, odd = _product(cos, half.real), _product(sin, half.imag)
    # Columns j and D - j of a real row's transform are conjugates: the second half follows from the first.
    rest = x.shape[-1] - half.shape[-1]
    return jnp.concatenate([even + odd, jnp.flip((even - odd)[..., 1 : rest + 1], axis=-1)], axis=-1)


def sequence_matrices(mask: Bool[Array, "*B L"]) -> tuple[Float[Array, "*B L L"], Float[Array, "*B L L"]]:
    """cos and sin of 2 pi k n / length for the k-th and n-th row that is not padding; zeros at padding."""
    place = jnp.where(mask, jnp.cumsum(mask, axis=-1) - 1, 0)
    length = jnp.maximum(mask.sum(-1), 1)[..., None, None]
    # Reduced as integers: the angle of a long sequence keeps all its digits.
    turns = (place[..., :, None] * place[..., None, :]) % length
    angle = 2 * np.pi * turns / length
    real = mask[..., :, None] & mask[..., None, :]
    return jnp.where(real, jnp.cos(angle), 0), jnp.where(real, jnp.sin(angle), 0)


def _half_spectrum(x: Float[Array, "*B L D"]):
    """The first half of the transform of each row, complex; the rest are its conjugates."""
    # XLA transforms whole arrays on every device of a mesh, and TPUs are slow at short transforms: there by products.
    if is_divided():
        return _half_spectrum_by_products(x)
    return lax.platform_dependent(x, tpu=_half_spectrum_by_products, default=jnp.fft.rfft)


def _half_spectrum_by_products(x):
    d_model = x.shape[-1]
    angle = 2 * np.pi * (np.outer(np.arange(d_model), np.arange(d_model // 2 + 1)) % d_model) / d_model
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    return lax.complex(_product(x, cos), _product(x, -sin))


def transform_flops(d_model: int, rows: Count) -> Count:
    """Multiply-adds counted as 2 of `fourier_mixing` along the features, where it is made by products: on TPUs and on meshes.

    No part of the work of a model, in which it is a fast transform, of D log D as element-wise work.
    """
    return 4 * rows * d_model * (d_model // 2 + 1)


def _product(x, y):
    # TPUs would round the factors to bfloat16.
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


class FourierMixing(SubLayer):
    """`fourier_mixing` of the rows; it has no parameters.

    Every row depends on all others, so that a gate around it saves time only where all of a batch are off.
    """

    rowwise: ClassVar[bool] = False

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> Float[Array, "*B L D"]:
        y = fourier_mixing(memory, context.key_mask).astype(memory.dtype)
        return constrain(y, "batch", ..., "length", "activation")

    def rows(self, x: Float[Array, "*B Q D"], shared: Float[Array, "*B L D"], context: Context):
        check_same_rows(self, x, shared.shape[-2])
        return shared, None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        # Half of the columns are multiplied by two matrices; `transform_flops` of the rows are beside that, if any.
        return 4 * keys * words_each(keys, sentences) * (d_model // 2 + 1), 0
