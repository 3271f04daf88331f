import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import slow_but
from jax.sharding import NamedSharding, PartitionSpec

from flaxnmt.errors import ConfigError
from flaxnmt.sharding import make_mesh
from flaxnmt.training.loss import fused_linear_cross_entropy, label_smoothed_cross_entropy

ROWS, D_MODEL, VOCAB = 24, 8, 37


def make_inputs(seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(3 * rng.normal(size=(ROWS, D_MODEL)), dtype)
    embedding = jnp.asarray(rng.normal(size=(VOCAB, D_MODEL)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, VOCAB, ROWS), jnp.int32)
    return hidden, embedding, targets, jnp.asarray(rng.random(ROWS) < 0.7)


def float64_sums(logits, targets, mask, smoothing):
    logits, targets, mask = np.asarray(logits, np.float64), np.asarray(targets), np.asarray(mask)
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    q = (1 - smoothing) * np.eye(logits.shape[-1])[targets] + smoothing / logits.shape[-1]
    loss, nll = -(q * log_p).sum(-1), -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    return (loss * mask).sum(), (nll * mask).sum(), np.sum(mask)


def plain(hidden, embedding, targets, mask, smoothing):
    logits = jnp.einsum(
        "rd,vd->rv", hidden, embedding.astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    return label_smoothed_cross_entropy(logits, targets, mask, smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sums_agree_with_float64(dtype, smoothing):
    hidden, embedding, targets, mask = make_inputs()
    logits = (hidden @ embedding.T).astype(dtype)
    sums = label_smoothed_cross_entropy(logits, targets, mask, smoothing)
    assert all(x.dtype == jnp.float32 for x in sums)
    np.testing.assert_allclose(sums, float64_sums(logits, targets, mask, smoothing), rtol=1e-5)


def test_smoothing_is_that_of_optax():
    hidden, embedding, targets, mask = make_inputs()
    logits = hidden @ embedding.T
    labels = optax.smooth_labels(jax.nn.one_hot(targets, VOCAB), 0.1)
    expected = jnp.sum(mask * optax.softmax_cross_entropy(logits, labels))
    np.testing.assert_allclose(
        label_smoothed_cross_entropy(logits, targets, mask, 0.1)[0], expected, rtol=1e-5
    )


def test_uniform_logits_cost_log_v_a_position():
    loss, nll, count = label_smoothed_cross_entropy(
        jnp.zeros((2, 5, VOCAB)), jnp.ones((2, 5), jnp.int32), jnp.ones((2, 5), bool), 0.1
    )
    np.testing.assert_allclose((loss / count, nll / count), np.log(VOCAB), rtol=1e-6)


def test_padding_gives_no_loss_and_no_gradient_even_where_it_is_not_finite():
    hidden, embedding, targets, mask = make_inputs()
    logits = hidden @ embedding.T
    spoilt = jnp.where(
        mask[:, None], logits, jnp.asarray([jnp.nan, jnp.inf, -jnp.inf])[jnp.arange(ROWS) % 3, None]
    )
    loss = jax.value_and_grad(lambda x: label_smoothed_cross_entropy(x, targets, mask, 0.1)[0])
    (clean, clean_gradient), (value, gradient) = loss(logits), loss(spoilt)
    assert value == clean
    np.testing.assert_array_equal(gradient, clean_gradient)
    assert not np.any(np.asarray(gradient)[~np.asarray(mask)])


@pytest.mark.parametrize("chunk", slow_but([12], [4, 12, ROWS, 1000]))
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_fused_sums_and_gradients_are_those_of_the_plain_form(smoothing, chunk):
    inputs = make_inputs()

    def scaled(form, *more):
        def loss(hidden, embedding):
            loss_sum, nll_sum, count = form(hidden, embedding, *inputs[2:], smoothing, *more)
            return 0.25 * loss_sum, (loss_sum, nll_sum, count)

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*inputs[:2])

    (_, expected_sums), expected = scaled(plain)
    (_, sums), gradients = scaled(fused_linear_cross_entropy, chunk)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-6)
    np.testing.assert_allclose(sums, fused_linear_cross_entropy(*inputs, smoothing, chunk), rtol=1e-6)
    for gradient, reference in zip(gradients, expected):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-6)


