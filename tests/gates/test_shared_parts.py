"""What rows share, a recurrence or a transform, is computed where one of them is on."""

from typing import ClassVar

import gates_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from gated_blocks import CONTROL, HARD, MASK, NORM, OF_DOCUMENTS, D, X, float32, make, random_params, run

from flaxnmt.encoders.lstm import LSTM
from flaxnmt.layers.context import Context
from flaxnmt.layers.sublayer import SubLayer
from flaxnmt.sharding import unbox


class Watched(SubLayer):
    """All rows share their mean, and say when it is computed."""

    computed: ClassVar[list[bool]] = []

    def keys(self, memory, context):
        def nothing_but_say_so():
            self.computed.append(True)
            return np.zeros((), np.float32)

        # What nobody reads is not computed, which a callback without a result would be.
        zero = jax.pure_callback(nothing_but_say_so, jax.ShapeDtypeStruct((), jnp.float32))
        return memory.mean(-2, keepdims=True) + zero

    def rows(self, x, shared, context):
        return x + shared, None

    def flops(self, d_model, queries, keys, sentences=1):
        return 1000 * keys, 0


def test_what_rows_share_is_computed_where_one_of_them_is_on():
    module = make(Watched())
    params = random_params(module)

    step = jax.jit(
        lambda params, skip, apart: run(
            module, params, float32(X), HARD.replace(skip=skip), float32(X) if apart else None
        ),
        static_argnums=(1, 2),
    )

    def computed(bias, *options):
        Watched.computed.clear()
        y, use = step(float32(slow.set_gates(params, bias)), *options)
        jax.effects_barrier()
        added = MASK.sum(1) * (CONTROL + NORM)
        np.testing.assert_allclose(use.used - added, (bias >= 0) * 1000 * MASK.sum(1), rtol=1e-6)
        np.testing.assert_array_equal(
            y == float32(X), np.broadcast_to((bias < 0) | ~MASK[..., None], y.shape)
        )
        return len(Watched.computed)

    assert computed(-1.0, True, False) == 0
    assert computed(1.0, True, False) == computed(-1.0, False, False) == 1
    # Of a memory that other rows may want.
    assert computed(-1.0, True, True) == 1


@pytest.mark.parametrize("kind", slow_but(["heads"], ["heads", "hierarchical", "lstm", "expansion"]))
def test_closed_sublayers_that_share_something_are_the_identity(kind):
    module = make(LSTM(D) if kind == "lstm" else OF_DOCUMENTS[kind]())
    seen = jnp.asarray(np.stack([MASK[:, :4], MASK[:, 1:]]))
    context = Context(query_mask=seen, key_mask=seen)
    x = float32(np.random.default_rng(3).normal(size=(*seen.shape, D)))
    shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), x, context)["params"])
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)

    def apply(params, skip):
        y, use = module.apply({"params": params}, x, context.replace(skip=skip))
        return y * seen[..., None], use.used

    step = jax.jit(apply, static_argnums=1)
    np.testing.assert_array_equal(step(float32(slow.set_gates(params, -1.0)), True)[0], x * seen[..., None])
    for one, other in zip(*(step(float32(params), skip) for skip in (True, False)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
