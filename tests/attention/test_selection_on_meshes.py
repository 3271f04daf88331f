"""Attention to selected sentences on a mesh: each device selects and attends for its own documents and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.attention.conditional import ConditionalAttention
from flaxnmt.attention.hierarchical import HierarchicalAttention
from flaxnmt.attention.relative import ShawPositions
from flaxnmt.attention.source2token import Source2Token
from flaxnmt.layers.context import Context
from flaxnmt.layers.positions import word_positions
from flaxnmt.sharding import make_mesh, put_batch, unbox, use_mesh

B, N, M, D, H = 4, 5, 3, 8, 2
X, UPSTREAM = np.random.default_rng(0).normal(size=(2, B, N, M, D)).astype(np.float32)
MASK = (
    np.arange(M) < np.array([[3, 1, 2, 0, 3], [2, 3, 1, 0, 0], [1, 1, 1, 1, 1], [3, 3, 3, 3, 3]])[..., None]
)

COMMON = {"t": 2, "dispatched": True, "sentence_encoder": Source2Token(D)}
KINDS = {
    "conditional": lambda: ConditionalAttention(D, H, always_keep_own=True, **COMMON),
    "conditional, distances": lambda: ConditionalAttention(
        D, H, positions=ShawPositions(D // H, 3, with_values=False), **COMMON
    ),
    "hierarchical": lambda: HierarchicalAttention(D, H, merge=Source2Token(D), **COMMON),
}


@pytest.mark.parametrize(
    "kind", ["conditional", *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(KINDS)[1:])]
)
def test_output_and_gradients_are_those_of_one_device(kind):
    module = KINDS[kind]()

    def context(mask):
        ids = word_positions(mask)
        return Context(
            query_mask=mask, key_mask=mask, query_positions=ids, key_positions=ids, consecutive=True
        )

    def loss(params, batch):
        y = module.apply({"params": params}, batch["x"], batch["x"], context(batch["mask"]))
        return jnp.sum(y * batch["upstream"]), y

    step = jax.value_and_grad(loss, argnums=0, has_aux=True)
    batch = {"x": X, "mask": MASK, "upstream": UPSTREAM}
    params = unbox(jax.jit(module.init)(jax.random.key(0), X, X, context(jnp.asarray(MASK)))["params"])
    (_, expected), gradients = jax.jit(step)(params, batch)
    mesh = make_mesh(data=2, fsdp=2, model=2)
    with use_mesh(mesh):
        (_, y), found = jax.jit(step)(params, put_batch(batch, mesh))
    np.testing.assert_allclose(y, expected, atol=2e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, gradients)


def test_what_is_done_at_a_time_follows_from_the_rows_of_a_device(monkeypatch):
    seen = []
    module = KINDS["conditional"]()
    monkeypatch.setattr(
        "flaxnmt.attention.dispatch._over_heads",
        lambda f, arrays, n: seen.append(arrays["valid"].shape) or f(**arrays),
    )
    mask = jnp.asarray(MASK)
    context = Context(query_mask=mask, key_mask=mask)
    params = jax.eval_shape(module.init, jax.random.key(0), X, X, context)
    with use_mesh(make_mesh(data=2, fsdp=2, model=2)):
        jax.eval_shape(module.apply, params, X, X, context)
    assert seen[-1] == (B // 4, H // 2, N * M, 3)