def test_fused_gradient_agrees_with_float64_differences():
    hidden, embedding, targets, mask = make_inputs(1)
    gradient = jax.grad(lambda x: fused_linear_cross_entropy(x, embedding, targets, mask, 0.1, 8)[0])(hidden)
    direction = np.random.default_rng(2).normal(size=hidden.shape)
    values = [
        float64_sums(
            (np.asarray(hidden, np.float64) + step * direction) @ np.asarray(embedding, np.float64).T,
            targets,
            mask,
            0.1,
        )[0]
        for step in (1e-5, -1e-5)
    ]
    np.testing.assert_allclose(np.sum(gradient * direction), (values[0] - values[1]) / 2e-5, rtol=1e-5)


def test_fused_keeps_types_and_is_close_in_bfloat16():
    hidden, embedding, targets, mask = make_inputs(dtype=jnp.bfloat16)

    def gradients(form, *more):
        return jax.grad(lambda h, e: form(h, e, targets, mask, 0.1, *more)[0], argnums=(0, 1))(
            hidden, embedding
        )

    d_hidden, d_embedding = gradients(fused_linear_cross_entropy, 8)
    assert (d_hidden.dtype, d_embedding.dtype) == (jnp.bfloat16, jnp.float32)
    for value, reference in zip((d_hidden, d_embedding), gradients(plain)):
        error = np.linalg.norm(np.asarray(value, np.float64) - np.asarray(reference, np.float64))
        assert error <= 0.01 * np.linalg.norm(np.asarray(reference, np.float64))


def test_fused_never_keeps_all_logits():
    hidden, embedding, targets, mask = make_inputs()
    step = jax.jit(
        jax.grad(lambda h, e: fused_linear_cross_entropy(h, e, targets, mask, 0.1, 4)[0], argnums=(0, 1))
    )
    text = step.lower(hidden, embedding).compile().as_text()
    assert f"[4,{VOCAB}]" in text and f"[{ROWS},{VOCAB}]" not in text


@pytest.mark.parametrize("form", [plain, lambda *inputs: fused_linear_cross_entropy(*inputs, 8)])
def test_all_padding_is_zero_without_nan(form):
    hidden, embedding, targets, mask = make_inputs()
    mask = jnp.zeros_like(mask)
    assert [float(x) for x in form(hidden, embedding, targets, mask, 0.1)] == [0.0, 0.0, 0.0]
    gradients = jax.grad(lambda h, e: form(h, e, targets, mask, 0.1)[0], argnums=(0, 1))(hidden, embedding)
    assert not any(np.any(x) for x in gradients)


def test_fused_padding_may_hold_nan():
    hidden, embedding, targets, mask = make_inputs()
    spoilt = jnp.where(mask[:, None], hidden, jnp.nan)
    step = jax.value_and_grad(
        lambda h, e: fused_linear_cross_entropy(h, e, targets, mask, 0.1, 8)[0], argnums=(0, 1)
    )
    jax.tree.map(np.testing.assert_array_equal, step(spoilt, embedding), step(hidden, embedding))


@pytest.mark.parametrize("form", [plain, lambda *inputs: fused_linear_cross_entropy(*inputs, 8)])
def test_vmap_over_examples_equals_single_calls(form):
    examples = [make_inputs(seed) for seed in range(3)]
    stacked = [jnp.stack(x) for x in zip(*examples)]
    loss = jax.jit(jax.value_and_grad(lambda *inputs: form(*inputs, 0.1)[0], argnums=(0, 1)))
    batched = jax.vmap(loss)(*stacked)
    single = jax.tree.map(lambda *x: jnp.stack(x), *[loss(*inputs) for inputs in examples])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), batched, single)


def test_fused_rows_sharded_over_devices_give_the_same():
    hidden, embedding, targets, mask = make_inputs()
    mesh = make_mesh(data=8)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(
        jax.value_and_grad(
            lambda h, e, *labels: fused_linear_cross_entropy(h, e, *labels, 0.1, 8)[0], argnums=(0, 1)
        )
    )
    expected = step(hidden, embedding, targets, mask)
    whole = jax.device_put(embedding, NamedSharding(mesh, PartitionSpec()))
    loss, gradients = step(jax.device_put(hidden, rows), whole, *jax.device_put((targets, mask), rows))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), (loss, gradients), expected
    )


def test_rows_must_divide_into_chunks():
    with pytest.raises(ConfigError, match="24 rows"):
        fused_linear_cross_entropy(*make_inputs(), 0.1, 7)
