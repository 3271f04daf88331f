"""Gated convolution, the layer of ConvS2S (Gehring et al. 2017), an encoder layer in Hu et al. 2023."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from flaxnmt.layers.active import on_active
from flaxnmt.layers.context import Context
from flaxnmt.layers.dropout import Dropout
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.linear import linear, weight_gradient
from flaxnmt.layers.sublayer import SubLayer, check_same_rows
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float

RESIDUAL_SCALE = 0.5**0.5
"""Factor of the sum with the skip connection, which keeps its variance (Gehring et al. 2017, section 3.5)."""


def gated_linear_unit(x: Float[Array, "*B E"]) -> Float[Array, "*B D"]:
    """A sigma(B) of [A; B], E = 2 D (Dauphin et al. 2017, eq. 1)."""
    value, gate = jnp.split(x, 2, axis=-1)
    return value * jax.nn.sigmoid(gate)


def check_width(width: int) -> None:
    """Raises ValueError for a kernel without a row in its middle."""
    if width % 2 == 0:
        raise ValueError(f"a kernel of width {width} has no row in its middle: give an odd width")


def windows(
    x: Float[Array, "*B L D"], mask: Bool[Array, "*B L"] | None, width: int
) -> Float[Array, "*B L W"]:
    """Each row between its neighbours, `width` rows side by side (W = width D); zeros at padding and beyond the ends."""
    x = x if mask is None else jnp.where(mask[..., None], x, 0)
    length, reach = x.shape[-2], width // 2
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(reach, reach), (0, 0)])
    return jnp.concatenate([padded[..., i : i + length, :] for i in range(width)], axis=-1)


@jax.custom_vjp
def convolution(x: Float[Array, "B L D"], kernel: Float[Array, "width D E"]) -> Float[Array, "B L E"]:
    """sum_k x_(t+k-w/2) W_k at every row, zeros beyond the ends. ValueError for an even width."""
    check_width(kernel.shape[0])
    layout = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=layout)


def _forward(x, kernel):
    return convolution(x, kernel), (x, kernel)


def _backward(residuals, cotangent):
    x, kernel = residuals
    d_x = convolution(cotangent, jnp.swapaxes(jnp.flip(kernel, 0), 1, 2))
    # XLA's own gradient of a kernel takes twice as long on CPUs.
    return d_x, lax.platform_dependent(
        x, kernel, cotangent, cpu=kernel_gradient_by_windows, default=kernel_gradient_by_convolution
    )


def kernel_gradient_by_windows(
    x: Float[Array, "B L D"], kernel: Float[Array, "width D E"], cotangent: Float[Array, "B L E"]
) -> Float[Array, "width D E"]:
    """Gradient of `convolution` in its kernel, one product of each row's neighbours with the cotangent."""
    rows = windows(x, None, kernel.shape[0])
    return weight_gradient(rows, cotangent).reshape(kernel.shape)


def kernel_gradient_by_convolution(
    x: Float[Array, "B L D"], kernel: Float[Array, "width D E"], cotangent: Float[Array, "B L E"]
) -> Float[Array, "width D E"]:
    """The same, by XLA's convolution."""
    return jax.linear_transpose(lambda kernel: convolution.fun(x, kernel), kernel)(cotangent)[0]


convolution.defvjp(_forward, _backward)


def gated_convolution(
    x: Float[Array, "*B L D"],
    mask: Bool[Array, "*B L"] | None,
    kernel: Float[Array, "width D E"],
    bias: Float[Array, " E"],
) -> Float[Array, "*B L D"]:
    """GLU(W [x_(t-w/2) ... x_(t+w/2)] + b) at every row, odd width, E = 2 D.

    Padding is read as zeros. Between other rows it keeps its place, so that they are no nearer to each other.
    """
    x = x if mask is None else jnp.where(mask[..., None], x, 0)
    y = convolution(x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]), kernel)
    return gated_linear_unit(y.reshape(*x.shape[:-1], y.shape[-1]) + bias)


class GatedConvolution(SubLayer):
    """`gated_convolution` with its parameters, and dropout on its input.

    A masked row within a sequence is a row of zeros there, not a row less as it is to the other encoders.

    Attributes:
      d_model: D.
      width: of the kernel, odd.
      dropout: rate on the input.
      dtype: of the computation; parameters are float32.
    """

    d_model: int
    width: int = 3
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        check_width(self.width)
        shape = self.width, self.d_model, 2 * self.d_model
        init = projection(self.width * self.d_model, 2 * self.d_model)
        self.kernel = self.param("kernel", partitioned(init, None, "embed", None), shape)
        self.bias = self.param("bias", partitioned(nn.initializers.zeros, "activation"), shape[-1:])
        self.input_dropout = Dropout(self.dropout)

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> Float[Array, "*B L D"]:
        return self.input_dropout(memory.astype(self.dtype), context.deterministic)

    def rows(self, x: Float[Array, "*B Q D"], shared: Float[Array, "*B L D"], context: Context):
        check_same_rows(self, x, shared.shape[-2])
        kernel, bias = self.kernel.astype(self.dtype), self.bias.astype(self.dtype)
        if context.active is None:
            y = gated_convolution(shared, context.key_mask, kernel, bias)
        else:
            matrix = kernel.reshape(-1, kernel.shape[-1])
            around = windows(shared, context.key_mask, self.width)
            y = on_active(lambda rows: gated_linear_unit(linear(rows, matrix) + bias), around, context.active)
        return constrain(y, "batch", ..., "length", "activation"), None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        return 0, 4 * self.width * queries * d_model**2
