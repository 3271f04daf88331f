"""Arguments of the smallest shape, with which a model of any family is initialised."""

import jax
import jax.numpy as jnp

from flaxnmt.models.config import Architecture, EncoderOnlyConfig


def example_inputs(config: Architecture, rows: int) -> tuple[jax.Array, ...]:
    """What `init` of a model takes behind its key, with this many rows."""
    shape = (rows, 2, 8) if config.is_document else (rows, 8)
    ids = jnp.ones(shape, jnp.int32)
    paragraphs = (True, jnp.zeros(shape[:2], jnp.int32)) if config.is_document else ()
    return (ids, ids, *paragraphs) if not isinstance(config, EncoderOnlyConfig) or paragraphs else (ids,)
