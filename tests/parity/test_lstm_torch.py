"""The LSTM beside torch.nn.LSTM with the same weights, where PyTorch is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.encoders.lstm import LSTM
from flaxnmt.layers.context import Context

torch = pytest.importorskip("torch")

B, T, D = 3, 7, 5


@pytest.mark.parametrize("lengths", [(T, T, T), (7, 4, 1)])
def test_states_and_gradients_are_those_of_torch(lengths):
    """Padded sequences as torch packs them."""
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)
        for name, shape in (("w_in", (D, 4 * D)), ("w_recurrent", (D, 4 * D)), ("bias", (4 * D,)))
    }
    mask = np.arange(T) < np.asarray(lengths)[:, None]
    context = Context(query_mask=jnp.asarray(mask), key_mask=jnp.asarray(mask))
    x, upstream = rng.normal(size=(2, B, T, D)).astype(np.float32)
    upstream = np.where(mask[..., None], upstream, 0)
    y, backward = jax.vjp(lambda p, x: LSTM(D).apply({"params": p}, x, x, context), params, jnp.asarray(x))
    d_params, d_x = backward(jnp.asarray(upstream))

    peer = torch.nn.LSTM(D, D, batch_first=True)
    given = {
        "weight_ih_l0": params["w_in"].T,
        "weight_hh_l0": params["w_recurrent"].T,
        "bias_ih_l0": params["bias"],
    }
    with torch.no_grad():
        for name, value in given.items():
            getattr(peer, name).copy_(torch.tensor(np.asarray(value)))
        peer.bias_hh_l0.zero_()
    inputs = torch.tensor(x, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True)
    states, _ = torch.nn.utils.rnn.pad_packed_sequence(peer(packed)[0], batch_first=True)
    states.backward(torch.tensor(upstream))

    np.testing.assert_allclose(y[mask], states.detach().numpy()[mask], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_x, inputs.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_params["w_in"].T, peer.weight_ih_l0.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        d_params["w_recurrent"].T, peer.weight_hh_l0.grad.numpy(), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(d_params["bias"], peer.bias_ih_l0.grad.numpy(), rtol=1e-4, atol=1e-5)
