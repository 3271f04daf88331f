"""Every configuration lies on every kind of mesh, and leaves hardly anything whole with FSDP: by shapes alone."""

from functools import cache

import jax
import pytest
from cases import slow_but

from experiments import configs
from flaxnmt.models.families import example_inputs, module
from flaxnmt.sharding import MAY_BE_WHOLE, check_sharded, make_mesh, tree_shardings, unsharded

FAMILIES = (
    "text_tiny",
    "discourse_document",
    "decoder_multi30k_en_de",
    "masked_tiny",
    "encoders_tiny",
    "cct_multi30k_en_de",
)
MESHES = {"data": (4, 1, 1), "fsdp": (1, 4, 1), "fsdp x model": (1, 2, 2)}


@cache
def boxed(name: str):
    config = configs.load(name)
    model = module(config.model, *2 * [config.data.tokenizer.vocab_size])
    inputs = example_inputs(config.model, config.data.rows_multiple)
    return jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))["params"]


@pytest.mark.parametrize("sizes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize(
    "name",
    slow_but(FAMILIES, configs.names()),
)
def test_shardings_of_every_configuration(name, sizes):
    mesh, params = make_mesh(*sizes, devices=jax.devices()[:4]), boxed(name)
    shardings = jax.tree.leaves(tree_shardings(params, mesh))
    names, share = unsharded(params, mesh)
    if mesh.shape["fsdp"] == 1:
        assert all(sharding.is_fully_replicated for sharding in shardings) and share == 1
    else:
        assert check_sharded(params, mesh) == names and share <= MAY_BE_WHOLE
        assert sum(sharding.is_fully_replicated for sharding in shardings) == len(names)
