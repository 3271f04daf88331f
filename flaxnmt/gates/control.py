"""Control networks and their gates (Bapna et al. 2020, section 2)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.initializers import partitioned, projection
from flaxnmt.typing import Array, Bool, Float, Int


def noise_scale(step: Int[Array, ""] | int, start: float, end: float, steps: int) -> Float[Array, ""]:
    """alpha of eq. 3: from `start` at step 0 in a line to `end` at `steps` (1 or more), constant from there on.

    Noise pushes the control network to large logits, whose hard decision is then what training has seen.
    """
    return start + (end - start) * jnp.minimum(jnp.asarray(step, jnp.float32) / steps, 1.0)


def soft_gate(
    logits: Float[Array, "*B"],
    noise: Float[Array, "*B"] | None = None,
    scale: Float[Array, ""] | float = 1.0,
) -> Float[Array, "*B"]:
    """sigmoid(c + alpha epsilon) (eq. 1, 3): the gate of training, where a sub-network counts in expectation."""
    return jax.nn.sigmoid(logits if noise is None else logits + scale * noise)


def hard_gate(logits: Float[Array, "*B"]) -> Bool[Array, "*B"]:
    """c >= 0, hence G >= 0.5 (eq. 2): the decision of inference; a tie is on."""
    return logits >= 0


def decided(logits: Float[Array, "*B"], gate: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """The decision of inference, 0 or 1, with the gradient of the gate of training: a straight-through estimate."""
    return gate + jax.lax.stop_gradient(hard_gate(logits).astype(gate.dtype) - gate)


def normalised(x: Float[Array, "*B D"], epsilon: float = 1e-6) -> Float[Array, "*B D"]:
    """Rows of mean 0 and variance 1: a layer norm without scale and bias, in float32."""
    x = x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)


def control_flops(d_model: int, hidden: int, gates: int) -> int:
    """Work of a control network on one row, multiply-adds counted as 2."""
    return 2 * hidden * (d_model + gates)


class ControlNetwork(nn.Module):
    """c(x) = s (W_2 ReLU(W_1 n(x) + b_1) + b_2) (eq. 4): a logit a gate for each row, from that row alone.

    n is a layer norm without scale and bias, which W_1 and b_1 hold already. Logits are float32, and 0 at the
    beginning, so that all gates start at a half. The factor s is 1 in the paper; an update by Adam moves a logit s times as
    far, so that gates are decided after so much less training.

    Attributes:
      d_model: D.
      hidden: d_h.
      gates: k, the logits of a row.
      scale: s.
      dtype: of the hidden layer.
    """

    d_model: int
    hidden: int
    gates: int = 1
    scale: float = 1.0
    dtype: Any = jnp.float32

    def setup(self):
        d_model, hidden, zeros = self.d_model, self.hidden, nn.initializers.zeros
        self.w_in = self.param(
            "w_in", partitioned(projection(d_model, hidden), "embed", None), (d_model, hidden)
        )
        self.b_in = self.param("b_in", partitioned(zeros, None), (hidden,))
        self.w_out = self.param("w_out", partitioned(zeros, None, None), (hidden, self.gates))
        self.b_out = self.param("b_out", partitioned(zeros, None), (self.gates,))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B k"]:
        hidden = jax.nn.relu(
            normalised(x).astype(self.dtype) @ self.w_in.astype(self.dtype) + self.b_in.astype(self.dtype)
        )
        return self.scale * (hidden.astype(jnp.float32) @ self.w_out + self.b_out)
