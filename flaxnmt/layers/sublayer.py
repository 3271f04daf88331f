"""The one interface of everything that can stand inside a block: attention, feed-forward, recurrence, ..."""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from flaxnmt.layers.context import Context
from flaxnmt.typing import Array, Count, Float


def words_each(keys: Count, sentences: Count) -> Count:
    """Words of each of these sentences, which have as many; their mean where both are counted of a batch."""
    if isinstance(sentences, int):
        return keys // sentences
    return keys / jnp.maximum(sentences, 1)


def check_same_rows(sublayer: nn.Module, x: Float[Array, "*B Q D"], rows: int) -> None:
    """Raises ValueError where a sub-layer that answers for the rows of its memory alone is asked for others."""
    if x.shape[-2] != rows:
        raise ValueError(
            f"{type(sublayer).__name__} has one output for each row of its memory, which are {rows}, and is asked for "
            f"{x.shape[-2]}: attention alone reads a memory of another length"
        )


class SubLayer(nn.Module):
    """A function of rows, split into what all rows share and what each row needs by itself.

    Norm, skip connection, dropout and gate belong to the block around it. The split lets a gate skip rows one
    by one while the shared part (keys and values, a recurrence) is still computed for the others, and lets a
    decoder cache the shared part.

    Attributes:
      rowwise: whether `rows` heeds `Context.active`, so that rows that are not wanted save work.
      gates_keys: whether `keys` has a key and value for each row of the memory, which `Context.key_gate` scales.
    """

    rowwise: ClassVar[bool] = True
    gates_keys: ClassVar[bool] = False

    def keys(self, memory: Float[Array, "*A L D"], context: Context) -> Any:
        """The shared part, over all rows of `memory`; None where there is none."""
        return None

    def rows(self, x: Float[Array, "*B Q D"], shared: Any, context: Context):
        """The per-row part: ([*B, Q, D] output, what was captured, such as weights [*B, H, Q, L], or None)."""
        raise TypeError(f"{type(self).__name__} does not define rows")

    def __call__(
        self,
        x: Float[Array, "*B Q D"],
        memory: Float[Array, "*A L D"] | None = None,
        context: Context | None = None,
    ) -> Float[Array, "*B Q D"]:
        """Both parts: of x alone, or of x and a memory; without a context no row is padding, and nothing is dropped."""
        context = Context() if context is None else context
        return self.rows(x, self.keys(x if memory is None else memory, context), context)[0]

    def flops(self, d_model: int, queries: Count, keys: Count, sentences: Count = 1) -> tuple[Count, Count]:
        """Multiply-adds counted as 2 of (shared part, per-row part) for one example, forward pass.

        Of a document queries and keys are those of all its sentences, which have as many each. Counts of a batch are
        arrays [B], of what is not padding: there `sentences` are those that have words, whatever the shape.
        """
        raise TypeError(f"{type(self).__name__} does not define flops")

    def key_flops(self, d_model: int, keys: Count) -> Count:
        """What of the shared part is a key and value for each row of the memory, where the sub-layer `gates_keys`."""
        return 0
