import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.layers.linear import biased, linear


def draw(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


def gradients(x, weights, cotangent):
    return jax.vjp(linear, x, weights)[1](cotangent)


@pytest.mark.parametrize(("inner", "outer"), [(5, 9), (9, 5)])
def test_forward_and_gradients_are_those_of_the_product(inner, outer):
    x, weights, cotangent = draw(2, 3, inner, seed=0), draw(inner, outer, seed=1), draw(2, 3, outer, seed=2)
    single = [jnp.asarray(array, jnp.float32) for array in (x, weights, cotangent)]
    y = linear(*single[:2])
    d_x, d_weights = jax.jit(gradients)(*single)
    np.testing.assert_allclose(y, x @ weights, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_x, cotangent @ weights.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_weights, np.einsum("abi,abo->io", x, cotangent), rtol=1e-5, atol=1e-5)
    assert {array.dtype for array in (y, d_x, d_weights)} == {jnp.dtype("float32")}
    half = [array.astype(jnp.bfloat16) for array in single]
    assert {array.dtype for array in (linear(*half[:2]), *gradients(*half))} == {jnp.dtype("bfloat16")}


def test_vmap_of_the_gradients_equals_one_example_after_the_other():
    x, weights, cotangent = (
        jnp.asarray(array, jnp.float32)
        for array in (draw(4, 3, 5, seed=3), draw(5, 7, seed=4), draw(4, 3, 7, seed=5))
    )
    batched = jax.vmap(gradients, (0, None, 0))(x, weights, cotangent)
    for i in range(len(x)):
        for mapped, alone in zip(batched, gradients(x[i], weights, cotangent[i]), strict=True):
            np.testing.assert_allclose(mapped[i], alone, rtol=1e-5, atol=1e-5)


def test_only_the_program_for_cpus_copies_an_operand():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 8), (8, 16), (4, 16))]
    traced = jax.jit(gradients).trace(*shapes)
    lowered = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "tpu", "cuda")
    }
    for forced in ("optimization_barrier", "LayoutConstraint"):
        assert [forced in text for text in lowered.values()] == [True, False, False]


def test_the_gradient_of_a_bias_is_the_sum_over_rows():
    y, bias, cotangent = draw(2, 3, 5, seed=6), draw(5, seed=7), draw(2, 3, 5, seed=8)
    single = [jnp.asarray(array, jnp.float32) for array in (y, bias, cotangent)]
    found, back = jax.vjp(biased, *single[:2])
    d_y, d_bias = back(single[2])
    np.testing.assert_allclose(found, y + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(d_y, single[2])
    np.testing.assert_allclose(d_bias, cotangent.sum((0, 1)), rtol=1e-5, atol=1e-5)
    half = [array.astype(jnp.bfloat16) for array in single]
    assert {array.dtype for array in jax.vjp(biased, *half[:2])[1](half[2])} == {jnp.dtype("bfloat16")}
