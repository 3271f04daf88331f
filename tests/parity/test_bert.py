"""Our encoder alone beside Hugging Face's BERT, with its weights; where PyTorch and transformers are there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.models.config import EncoderConfig, EncoderOnlyConfig, MultiHead
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.sharding import unbox
from flaxnmt.training.loss import label_smoothed_cross_entropy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, D_MODEL, LAYERS, HEADS, HIDDEN, LENGTH = 97, 48, 3, 4, 96, 20


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=D_MODEL,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from what both libraries initialise with: norms unlike one, biases unlike zero.
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ours(state):
    """The parameters of our model out of theirs, which have outputs before inputs."""

    def norm(name):
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def attention(name):
        found = {}
        for part in ("query", "key", "value"):
            found[part] = state[f"{name}.self.{part}.weight"].T.reshape(D_MODEL, HEADS, -1)
            found[f"{part}_bias"] = state[f"{name}.self.{part}.bias"].reshape(HEADS, -1)
        found["out"] = state[f"{name}.output.dense.weight"].T.reshape(HEADS, -1, D_MODEL)
        return found | {"out_bias": state[f"{name}.output.dense.bias"]}

    def layer(name):
        network = {
            "w_in": state[f"{name}.intermediate.dense.weight"].T,
            "b_in": state[f"{name}.intermediate.dense.bias"],
            "w_out": state[f"{name}.output.dense.weight"].T,
            "b_out": state[f"{name}.output.dense.bias"],
        }
        return {
            "attention": {
                "sublayer": attention(f"{name}.attention"),
                "layer_norm": norm(f"{name}.attention.output.LayerNorm"),
            },
            "feed_forward": {"sublayer": network, "layer_norm": norm(f"{name}.output.LayerNorm")},
        }

    embeddings, head = "bert.embeddings", "cls.predictions"
    return {
        "table": {"table": state[f"{embeddings}.word_embeddings.weight"]},
        "segment_table": {"table": state[f"{embeddings}.token_type_embeddings.weight"]},
        "embedding": {
            "positions": {"table": state[f"{embeddings}.position_embeddings.weight"]},
            "norm": norm(f"{embeddings}.LayerNorm"),
        },
        "encoder": {"stack": {f"layers_{i}": layer(f"bert.encoder.layer.{i}") for i in range(LAYERS)}},
        "head": {
            "transform": {
                "kernel": state[f"{head}.transform.dense.weight"].T,
                "bias": state[f"{head}.transform.dense.bias"],
            },
            "norm": norm(f"{head}.transform.LayerNorm"),
            "bias": state[f"{head}.bias"],
        },
    }


def test_logits_loss_and_gradients_equal_those_of_hugging_face(theirs):
    config = EncoderOnlyConfig(
        d_model=D_MODEL,
        encoder=EncoderConfig(LAYERS, MultiHead(HEADS), HIDDEN),
        norm="post",
        positions="learned",
        max_positions=64,
        activation="gelu",
        biases=True,
        dropout=0.0,
    )
    model = EncoderOnly(config, VOCAB)
    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    params = jax.tree.map(jnp.asarray, ours(state))
    expected = unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"])
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, expected)

    rng = np.random.default_rng(1)
    tokens, segments = rng.integers(5, VOCAB, (2, LENGTH)), rng.integers(0, 2, (2, LENGTH))
    tokens[1, 14:] = 0
    targets, counted = rng.integers(5, VOCAB, (2, LENGTH)), np.zeros((2, LENGTH), bool)
    counted[:, [2, 5, 11]] = True
    labels = np.where(counted, targets, -100)
    found = theirs(
        input_ids=torch.tensor(tokens),
        token_type_ids=torch.tensor(segments),
        attention_mask=torch.tensor((tokens != 0).astype(int)),
        labels=torch.tensor(labels),
    )
    theirs.zero_grad()
    found.loss.backward()

    def loss(params):
        logits = model.apply({"params": params}, jnp.asarray(tokens), jnp.asarray(segments))
        total, _, count = label_smoothed_cross_entropy(
            logits, jnp.asarray(targets), jnp.asarray(counted), 0.0
        )
        return total / count, logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    real = tokens != 0
    # Their norms add 1e-12 to the variance and ours 1e-6.
    np.testing.assert_allclose(logits[real], found.logits.detach().numpy()[real], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(value, found.loss.item(), rtol=1e-5)
    query = theirs.bert.encoder.layer[0].attention.self.query.weight.grad.numpy().T
    np.testing.assert_allclose(
        gradient["encoder"]["stack"]["layers_0"]["attention"]["sublayer"]["query"].reshape(D_MODEL, -1),
        query,
        rtol=1e-3,
        atol=1e-5,
    )
