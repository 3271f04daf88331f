"""Rotary, Shaw's and Transformer-XL's attention beside public PyTorch implementations, where they are installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxnmt.attention.multihead import MultiHeadAttention
from flaxnmt.attention.relative import ShawPositions, TransformerXLPositions
from flaxnmt.attention.rotary import RotaryPositions, rotate
from flaxnmt.layers.context import Context, positions_of

torch = pytest.importorskip("torch")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")
wav2vec2_bert = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")

B, T, H, K, CLIP = 2, 7, 2, 8, 3
D = H * K
X, UPSTREAM = np.random.default_rng(0).normal(size=(2, B, T, D))


def tensor(x, **options):
    return torch.tensor(np.asarray(x, np.float32), **options)


def array(x):
    return x.detach().numpy()


def random_params(seed=1):
    rng = np.random.default_rng(seed)
    names = dict.fromkeys(("query", "key", "value"), (D, H, K)) | {"out": (H, K, D)}
    return {name: jnp.asarray(rng.normal(size=shape) / 2, jnp.float32) for name, shape in names.items()}


def llama_config():
    return llama.LlamaConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=H, attn_implementation="eager"
    )


def test_rotation_is_that_of_llama():
    """Feature i turns with feature i + K / 2 on both sides."""
    ids = np.array([[0, 1, 2, 3, 10, 100, 500], [4, 5, 6, 7, 8, 9, 11]])
    rng = np.random.default_rng(2)
    query, key = (jnp.asarray(rng.normal(size=(B, H, T, K)), jnp.float32) for _ in range(2))
    cos, sin = llama.LlamaRotaryEmbedding(llama_config())(tensor(X), torch.tensor(ids))
    theirs = llama.apply_rotary_pos_emb(tensor(query), tensor(key), cos, sin)
    for ours, peer in zip((query, key), theirs):
        # Angles are float32 on both sides, of up to 500 radians.
        np.testing.assert_allclose(rotate(ours, jnp.asarray(ids)), array(peer), atol=1e-4)


def run(module, params, context):
    """Output, and gradients of the input and the parameters."""
    y, backward = jax.vjp(
        lambda params, x: module.apply({"params": params}, x, x, context), params, jnp.asarray(X, jnp.float32)
    )
    return y, backward(jnp.asarray(UPSTREAM, jnp.float32))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, array(expected), rtol=1e-4, atol=2e-5)


def test_rotary_attention_is_that_of_llama():
    params = random_params()
    ids = positions_of((T,))
    context = Context(query_positions=ids, key_positions=ids, causal=True, consecutive=True)
    y, (d_params, d_x) = run(MultiHeadAttention(D, H, positions=RotaryPositions()), params, context)

    config = llama_config()
    peer = llama.LlamaAttention(config, layer_idx=0)
    maps = {"query": peer.q_proj, "key": peer.k_proj, "value": peer.v_proj}
    copy_projections(params, maps, peer.o_proj)
    x = tensor(X, requires_grad=True)
    cos_sin = llama.LlamaRotaryEmbedding(config)(x, torch.arange(T)[None])
    mask = torch.triu(torch.full((T, T), float("-inf")), 1)[None, None]
    theirs, _ = peer(x, cos_sin, mask)
    theirs.backward(tensor(UPSTREAM))
    assert_close(y, theirs)
    assert_close(d_x, x.grad)
    for name, module in maps.items():
        assert_close(d_params[name].reshape(D, D).T, module.weight.grad)


def copy_projections(params, maps, out):
    with torch.no_grad():
        for name, module in maps.items():
            module.weight.copy_(tensor(params[name].reshape(D, D).T))
        out.weight.copy_(tensor(params["out"].reshape(D, D).T))
        for module in (*maps.values(), out):
            if module.bias is not None:
                module.bias.zero_()


def speech_attention(kind, params):
    """Self-attention of Wav2Vec2-BERT, which has both kinds of relative positions."""
    config = wav2vec2_bert.Wav2Vec2BertConfig(
        hidden_size=D, num_attention_heads=H, position_embeddings_type=kind, attention_dropout=0.0,
        left_max_position_embeddings=CLIP, right_max_position_embeddings=CLIP, max_source_positions=2 * T,
        attn_implementation="eager",
    )  # fmt: skip
    peer = wav2vec2_bert.Wav2Vec2BertSelfAttention(config)
    maps = {"query": peer.linear_q, "key": peer.linear_k, "value": peer.linear_v}
    copy_projections(params, maps, peer.linear_out)
    return config, peer, maps


def test_distances_of_keys_are_those_of_relative_key():
    rng = np.random.default_rng(3)
    params = random_params()
    params["positions"] = {"key_table": jnp.asarray(rng.normal(size=(2 * CLIP + 1, K)), jnp.float32)}
    module = MultiHeadAttention(D, H, positions=ShawPositions(K, CLIP, with_values=False))
    y, (d_params, d_x) = run(module, params, Context())

    _, peer, maps = speech_attention("relative_key", params)
    with torch.no_grad():
        peer.distance_embedding.weight.copy_(tensor(params["positions"]["key_table"]))
    x = tensor(X, requires_grad=True)
    theirs, _ = peer(x)
    theirs.backward(tensor(UPSTREAM))
    assert_close(y, theirs)
    assert_close(d_x, x.grad)
    assert_close(d_params["positions"]["key_table"], peer.distance_embedding.weight.grad)
    assert_close(d_params["query"].reshape(D, D).T, maps["query"].weight.grad)


def test_transformer_xl_is_that_of_relative():
    rng = np.random.default_rng(4)
    params = random_params()
    shapes = {"distance": (D, H, K), "content_bias": (H, K), "position_bias": (H, K)}
    params["positions"] = {n: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for n, s in shapes.items()}
    module = MultiHeadAttention(D, H, positions=TransformerXLPositions(D, H))
    y, (d_params, d_x) = run(module, params, Context())

    config, peer, _ = speech_attention("relative", params)
    ours = params["positions"]
    with torch.no_grad():
        peer.linear_pos.weight.copy_(tensor(ours["distance"].reshape(D, D).T))
        peer.pos_bias_u.copy_(tensor(ours["content_bias"]))
        peer.pos_bias_v.copy_(tensor(ours["position_bias"]))
    x = tensor(X, requires_grad=True)
    theirs, _ = peer(
        x, relative_position_embeddings=wav2vec2_bert.Wav2Vec2BertRelPositionalEmbedding(config)(x)
    )
    theirs.backward(tensor(UPSTREAM))
    assert_close(y, theirs)
    assert_close(d_x, x.grad)
    found = d_params["positions"]
    assert_close(found["distance"].reshape(D, D).T, peer.linear_pos.weight.grad)
    assert_close(found["content_bias"], peer.pos_bias_u.grad)
    assert_close(found["position_bias"], peer.pos_bias_v.grad)


def test_shaw_with_values_is_the_sum_over_pairs_in_torch():
    """Eq. 3 to 5 with the vectors of all pairs in memory, [T, T, K]."""
    rng = np.random.default_rng(5)
    params = random_params()
    tables = {n: jnp.asarray(rng.normal(size=(2 * CLIP + 1, K)), jnp.float32) for n in ("key", "value")}
    params["positions"] = {f"{n}_table": table for n, table in tables.items()}
    module = MultiHeadAttention(D, H, positions=ShawPositions(K, CLIP))
    y, (d_params, d_x) = run(module, params, Context())

    x = tensor(X, requires_grad=True)
    peer = {n: tensor(table, requires_grad=True) for n, table in tables.items()}
    heads = {n: torch.einsum("btd,dhk->bhtk", x, tensor(params[n])) for n in ("query", "key", "value")}
    distance = torch.arange(T)[None] - torch.arange(T)[:, None]
    a_key, a_value = (peer[n][distance.clamp(-CLIP, CLIP) + CLIP] for n in ("key", "value"))
    scores = torch.einsum("bhqk,bhqlk->bhql", heads["query"], heads["key"][:, :, None] + a_key) / K**0.5
    looked = torch.einsum("bhql,bhqlk->bhqk", scores.softmax(-1), heads["value"][:, :, None] + a_value)
    theirs = torch.einsum("bhqk,hkd->bqd", looked, tensor(params["out"]))
    theirs.backward(tensor(UPSTREAM))
    assert_close(y, theirs)
    assert_close(d_x, x.grad)
    for name, table in peer.items():
        assert_close(d_params["positions"][f"{name}_table"], table.grad)
