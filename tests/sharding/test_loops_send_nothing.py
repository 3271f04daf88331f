"""A loop over the words of a sentence sends nothing between devices, however parameters and rows are divided."""

import re

import jax
import jax.numpy as jnp
import pytest
from cases import slow_but
from jax.sharding import NamedSharding, PartitionSpec

from flaxnmt.layers.context import Context
from flaxnmt.models import build
from flaxnmt.models.config import EncoderConfig, MultiHead, Seq2SeqConfig
from flaxnmt.sharding import make_mesh, tree_shardings, unbox, use_mesh

SENDS = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\(")
SIZES = [(2, 2, 2), (1, 8, 1), (2, 1, 4)]


def sent_in_loops(program: str) -> list[str]:
    bodies = set(re.findall(r"body=%?([\w.\-]+)", program))
    computations = re.findall(r"^%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    named = dict(computations)
    assert bodies and bodies <= set(named), "the program has loops"
    return [line for name in bodies for line in named[name].splitlines() if SENDS.search(line)]


@pytest.mark.parametrize("data, fsdp, model", slow_but(SIZES[:1], SIZES))
def test_no_word_of_a_recurrence_waits_for_other_devices(data, fsdp, model):
    config = Seq2SeqConfig(
        d_model=64, encoder=EncoderConfig(attention=MultiHead(2), feed_forward=32), dropout=0.0
    )
    encoder, mask = build.encoder(config, "lstm:1"), jnp.ones((16, 6), bool)
    context, x = Context(query_mask=mask, key_mask=mask), jnp.ones((16, 6, 64))
    boxed = jax.eval_shape(encoder.init, jax.random.key(0), x, context)["params"]

    def gradient(params, x):
        return jax.grad(lambda params: (encoder.apply({"params": params}, x, context)[0] ** 2).sum())(params)

    with use_mesh(make_mesh(data, fsdp, model)) as mesh:
        parameters = tree_shardings(boxed, mesh)
        rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
        compiled = jax.jit(gradient, in_shardings=(parameters, rows), out_shardings=parameters)
        text = compiled.lower(unbox(boxed), jax.ShapeDtypeStruct(x.shape, x.dtype)).compile().as_text()
    assert not sent_in_loops(text)
