"""The shapes in signatures are checked while tests run."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from flaxnmt.attention.dot_product import dot_product_attention
from flaxnmt.layers.context import KeyValues
from flaxnmt.layers.positions import LearnedPositions


def test_a_wrong_shape_is_refused_in_functions_and_modules():
    x, longer = jnp.zeros((1, 2, 3, 4)), jnp.zeros((1, 2, 5, 4))
    with pytest.raises(TypeCheckError, match="value"):
        dot_product_attention(x, x, longer)
    with pytest.raises(TypeCheckError, match="ids"):
        LearnedPositions(4, 8).init(jax.random.key(0), jnp.zeros(3, jnp.int32))


def test_pytrees_may_hold_shapes():
    x = jnp.zeros((1, 2, 3, 4))
    assert jax.eval_shape(lambda: KeyValues(x, x)).key.shape == x.shape
    assert jax.tree.map(lambda leaf: leaf.ndim, KeyValues(x, x)).value == 4
