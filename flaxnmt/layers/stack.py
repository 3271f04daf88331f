"""Stacks of layers: one after the other, or scanned over stacked parameters."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import jax
from flax import linen as nn

from flaxnmt.typing import PyTree

SCANNED = {"variable_axes": {"params": 0}, "split_rngs": {"params": True, "dropout": True}}


class Stack(nn.Module):
    """Applies `layers` in order; layers may differ from each other.

    With `scan`, `layers` holds one layer, which is repeated `repeats` times over parameters stacked on a leading
    `layers` axis: the program, and the time to compile it, no longer grow with depth.

    Attributes:
      layers: the layers, or the one to repeat.
      repeats: how often; 1 unless scanned.
      scan: run as `lax.scan`.
      remat: compute activations again in the backward pass in place of keeping them.

    Raises:
      ValueError: for several layers that are scanned, or one that is repeated without.
    """

    layers: tuple[nn.Module, ...]
    repeats: int = 1
    scan: bool = False
    remat: bool = False

    def setup(self):
        if self.scan and len(self.layers) != 1:
            raise ValueError(f"a scan repeats one layer, and there are {len(self.layers)}: leave scan out")
        if not self.scan and self.repeats != 1:
            raise ValueError(
                f"a layer is repeated {self.repeats} times by a scan alone: set scan, or give as many layers"
            )

    def run(self, body: Callable[..., tuple[Any, PyTree]], carry: Any, per_layer: PyTree = None):
        """carry, out = body(layer, carry, per_layer[i]) for each layer; (carry, outs), outs stacked if scanned.

        `per_layer` is a sequence with an entry a layer, or, if scanned, a tree with a leading axis of layers.
        """
        body = nn.remat(body, prevent_cse=not self.scan) if self.remat else body
        if self.scan:
            over = nn.scan(
                body, length=self.repeats, metadata_params={nn.PARTITION_NAME: "layers"}, **SCANNED
            )
            return over(self.layers[0], carry, per_layer)
        outs = []
        for i, layer in enumerate(self.layers):
            carry, out = body(layer, carry, None if per_layer is None else per_layer[i])
            outs.append(out)
        return carry, tuple(outs)

    def per_layer(self, outs: PyTree) -> tuple[PyTree, ...]:
        """What `run` returned as outs, one entry a layer, whether scanned or not."""
        if not self.scan:
            return outs
        return tuple(jax.tree.map(itemgetter(i), outs) for i in range(self.repeats))

    def map(self, body: Callable[[nn.Module], PyTree]) -> PyTree:
        """body(layer) for each layer: a tuple, or stacked on a leading axis if scanned."""
        _, outs = self.run(lambda layer, carry, _: (carry, body(layer)), ())
        return outs
