"""Unidirectional LSTM (Hochreiter & Schmidhuber 1997, with forget gates), an encoder layer in Hu et al. 2023."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from flaxnmt.layers.context import Context
from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.layers.linear import linear, weight_gradient
from flaxnmt.layers.sublayer import SubLayer, check_same_rows
from flaxnmt.sharding import constrain
from flaxnmt.typing import Array, Bool, Count, Float

SHUT = 1e4
"""An input of a gate that no state can outweigh: its sigmoid is 0, or 1, without rounding."""


@jax.custom_vjp
def lstm(
    inputs: Float[Array, "T B G"],
    recurrent: Float[Array, "D G"],
    mask: Bool[Array, "T B"] | None = None,
) -> Float[Array, "T B D"]:
    """Hidden states of an LSTM that starts from zeros; time leads, G = 4 D.

    (i, f, g, o) = inputs_t + h_(t-1) recurrent;  c_t = sigma(f) c_(t-1) + sigma(i) tanh(g);  h_t = sigma(o) tanh(c_t).
    All that does not depend on the state before, x_t W + b, is in `inputs`, so that it is one product over all times.

    Args:
      inputs: x W + b, the four gates side by side in the order i, f, g, o.
      recurrent: U.
      mask: False where there is no input: h_t = h_(t-1) and c_t = c_(t-1), as if that time were not there.
    """
    return _states(inputs, recurrent, mask)[0]


def _gates(squashed: Float[Array, "*T B G"]):
    """i, f, g, o from the hyperbolic tangents that `_states` keeps: sigma(x) = tanh(x / 2) / 2 + 1 / 2."""
    i, f, g, o = jnp.split(squashed, 4, axis=-1)
    return i / 2 + 0.5, f / 2 + 0.5, g, o / 2 + 0.5


def _states(inputs, recurrent, mask):
    """Hidden states, and what the backward pass needs: squashed gates and cells of all times."""
    rows, d_model = inputs.shape[1], recurrent.shape[0]
    if mask is not None:
        # Gates that keep the cell as it is, in both passes: a step has to look after the hidden state alone.
        shut = jnp.repeat(jnp.asarray([-SHUT, SHUT, 0, 0], inputs.dtype), d_model)
        mask = mask[..., None]
        inputs = jnp.where(mask, inputs, shut)
    # One hyperbolic tangent of all four gates: a step is few operations, each of which has its price on a CPU.
    halves = jnp.repeat(jnp.asarray([0.5, 0.5, 1, 0.5], jnp.float32), d_model)

    def step(state, now):
        (h, c), (z, there) = state, now
        squashed = jnp.tanh((z + h @ recurrent).astype(jnp.float32) * halves)
        i, f, g, o = _gates(squashed)
        c = f * c + i * g
        new = (o * jnp.tanh(c)).astype(inputs.dtype)
        h = new if there is None else jnp.where(there, new, h)
        return (h, c), (h, squashed, c)

    start = jnp.zeros((rows, d_model), inputs.dtype), jnp.zeros((rows, d_model), jnp.float32)
    return lax.scan(step, start, (inputs, mask))[1]


def _forward(inputs, recurrent, mask):
    h, squashed, c = _states(inputs, recurrent, mask)
    return h, (h, squashed, c, recurrent, mask)


def _backward(residuals, cotangent):
    h, squashed, c, recurrent, mask = residuals
    i, f, g, o = _gates(squashed)
    before, out, back = jnp.concatenate([jnp.zeros_like(c[:1]), c[:-1]]), jnp.tanh(c), recurrent.T
    # What is known of all times is computed at once; a step multiplies.
    by_cell = g * i * (1 - i), before * f * (1 - f), i * (1 - g**2)
    by_state, through = out * o * (1 - o), o * (1 - out**2)
    if mask is not None:
        mask = mask[..., None]
        by_state, through = jnp.where(mask, by_state, 0), jnp.where(mask, through, 0)

    def step(carry, saved):
        d_h, d_c = carry
        d_out, through, f, by_cell, by_state, there = saved
        d_h = d_out.astype(jnp.float32) + d_h
        d_c = d_c + d_h * through
        d_z = jnp.concatenate([*(d_c * slope for slope in by_cell), d_h * by_state], axis=-1).astype(h.dtype)
        before = (d_z @ back).astype(jnp.float32)
        return (before if there is None else jnp.where(there, before, d_h), d_c * f), d_z

    nothing = jnp.zeros(c.shape[1:], jnp.float32)
    saved = cotangent, through, f, by_cell, by_state, mask
    _, d_inputs = lax.scan(step, (nothing, nothing), saved, reverse=True)
    # The gradient of the recurrent weights is one product over all times, where a differentiated scan would add up
    # a matrix of their size at each of them.
    return d_inputs, weight_gradient(h[:-1], d_inputs[1:]), None


lstm.defvjp(_forward, _backward)


class LSTM(SubLayer):
    """An LSTM over the rows of a sequence from left to right; padding changes nothing, wherever it stands.

    Every row depends on all before it, so that a gate around it saves time only where all of a batch are off.

    Attributes:
      d_model: D, of input and state.
      forget_bias: of the forget gates at first. A cell keeps sigma(b) of itself at a time, so that a layer delays its input by
        sigma(b) / sigma(-b) = exp(b) times in the mean: with 0, a stack of 18 without skip connections by more than most
        sentences have words.
      dtype: of the computation; parameters and cells are float32.
    """

    rowwise: ClassVar[bool] = False

    d_model: int
    forget_bias: float = 0.0
    dtype: Any = jnp.float32

    def setup(self):
        d_model, gates = self.d_model, 4 * self.d_model

        def bias(key, shape, dtype=jnp.float32):
            return jnp.zeros(shape, dtype).at[d_model : 2 * d_model].set(self.forget_bias)

        kernel = partitioned(projection(d_model, gates), "embed", None)
        self.w_in = self.param("w_in", kernel, (d_model, gates))
        self.w_recurrent = self.param("w_recurrent", kernel, (d_model, gates))
        self.bias = self.param("bias", partitioned(bias, "activation"), (gates,))

    def keys(self, memory: Float[Array, "*B L D"], context: Context) -> Float[Array, "*B L D"]:
        w_in, w_recurrent, bias = (w.astype(self.dtype) for w in (self.w_in, self.w_recurrent, self.bias))
        x, mask = memory.astype(self.dtype), context.key_mask
        rows = math.prod(x.shape[:-2])
        x = x.reshape(rows, *x.shape[-2:])
        # Whole on every device: divided, the product with a state would be added up between devices at every word.
        w_recurrent = constrain(w_recurrent, None, None)
        mask = None if mask is None else jnp.swapaxes(mask.reshape(x.shape[:-1]), 0, 1)
        h = lstm(linear(jnp.swapaxes(x, 0, 1), w_in) + bias, w_recurrent, mask)
        return constrain(jnp.swapaxes(h, 0, 1).reshape(memory.shape), "batch", ..., "length", "activation")

    def rows(self, x: Float[Array, "*B Q D"], shared: Float[Array, "*B L D"], context: Context):
        check_same_rows(self, x, shared.shape[-2])
        return shared, None

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        return 16 * keys * d_model**2, 0
